#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace shardwise {

/// What an axis name may not contain, so that every mesh and spec can be written as text.
inline constexpr std::string_view kReservedInAxisNames = ",=+-@;:()[]{}'\" \t\r\n";

/// Without the blanks at both ends.
std::string_view trim(std::string_view text);

/// The parts between separators, untrimmed; "" has one part, which is empty. Valid as long as the
/// text.
std::vector<std::string_view> split(std::string_view text, char separator);

/// A non-negative decimal number and nothing else; absent beyond 2^63 - 1.
std::optional<std::int64_t> parse_count(std::string_view text);

/// The fewest letters to change, add, drop or swap with a neighbour, to make one text the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Up to three of the names that a wrong one was probably meant to be, the nearest first: at
/// most a third of its letters away. Valid as long as the names.
std::vector<std::string_view> nearest_names(const std::vector<std::string_view>& names,
                                            std::string_view wrong);

}  // namespace shardwise
