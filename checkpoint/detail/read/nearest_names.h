#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace shardwise::detail {

/// Up to three of the names that a wrong one was probably meant to be, the nearest first: few
/// letters changed, added, dropped or swapped with a neighbour. Valid as long as the names.
std::vector<std::string_view> nearest_names(const std::vector<std::string_view>& names,
                                            std::string_view wrong);

}  // namespace shardwise::detail
