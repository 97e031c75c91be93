#include "shardwise/storage/detail/json_reader.h"

#include <fmt/format.h>
#include <rapidjson/error/en.h>
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>

#include <charconv>
#include <cmath>

#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

using rapidjson::SizeType;

// Numbers come as text: RapidJSON 1.1.0 can overflow an int where it computes a double. Texts that
// may be nested without end take no stack.
constexpr unsigned kStrict =
    rapidjson::kParseNumbersAsStringsFlag | rapidjson::kParseValidateEncodingFlag;
constexpr unsigned kLenient = rapidjson::kParseNumbersAsStringsFlag |
                              rapidjson::kParseIterativeFlag | rapidjson::kParseNanAndInfFlag;

template <class T>
bool is_whole(std::string_view digits, T& value) {
  const char* const end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, value);
  return error == std::errc() && at == end;
}

}  // namespace

std::string JsonProblem::to_string() const {
  if (kind != nesting) return fmt::format("is not JSON at its byte {}", byte);
  return fmt::format("is nested deeper than {} levels at its byte {}", JsonReader::kMostNested,
                     byte);
}

/// Passes on the events of RapidJSON's reader.
class JsonReader::Events : public rapidjson::BaseReaderHandler<> {
 public:
  Events(JsonReader& to, std::string_view text, const rapidjson::MemoryStream& stream,
         const Rules& rules)
      : to_(to),
        stream_(stream),
        most_nested_(rules.most_nested),
        may_have_surrogates_(!rules.is_lenient &&
                             (text.find('\xED') != text.npos || text.find('\\') != text.npos)) {}

  bool Null() { return to_.null(); }
  bool Bool(bool value) { return to_.boolean(value); }
  bool RawNumber(const char* text, SizeType bytes, bool) {
    to_.position_ = stream_.Tell();
    return to_.number_text({text, bytes});
  }
  bool String(const char* text, SizeType bytes, bool) {
    return check({text, bytes}) && to_.string({text, bytes});
  }
  bool Key(const char* text, SizeType bytes, bool) {
    to_.position_ = stream_.Tell();
    return check({text, bytes}) && to_.key({text, bytes});
  }
  bool StartObject() { return enter() && to_.start_object(); }
  bool StartArray() { return enter() && to_.start_array(); }
  bool EndObject(SizeType members) {
    --depth_;
    return to_.end_object(members);
  }
  bool EndArray(SizeType elements) {
    --depth_;
    return to_.end_array(elements);
  }

 private:
  bool fail(JsonProblem::Kind kind) { return to_.unreadable({kind, stream_.Tell(), ""}); }

  // RapidJSON 1.1.0 accepts "\udc00", half of a surrogate pair.
  bool check(std::string_view text) {
    return !may_have_surrogates_ || is_utf8(text) || fail(JsonProblem::encoding);
  }

  bool enter() { return ++depth_ <= most_nested_ || fail(JsonProblem::nesting); }

  JsonReader& to_;
  const rapidjson::MemoryStream& stream_;
  std::size_t most_nested_;
  bool may_have_surrogates_;
  std::size_t depth_ = 0;
};

bool JsonReader::number_text(std::string_view digits) {
  std::uint64_t natural = 0;
  if (is_whole(digits, natural)) return number(natural);
  std::int64_t integer = 0;
  if (is_whole(digits, integer)) return negative(integer);
  // A long double holds numbers that are too large for a double; those that are too small stay 0.
  long double wide = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), wide);
  const auto value = static_cast<double>(wide);
  return std::isfinite(value) ? real(value) : unreadable({JsonProblem::number, position_, ""});
}

bool JsonReader::parse(std::string_view text, const Rules& rules) {
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::Reader reader;
  Events events(*this, text, stream, rules);
  if (rules.is_lenient) {
    reader.Parse<kLenient>(stream, events);
  } else {
    reader.Parse<kStrict>(stream, events);
  }
  const auto code = reader.GetParseErrorCode();
  if (code == rapidjson::kParseErrorTermination) return false;
  if (code == rapidjson::kParseErrorNone) {
    return stream.Tell() == text.size() ||
           unreadable({JsonProblem::syntax, stream.Tell() + 1, "a zero byte"});  // like an end
  }
  std::string_view words = rapidjson::GetParseError_En(code);
  words.remove_suffix(1);
  const auto kind =
      code == rapidjson::kParseErrorNumberTooBig ? JsonProblem::number : JsonProblem::syntax;
  return unreadable({kind, reader.GetErrorOffset() + 1, words});
}

}  // namespace shardwise::detail
