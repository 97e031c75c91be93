#include "shardwise/convert/detail/strict_json.h"

#include <fmt/format.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>

#include <charconv>
#include <cmath>

#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

using rapidjson::SizeType;

// Nesting takes no stack. Numbers come as text: RapidJSON 1.1.0 can overflow an int where it
// computes a double.
constexpr unsigned kStrictFlags = rapidjson::kParseIterativeFlag |
                                  rapidjson::kParseValidateEncodingFlag |
                                  rapidjson::kParseNumbersAsStringsFlag;

std::string not_json_at(std::size_t byte) {
  return fmt::format("is not JSON at its byte {}", byte);
}

class Events {
 public:
  Events(StrictJson& to, const rapidjson::MemoryStream& stream) : to_(to), stream_(stream) {}

  bool Null() { return to_.other("null"); }
  bool Bool(bool value) { return to_.boolean(value); }
  bool RawNumber(const char* text, SizeType bytes, bool) {
    const char* const end = text + bytes;
    std::int64_t integer = 0;
    std::uint64_t natural = 0;
    if (const auto [at, error] = std::from_chars(text, end, natural);
        error == std::errc() && at == end) {
      return to_.number(natural);
    }
    if (const auto [at, error] = std::from_chars(text, end, integer);
        error == std::errc() && at == end) {
      return to_.other("a negative number");
    }
    long double wide = 0;
    std::from_chars(text, end, wide);
    if (!std::isfinite(static_cast<double>(wide))) return refuse_text();
    return to_.other("a number that is no integer, or too large");
  }
  bool Int(int) { return false; }
  bool Uint(unsigned) { return false; }
  bool Int64(std::int64_t) { return false; }
  bool Uint64(std::uint64_t) { return false; }
  bool Double(double) { return false; }

  bool String(const char* text, SizeType bytes, bool) {
    return check({text, bytes}) && to_.string({text, bytes});
  }
  bool Key(const char* text, SizeType bytes, bool) {
    return check({text, bytes}) && to_.key({text, bytes});
  }
  bool StartObject() { return enter() && to_.start_object(); }
  bool EndObject(SizeType) { return leave() && to_.end_object(); }
  bool StartArray() { return enter() && to_.start_array(); }
  bool EndArray(SizeType) { return leave() && to_.end_array(); }

 private:
  // RapidJSON 1.1.0 takes "\udc00", half of a character.
  bool check(std::string_view text) {
    return text.find('\xED') == std::string_view::npos || is_utf8(text) || refuse_text();
  }
  bool refuse_text() { return to_.unreadable(not_json_at(stream_.Tell())); }

  // The parser's own stack grows by 8 bytes a level.
  bool enter() {
    return ++depth_ <= StrictJson::kMostNested ||
           to_.unreadable(fmt::format("is nested deeper than {} levels at its byte {}",
                                      StrictJson::kMostNested, stream_.Tell()));
  }
  bool leave() {
    --depth_;
    return true;
  }

  StrictJson& to_;
  const rapidjson::MemoryStream& stream_;
  std::size_t depth_ = 0;
};

}  // namespace

bool StrictJson::parse(std::string_view text) {
  const std::size_t zero = text.find('\0');  // the parser would take it for the end
  if (zero != text.npos) return unreadable(not_json_at(zero + 1));
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::Reader reader;
  Events events(*this, stream);
  const rapidjson::ParseResult result = reader.Parse<kStrictFlags>(stream, events);
  if (!result.IsError()) return true;
  if (result.Code() == rapidjson::kParseErrorTermination) return false;
  return unreadable(not_json_at(result.Offset() + 1));
}

}  // namespace shardwise::detail
