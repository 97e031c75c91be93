#include "shardwise/checkpoint/detail/format/json_document.h"

#include <fmt/format.h>
#include <rapidjson/memorystream.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "shardwise/shard/error.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

using rapidjson::Document;
using rapidjson::MemoryStream;
using rapidjson::SizeType;

// Numbers come as text: RapidJSON 1.1.0 can overflow an int where it computes a double.
constexpr unsigned kFlags =
    rapidjson::kParseValidateEncodingFlag | rapidjson::kParseNumbersAsStringsFlag;

[[noreturn]] void corrupt(const std::string& message) { throw Error(ErrorCode::corrupt, message); }

[[noreturn]] void refuse(std::size_t at) {
  corrupt(fmt::format("is not JSON: syntax error at byte {}", at + 1));
}

[[noreturn]] void refuse_number() {
  corrupt("is not usable JSON: a number is beyond the range of a double");
}

template <class T>
bool parse_all(std::string_view text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

/// Makes the tree of what RapidJSON's reader reports, and refuses what that would take.
/// Thread-compatible.
class TreeBuilder : public Document {
 public:
  TreeBuilder(std::string_view text, const MemoryStream& stream, int max_nesting,
              std::vector<std::size_t>& key_ends)
      : stream_(stream),
        may_have_surrogates_(text.find('\xED') != std::string_view::npos ||
                             text.find('\\') != std::string_view::npos),
        max_nesting_(max_nesting),
        key_ends_(key_ends) {}

  bool StartObject() {
    enter();
    return Document::StartObject();
  }
  bool EndObject(SizeType members) {
    --depth_;
    return Document::EndObject(members);
  }
  bool StartArray() {
    enter();
    return Document::StartArray();
  }
  bool EndArray(SizeType elements) {
    --depth_;
    return Document::EndArray(elements);
  }

  bool Key(const char* text, SizeType bytes, bool copy) {
    check_surrogates({text, bytes});
    if (depth_ == 1) key_ends_.push_back(stream_.Tell());
    return Document::Key(text, bytes, copy);
  }
  bool String(const char* text, SizeType bytes, bool copy) {
    check_surrogates({text, bytes});
    return Document::String(text, bytes, copy);
  }
  bool RawNumber(const char* text, SizeType bytes, bool) {
    const std::string_view digits(text, bytes);
    std::int64_t integer = 0;
    std::uint64_t natural = 0;
    if (parse_all(digits, integer)) return Int64(integer);
    if (parse_all(digits, natural)) return Uint64(natural);
    // A long double holds what is too large for a double; what is too small stays 0.
    long double wide = 0;
    std::from_chars(text, text + bytes, wide);
    const auto value = static_cast<double>(wide);
    if (!std::isfinite(value)) refuse_number();
    return Double(value);
  }

 private:
  void enter() {
    if (depth_ == max_nesting_) corrupt(fmt::format("is nested deeper than {} levels", depth_));
    ++depth_;
  }

  // RapidJSON 1.1.0 takes "\udc00", half of a character.
  void check_surrogates(std::string_view text) const {
    if (may_have_surrogates_ && !is_utf8(text)) refuse(stream_.Tell() - 1);
  }

  const MemoryStream& stream_;
  bool may_have_surrogates_;
  int max_nesting_, depth_ = 0;
  std::vector<std::size_t>& key_ends_;
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
  MemoryStream stream(text.data(), text.size());
  TreeBuilder builder(text, stream, max_nesting, key_ends_);
  rapidjson::Reader reader;
  const auto read = [&](Document&) { return !reader.Parse<kFlags>(stream, builder).IsError(); };
  builder.Populate(read);
  if (reader.GetParseErrorCode() == rapidjson::kParseErrorNumberTooBig) refuse_number();
  if (reader.HasParseError()) refuse(reader.GetErrorOffset());
  if (stream.Tell() != text.size()) refuse(stream.Tell());  // a zero byte looks like the end
  root_.Swap(builder);
  std::vector<std::string_view> keys;
  check_keys(root_, keys);
}

std::string_view JsonDocument::raw_member(const char* key) const {
  const auto number = static_cast<std::size_t>(root_.FindMember(key) - root_.MemberBegin());
  const std::string_view rest = text_.substr(text_.find(':', key_ends_[number]) + 1);
  MemoryStream stream(rest.data(), rest.size());
  rapidjson::SkipWhitespace(stream);
  const std::size_t begin = stream.Tell();
  rapidjson::BaseReaderHandler<> nobody;
  rapidjson::Reader().Parse<kFlags | rapidjson::kParseStopWhenDoneFlag>(stream, nobody);
  return rest.substr(begin, stream.Tell() - begin);
}

const char* kind_name(const JsonValue& value) {
  constexpr const char* kNames[] = {"null",  "boolean", "boolean", "object",
                                    "array", "string",  "number"};
  return kNames[value.GetType()];
}

}  // namespace shardwise::detail
