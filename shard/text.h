#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise {

/// Characters that an axis name may not contain, so that every mesh and spec can be written as
/// text.
inline constexpr std::string_view kReservedInAxisNames = ",=+-@;:()[]{}'\" \t\r\n";

/// The text without the blanks at both ends.
std::string_view trim(std::string_view text);

/// The parts between separators, untrimmed; "" has one empty part. Valid as long as the text.
std::vector<std::string_view> split(std::string_view text, char separator);

/// A non-negative decimal number and nothing else; absent beyond 2^63 - 1.
std::optional<std::int64_t> parse_count(std::string_view text);

/// The texts that the wildcards of a pattern match if it matches the whole name, in order: "*"
/// matches any characters, as few as possible, "?" one. Absent if it does not match. Valid as long
/// as the name.
std::optional<std::vector<std::string_view>> match_pattern(std::string_view pattern,
                                                           std::string_view name);

/// The least number of letters to change, add, drop or swap with a neighbour to turn one text into
/// the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Up to three names that a misspelled one may have meant, the nearest first: at most a third of
/// its letters differ. Valid as long as the names.
std::vector<std::string_view> nearest_names(const std::vector<std::string_view>& names,
                                            std::string_view wrong);

/// "1.50 MiB"
std::string human_bytes(std::size_t bytes);

/// The text itself, or quoted with escapes if it has control characters: a line end in a tensor's
/// name would otherwise split the line.
std::string in_one_line(const std::string& text);

/// Rows under a heading. A column is as wide as its widest cell, up to 120; numbers align right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> heading) : rows_{std::move(heading)} {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  /// A line for each row, with line ends.
  std::string to_string() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace shardwise
