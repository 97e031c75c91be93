#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardwise::detail {

/// The length of a list with one entry for each of `positions` positions. Throws unsupported,
/// naming the list, beyond kMostListedPositions.
std::size_t list_size(std::int64_t positions, std::string_view what);

}  // namespace shardwise::detail
