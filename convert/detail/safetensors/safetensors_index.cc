#include "shardwise/convert/detail/safetensors/safetensors_index.h"

#include <fmt/format.h>

#include <utility>

#include "shardwise/convert/detail/string_map.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/json_reader.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

[[noreturn]] void corrupt_index(const std::string& what) { throw Error(ErrorCode::corrupt, what); }

/// Skips members other than the weight map, whatever they hold.
class IndexJson final : public JsonReader {
 public:
  WeightMap take() {
    if (!has_map_) corrupt_index("it has no weight_map");
    return std::move(map_);
  }

  bool other(std::string_view found) override { return passes_over() || refuse(found); }

  bool string(std::string_view file) override {
    if (passes_over()) return true;
    if (depth_ != 2) return refuse("a string");
    const bool is_plain = !file.empty() && file != "." && file != ".." &&
                          file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!is_plain) {
      corrupt_index(fmt::format("tensor {}: file {} is not a plain name of a file beside the index",
                                shown(key_), shown(file)));
    }
    map_.emplace(std::move(key_), file);
    return true;
  }

  bool start_object() override {
    if (passes_over()) return begin_passed_over();
    if (depth_ == 2) return refuse("an object");
    ++depth_;
    return true;
  }
  bool start_array() override { return passes_over() ? begin_passed_over() : refuse("a list"); }
  bool end_object(std::size_t) override { return end(); }
  bool end_array(std::size_t) override { return end(); }

  bool key(std::string_view key) override {
    if (passed_over_ > 0) return true;
    key_ = key;
    if (depth_ == 1) {
      is_map_ = key == "weight_map";
      if (is_map_ && std::exchange(has_map_, true)) corrupt_index("weight_map is there twice");
    } else if (map_.contains(key_)) {
      corrupt_index(fmt::format("tensor {}: it is there twice", shown(key)));
    }
    return true;
  }

 private:
  bool passes_over() const { return passed_over_ > 0 || (depth_ == 1 && !is_map_); }
  bool begin_passed_over() {
    ++passed_over_;
    return true;
  }
  bool end() {
    if (passed_over_ > 0) {
      --passed_over_;
    } else {
      --depth_;
    }
    return true;
  }

  bool refuse(std::string_view found) override {
    const char* const needed = depth_ == 2 ? "a file name" : "an object";
    corrupt_index(fmt::format("{}: found {}, needed is {}",
                              depth_ == 0   ? "index"
                              : depth_ == 1 ? "weight_map"
                                            : "tensor " + shown(key_),
                              found, needed));
  }
  bool unreadable(const JsonProblem& problem) override {
    corrupt_index("it " + problem.to_string());
  }

  WeightMap map_;
  int depth_ = 0;                // 1 in the index, 2 in the weight map
  std::size_t passed_over_ = 0;  // nesting inside a skipped member
  bool is_map_ = false, has_map_ = false;
  std::string key_;
};

}  // namespace

WeightMap parse_index(std::string_view text) {
  IndexJson json;
  json.parse(text);
  return json.take();
}

std::string index_text(const WeightMap& weight_map, std::uint64_t total_bytes) {
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_bytes);
  const char* separator = "\n    ";
  for (const auto& [tensor, file] : weight_map) {
    text += fmt::format("{}{}: {}", separator, to_json(tensor), to_json(file));
    separator = ",\n    ";
  }
  return text + "\n  }\n}\n";
}

}  // namespace shardwise::detail
