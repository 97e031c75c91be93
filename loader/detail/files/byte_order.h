#pragma once

#include <bit>
#include <cstddef>
#include <span>

#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// Turns the bytes of each element round; of a complex number each of its two parts.
void swap_bytes(DType dtype, std::span<std::byte> elements);

inline constexpr bool kBigEndianHost = std::endian::native == std::endian::big;

}  // namespace shardwise::detail
