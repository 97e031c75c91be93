#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace shardwise {

/// The fewest letters to change, add, drop or swap with a neighbour, to make one text the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// Up to three of the names that a wrong one was probably meant to be, the nearest first: at
/// most a third of its letters away. Valid as long as the names.
std::vector<std::string_view> nearest_names(const std::vector<std::string_view>& names,
                                            std::string_view wrong);

}  // namespace shardwise
