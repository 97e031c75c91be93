#include "shardwise/convert/detail/aliased_tensors.h"

#include <map>
#include <string>
#include <utility>

#include "shardwise/storage/detail/json_reader.h"

namespace shardwise::detail {
namespace {

/// Reads the member "aliases" of an object and skips all others.
class AliasesJson final : public JsonReader {
 public:
  explicit AliasesJson(StringMap& aliases) : aliases_(aliases) {}

  bool number(std::uint64_t) override { return true; }
  bool boolean(bool) override { return true; }
  bool other(std::string_view) override { return true; }
  bool string(std::string_view text) override {
    if (depth_ == 2 && is_inside_) aliases_.emplace_back(key_, text);
    return true;
  }
  bool key(std::string_view key) override {
    if (depth_ == 1) is_inside_ = key == "aliases";
    key_ = key;
    return true;
  }
  bool start_object() override { return ++depth_ > 0; }
  bool end_object(std::size_t) override { return --depth_ >= 0; }
  bool start_array() override {
    is_inside_ = is_inside_ && depth_ > 1;
    return ++depth_ > 0;
  }
  bool end_array(std::size_t) override { return --depth_ >= 0; }

 private:
  bool refuse(std::string_view) override { return false; }
  bool unreadable(const JsonProblem&) override { return false; }

  StringMap& aliases_;
  std::string key_;
  int depth_ = 0;
  bool is_inside_ = false;
};

}  // namespace

StringMap parse_aliases(std::string_view objects_json) {
  StringMap aliases;
  if (objects_json.empty() || !AliasesJson(aliases).parse(objects_json)) return {};
  return aliases;
}

AliasedTensors::AliasedTensors(const BoxReader& source, const StringMap& aliases)
    : source_(source) {
  std::map<std::string, std::size_t> numbers;
  for (const TensorInfo& tensor : source.tensors()) numbers.emplace(tensor.name, numbers.size());
  const std::map<std::string, std::size_t> stored = numbers;
  for (const auto& [alias, name] : aliases) {
    if (const auto found = stored.find(name); found != stored.end()) {
      numbers.emplace(alias, found->second);
    }
  }
  for (const auto& [name, number] : numbers) {
    tensors_.push_back(source.tensors()[number]);
    tensors_.back().name = name;
    numbers_.push_back(number);
  }
}

}  // namespace shardwise::detail
