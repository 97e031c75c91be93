#include "shardwise/convert/detail/string_map.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/json_reader.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

constexpr std::string_view kUser = "user", kOthers = "safetensors_metadata";

/// Reads an object of strings, or one inside another; any other value ends the read.
class StringMapJson final : public JsonReader {
 public:
  StringMapJson(std::string_view member, StringMap& map)
      : member_(member), depth_of_map_(member.empty() ? 1 : 2), map_(map) {}

  bool start_object() override { return ++depth_ <= depth_of_map_; }
  bool end_object(std::size_t) override { return depth_-- == depth_of_map_ || found_member_; }
  bool key(std::string_view key) override {
    if (depth_ == depth_of_map_) {
      map_.emplace_back(key, "");
      return true;
    }
    return !std::exchange(found_member_, true) && key == member_;
  }
  bool string(std::string_view text) override {
    if (depth_ != depth_of_map_) return false;
    map_.back().second = text;
    return true;
  }

 private:
  bool refuse(std::string_view) override { return false; }
  bool unreadable(const JsonProblem&) override { return false; }

  const std::string_view member_;
  const int depth_of_map_;
  StringMap& map_;
  int depth_ = 0;
  bool found_member_ = false;
};

/// Accepts any value.
class AnyJson final : public JsonReader {
 private:
  bool refuse(std::string_view) override { return true; }
  bool unreadable(const JsonProblem&) override { return false; }
};

}  // namespace

const std::string* repeated_key(const StringMap& map) {
  std::vector<const std::string*> keys;
  keys.reserve(map.size());
  for (const auto& [key, value] : map) keys.push_back(&key);
  std::sort(keys.begin(), keys.end(), [](const auto* a, const auto* b) { return *a < *b; });
  const auto twice = std::adjacent_find(keys.begin(), keys.end(),
                                        [](const auto* a, const auto* b) { return *a == *b; });
  return twice == keys.end() ? nullptr : *twice;
}

const std::string* find_value(const StringMap& map, std::string_view key) {
  const auto found =
      std::find_if(map.begin(), map.end(), [key](const auto& pair) { return pair.first == key; });
  return found == map.end() ? nullptr : &found->second;
}

std::optional<StringMap> parse_string_map(std::string_view json, std::string_view member) {
  StringMap map;
  if (!StringMapJson(member, map).parse(json) || repeated_key(map)) return std::nullopt;
  return map;
}

std::string to_json(std::string_view text) {
  if (!is_utf8(text)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("write a safetensors header: found {}, needed UTF-8", shown(text)));
  }
  std::string json;
  append_json(json, text);
  return json;
}

std::string to_json(const StringMap& map) {
  std::string json = "{";
  for (const auto& [key, value] : map) {
    if (json.size() > 1) json += ',';
    json += to_json(key) + ':' + to_json(value);
  }
  return json + '}';
}

std::string user_json_of(const StringMap& metadata) {
  if (metadata.empty()) return "{}";
  // `format` is the key that other programs expect.
  const std::string* const user = find_value(metadata, kUser);
  const std::size_t ours = find_value(metadata, "format") ? 2 : 1;
  const bool is_ours = user && metadata.size() == ours && AnyJson().parse(*user);
  if (is_ours) return *user;
  return fmt::format("{{\"{}\":{}}}", kOthers, to_json(metadata));
}

StringMap metadata_of(const std::string& user_json) {
  if (user_json == "{}") return {};
  if (auto metadata = parse_string_map(user_json, kOthers)) return *std::move(metadata);
  return {{std::string(kUser), user_json}};
}

}  // namespace shardwise::detail
