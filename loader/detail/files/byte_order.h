#pragma once

#include <bit>
#include <cstddef>
#include <span>

#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// Reverses the bytes of each element; for complex numbers, of each of the two parts.
void swap_bytes(DType dtype, std::span<std::byte> elements);

inline constexpr bool kBigEndianHost = std::endian::native == std::endian::big;

}  // namespace shardwise::detail
