#include "shardwise/storage/object/detail/times.h"

#include <algorithm>
#include <array>

namespace shardwise::detail {
namespace {

/// Takes digits and fixed characters from the front of a text.
class TimeText {
 public:
  explicit TimeText(std::string_view text) : text_(text) {}

  std::int64_t number(std::size_t digits, std::int64_t least, std::int64_t most) {
    std::int64_t value = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      const char c = text_.empty() ? '\0' : text_.front();
      is_good_ = is_good_ && c >= '0' && c <= '9';
      if (!is_good_) return least;
      value = value * 10 + (c - '0');
      text_.remove_prefix(1);
    }
    is_good_ = is_good_ && value >= least && value <= most;
    return value;
  }

  void fixed(std::string_view part) {
    is_good_ = is_good_ && text_.starts_with(part);
    if (is_good_) text_.remove_prefix(part.size());
  }

  std::string_view word(std::size_t size) {
    is_good_ = is_good_ && text_.size() >= size;
    if (!is_good_) return {};
    const std::string_view part = text_.substr(0, size);
    text_.remove_prefix(size);
    return part;
  }

  bool optional(std::string_view part) {
    const bool is_there = is_good_ && text_.starts_with(part);
    if (is_there) text_.remove_prefix(part.size());
    return is_there;
  }

  void skip_digits() {
    const std::size_t end = std::min(text_.find_first_not_of("0123456789"), text_.size());
    text_.remove_prefix(end);
  }

  void refuse() { is_good_ = false; }
  bool is_whole() const { return is_good_ && text_.empty(); }

 private:
  std::string_view text_;
  bool is_good_ = true;
};

std::int64_t days_since_1970(std::int64_t year, std::int64_t month, std::int64_t day) {
  // Years begin in March, so that a leap day is the last of its year.
  const std::int64_t y = month <= 2 ? year - 1 : year;
  const std::int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return y * 365 + y / 4 - y / 100 + y / 400 + day_of_year - 719'468;
}

std::int64_t seconds_of(TimeText& text) {
  const std::int64_t hour = text.number(2, 0, 23);
  text.fixed(":");
  const std::int64_t minute = text.number(2, 0, 59);
  text.fixed(":");
  return (hour * 60 + minute) * 60 + text.number(2, 0, 60);
}

}  // namespace

std::optional<std::int64_t> parse_iso_time(std::string_view text) {
  TimeText rest(text);
  const std::int64_t year = rest.number(4, 1970, 9999);
  rest.fixed("-");
  const std::int64_t month = rest.number(2, 1, 12);
  rest.fixed("-");
  const std::int64_t day = rest.number(2, 1, 31);
  rest.fixed("T");
  std::int64_t seconds = days_since_1970(year, month, day) * 86'400 + seconds_of(rest);
  if (rest.optional(".")) rest.skip_digits();
  const bool is_ahead = rest.optional("+");
  if (is_ahead || rest.optional("-")) {
    const std::int64_t hours = rest.number(2, 0, 23);
    rest.optional(":");
    const std::int64_t offset = (hours * 60 + rest.number(2, 0, 59)) * 60;
    seconds += is_ahead ? -offset : offset;
  } else {
    rest.fixed("Z");
  }
  return rest.is_whole() ? std::optional(seconds) : std::nullopt;
}

std::optional<std::int64_t> parse_http_time(std::string_view text) {
  static constexpr std::array<std::string_view, 12> kMonths = {
      "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  TimeText rest(text);
  rest.word(3);
  rest.fixed(", ");
  const std::int64_t day = rest.number(2, 1, 31);
  rest.fixed(" ");
  const auto* const month = std::ranges::find(kMonths, rest.word(3));
  if (month == kMonths.end()) rest.refuse();
  rest.fixed(" ");
  const std::int64_t year = rest.number(4, 1970, 9999);
  rest.fixed(" ");
  const std::int64_t seconds = seconds_of(rest);
  rest.fixed(" GMT");
  if (!rest.is_whole()) return {};
  return days_since_1970(year, month - kMonths.begin() + 1, day) * 86'400 + seconds;
}

}  // namespace shardwise::detail
