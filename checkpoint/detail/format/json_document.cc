#include "shardwise/checkpoint/detail/format/json_document.h"

#include <fmt/format.h>
#include <rapidjson/memorystream.h>

#include <algorithm>
#include <string>

#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/json_reader.h"

namespace shardwise::detail {
namespace {

using rapidjson::SizeType;

[[noreturn]] void corrupt(const std::string& message) { throw Error(ErrorCode::corrupt, message); }

/// Makes a tree. Thread-compatible.
class TreeBuilder final : public JsonReader {
 public:
  TreeBuilder(rapidjson::Document& tree, std::size_t max_nesting,
              std::vector<std::size_t>& key_ends)
      : tree_(tree), max_nesting_(max_nesting), key_ends_(key_ends) {}

  bool null() override { return tree_.Null(); }
  bool boolean(bool value) override { return tree_.Bool(value); }
  bool number(std::uint64_t value) override { return tree_.Uint64(value); }
  bool negative(std::int64_t value) override { return tree_.Int64(value); }
  bool real(double value) override { return tree_.Double(value); }
  bool string(std::string_view text) override {
    return tree_.String(text.data(), static_cast<SizeType>(text.size()), true);
  }
  bool start_object() override { return ++depth_ > 0 && tree_.StartObject(); }
  bool key(std::string_view key) override {
    if (depth_ == 1) key_ends_.push_back(position());
    return string(key);
  }
  bool end_object(std::size_t members) override {
    return --depth_ >= 0 && tree_.EndObject(static_cast<SizeType>(members));
  }
  bool start_array() override { return ++depth_ > 0 && tree_.StartArray(); }
  bool end_array(std::size_t elements) override {
    return --depth_ >= 0 && tree_.EndArray(static_cast<SizeType>(elements));
  }

 private:
  bool refuse(std::string_view) override { return false; }
  bool unreadable(const JsonProblem& problem) override {
    if (problem.kind == JsonProblem::nesting) {
      corrupt(fmt::format("is nested deeper than {} levels", max_nesting_));
    }
    if (problem.kind == JsonProblem::number) {
      corrupt("is not usable JSON: a number is beyond the range of a double");
    }
    corrupt(fmt::format("is not JSON: syntax error at byte {}", problem.byte));
  }

  rapidjson::Document& tree_;
  std::size_t max_nesting_;
  std::vector<std::size_t>& key_ends_;
  int depth_ = 0;
};

void check_keys(const JsonValue& value, std::vector<std::string_view>& keys) {
  if (value.IsArray()) {
    for (const JsonValue& element : value.GetArray()) check_keys(element, keys);
  }
  if (!value.IsObject()) return;
  keys.clear();
  for (const auto& member : value.GetObject()) keys.push_back(text_of(member.name));
  std::sort(keys.begin(), keys.end());
  if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) {
    corrupt("has an object with the same key twice");
  }
  for (const auto& member : value.GetObject()) check_keys(member.value, keys);
}

}  // namespace

JsonDocument::JsonDocument(std::string_view text, int max_nesting) : text_(text) {
  if (text.starts_with("\xef\xbb\xbf")) corrupt("begins with a byte order mark");
  if (text.size() > std::size_t{1} << 30) corrupt("is longer than 1 GiB");
  const auto most_nested = static_cast<std::size_t>(max_nesting);
  TreeBuilder builder(root_, most_nested, key_ends_);
  const auto read = [&](rapidjson::Document&) { return builder.parse(text, {most_nested}); };
  root_.Populate(read);
  std::vector<std::string_view> keys;
  check_keys(root_, keys);
}

std::string_view JsonDocument::raw_member(const char* key) const {
  const auto number = static_cast<std::size_t>(root_.FindMember(key) - root_.MemberBegin());
  const std::string_view rest = text_.substr(text_.find(':', key_ends_[number]) + 1);
  rapidjson::MemoryStream stream(rest.data(), rest.size());
  rapidjson::SkipWhitespace(stream);
  const std::size_t begin = stream.Tell();
  rapidjson::BaseReaderHandler<> nobody;
  // Numbers as text: RapidJSON 1.1.0 can overflow an int where it computes a double.
  constexpr unsigned kFlags =
      rapidjson::kParseStopWhenDoneFlag | rapidjson::kParseNumbersAsStringsFlag;
  rapidjson::Reader().Parse<kFlags>(stream, nobody);
  return rest.substr(begin, stream.Tell() - begin);
}

const char* kind_name(const JsonValue& value) {
  constexpr const char* kNames[] = {"null",  "boolean", "boolean", "object",
                                    "array", "string",  "number"};
  return kNames[value.GetType()];
}

}  // namespace shardwise::detail
