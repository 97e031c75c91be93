#include "shardwise/loader/sources/detail/json_value.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "shardwise/loader/detail/files/shown_text.h"
#include "shardwise/loader/sources/detail/number_text.h"
#include "shardwise/storage/detail/json_reader.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

constexpr std::string_view kNaN = "NaN";  // also null within a list
constexpr std::int64_t kUnknown = -1;
constexpr std::size_t kNoElement = kMaxRank + 1;

/// Keeps members that have a target. Thread-compatible.
class MemberReader final : public JsonReader {
 public:
  explicit MemberReader(const std::function<JsonTarget(std::string_view)>& target)
      : target_(target) {}

  bool key(std::string_view key) override {
    check_utf8(key);
    if (depth_ > 1) return true;
    to_ = target_(key);
    if (to_.value == nullptr) return true;
    key_ = key;
    rank_ = kNoElement;
    JsonValue& value = *to_.value;
    value.is_null = value.is_text = value.has_truth = value.has_number = false;
    value.numbers = {};
    value.shape = {};
    value.elements.clear();
    return true;
  }
  bool start_object() override {
    if (to_.value != nullptr) fail("an object, needed are numbers, lists of them, or a string");
    ++depth_;
    return true;
  }
  bool end_object(std::size_t) override {
    --depth_;
    return true;
  }
  bool start_array() override {
    ++depth_;
    if (to_.value == nullptr) return true;
    if (lists() > kMaxRank) fail(fmt::format("over {} lists within one another", kMaxRank));
    if (rank_ < lists()) fail("a list and something else side by side");
    return true;
  }
  bool end_array(std::size_t elements) override {
    --depth_;
    if (to_.value == nullptr) return true;
    Shape& shape = to_.value->shape;
    while (shape.size() <= lists()) shape.push_back(kUnknown);
    std::int64_t& extent = shape[lists()];
    const auto count = static_cast<std::int64_t>(elements);
    if (extent != kUnknown && extent != count) {
      fail(fmt::format("a list of {} next to one of {}", count, extent));
    }
    extent = count;
    return true;
  }

  bool null() override {
    if (to_.value == nullptr) return true;
    if (lists() > 0) return number_text(kNaN);
    to_.value->is_null = true;
    if (to_.text != nullptr) *to_.text = "null";
    return true;
  }
  bool boolean(bool truth) override {
    if (to_.value == nullptr) return true;
    to_.value->has_truth = true;
    return add_element(truth ? "true" : "false");
  }
  bool number_text(std::string_view number) override {
    if (to_.value == nullptr) return true;
    to_.value->has_number = true;
    JsonValue& value = *to_.value;
    if (!to_.dtype && !value.numbers.add_whole(number)) value.numbers.add_real();
    return add_element(number);
  }
  bool string(std::string_view text) override {
    check_utf8(text);
    if (to_.value == nullptr) return true;
    if (lists() > 0) fail("a string within a list");
    if (to_.dtype && *to_.dtype != DType::u8) {
      fail(fmt::format("a string, needed are numbers of type {}", name(*to_.dtype)));
    }
    to_.value->is_text = true;
    to_.value->shape = {static_cast<std::int64_t>(text.size())};
    if (to_.text != nullptr) *to_.text = text;
    if (!to_.dtype) return true;
    const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
    to_.value->elements.assign(begin, begin + text.size());
    return true;
  }

 private:
  bool refuse(std::string_view) override { return false; }  // never called
  bool unreadable(const JsonProblem& problem) override {
    throw JsonFault{fmt::format("at its byte {}: {}", problem.byte - 1, problem.words)};
  }

  [[noreturn]] void fail(std::string_view found) const {
    throw JsonFault{fmt::format("key \"{}\": {}", shown_text(key_), found)};
  }

  std::size_t lists() const { return depth_ - 1; }  // of a member's value, around the next item

  static void check_utf8(std::string_view text) {
    if (is_utf8(text)) return;
    throw JsonFault{"a string that is not UTF-8, as from \"iconv -f LATIN1 -t UTF-8\""};
  }

  bool add_element(std::string_view text) {
    JsonValue& value = *to_.value;
    if (value.shape.size() > lists() || (rank_ != kNoElement && rank_ != lists())) {
      fail("a list and something else side by side");
    }
    rank_ = lists();
    if (to_.text != nullptr && lists() == 0) *to_.text = text;
    if (!to_.dtype) return true;
    const std::size_t end = value.elements.size();
    value.elements.resize(end + size_bytes(*to_.dtype));
    if (!read_number(text, *to_.dtype, value.elements.data() + end)) {
      fail(fmt::format("{}, needed is a number of type {}",
                       text.data() == kNaN.data() ? "null" : shown_text(text), name(*to_.dtype)));
    }
    return true;
  }

  const std::function<JsonTarget(std::string_view)>& target_;
  JsonTarget to_;
  std::string key_;
  std::size_t depth_ = 0;          // objects and lists that are open
  std::size_t rank_ = kNoElement;  // lists around each element
};

}  // namespace

void read_json_object(std::string_view text,
                      const std::function<JsonTarget(std::string_view key)>& target) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos || text[begin] != '{') throw JsonFault{"no JSON object"};
  if (text.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw JsonFault{"over 4 GiB of JSON"};
  }
  // Numbers suit any dtype, so that they stay text; no nesting is too deep.
  MemberReader(target).parse(text, {std::numeric_limits<std::size_t>::max(), true});
}

}  // namespace shardwise::detail
