#include "shardwise/loader/sources/detail/json_value.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <string_view>

#include "shardwise/loader/sources/detail/number_text.h"
#include "shardwise/loader/sources/detail/shown_text.h"

namespace shardwise::detail {
namespace {

constexpr std::int64_t kUnknown = -1;

class JsonValueReader {
 public:
  JsonValueReader(JsonScanner& scanner, std::optional<DType> dtype, JsonValue& value)
      : scanner_(scanner), dtype_(dtype), value_(value) {}

  void read() {
    value_.is_text = value_.has_truth = value_.has_integer = value_.has_real = false;
    value_.shape = {};
    value_.elements.clear();
    if (scanner_.peek() == '"') {
      read_text();
    } else {
      read_part(0);
    }
  }

 private:
  void read_text() {
    const std::string_view text = scanner_.string(scratch_);
    if (dtype_ && *dtype_ != DType::u8) {
      scanner_.fail(fmt::format("a string, needs numbers of type {}", name(*dtype_)));
    }
    value_.is_text = true;
    value_.shape = {static_cast<std::int64_t>(text.size())};
    if (!dtype_) return;
    const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
    value_.elements.assign(begin, begin + text.size());
  }

  void read_part(std::size_t depth) {
    switch (scanner_.peek()) {
      case '[':
        return read_list(depth);
      case '"':
        scanner_.fail("a string within a list");
      case '{':
        scanner_.fail("an object, needs numbers, lists of them, or a string");
      case 'n':
        scanner_.fail("null or no value, needs numbers, lists of them, or a string");
      case 't':
      case 'f':
        value_.has_truth = true;
        return read_element(depth, scanner_.truth() ? "true" : "false");
      default: {
        const std::string_view number = scanner_.number();
        (is_json_integer(number) ? value_.has_integer : value_.has_real) = true;
        return read_element(depth, number);
      }
    }
  }

  void read_element(std::size_t depth, std::string_view text) {
    if (value_.shape.size() > depth || (has_element_ && rank_ != depth)) {
      scanner_.fail("a list and something else side by side");
    }
    has_element_ = true;
    rank_ = depth;
    if (!dtype_) return;
    const std::size_t bytes = size_bytes(*dtype_);
    const std::size_t end = value_.elements.size();
    value_.elements.resize(end + bytes);
    if (!read_number(text, *dtype_, value_.elements.data() + end)) {
      scanner_.fail(fmt::format("{}, needs a number of type {}", shown_text(text), name(*dtype_)));
    }
  }

  void read_list(std::size_t depth) {
    if (depth == kMaxRank) scanner_.fail(fmt::format("over {} lists within one another", kMaxRank));
    if (has_element_ && depth >= rank_) scanner_.fail("a list and something else side by side");
    scanner_.expect('[');
    std::int64_t count = 0;
    if (!scanner_.accept(']')) {
      do {
        read_part(depth + 1);
        ++count;
      } while (scanner_.accept(','));
      scanner_.expect(']');
    }
    while (value_.shape.size() <= depth) value_.shape.push_back(kUnknown);
    std::int64_t& extent = value_.shape[depth];
    if (extent != kUnknown && extent != count) {
      scanner_.fail(fmt::format("a list of {} beside one of {}", count, extent));
    }
    extent = count;
  }

  JsonScanner& scanner_;
  std::optional<DType> dtype_;
  JsonValue& value_;
  std::string scratch_;
  bool has_element_ = false;
  std::size_t rank_ = 0;  // of the elements
};

}  // namespace

void read_json_value(JsonScanner& scanner, std::optional<DType> dtype, JsonValue& value) {
  JsonValueReader(scanner, dtype, value).read();
}

}  // namespace shardwise::detail
