#include "shardwise/convert/detail/strict_json.h"

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

class Events {
 public:
  Events(StrictJson& to, const rapidjson::MemoryStream& stream) : to_(to), stream_(stream) {}

  bool Null() { return to_.other("null"); }
  bool Bool(bool) { return to_.other("a boolean"); }
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
  bool StartObject() { return to_.start_object(); }
  bool EndObject(SizeType) { return to_.end_object(); }
  bool StartArray() { return to_.start_array(); }
  bool EndArray(SizeType) { return to_.end_array(); }

 private:
  // RapidJSON 1.1.0 takes "\udc00", half of a character.
  bool check(std::string_view text) {
    return text.find('\xED') == std::string_view::npos || is_utf8(text) || refuse_text();
  }
  bool refuse_text() { return to_.not_json(stream_.Tell()); }

  StrictJson& to_;
  const rapidjson::MemoryStream& stream_;
};

}  // namespace

bool StrictJson::parse(std::string_view text) {
  const std::size_t zero = text.find('\0');  // the parser would take it for the end
  if (zero != text.npos) return not_json(zero + 1);
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::Reader reader;
  Events events(*this, stream);
  const rapidjson::ParseResult result = reader.Parse<kStrictFlags>(stream, events);
  if (!result.IsError()) return true;
  if (result.Code() == rapidjson::kParseErrorTermination) return false;
  return not_json(result.Offset() + 1);
}

}  // namespace shardwise::detail
