#pragma once

#include <cstddef>

#include "shardwise/runtime/kernels/detail/loops.h"

namespace shardwise::detail {

/// Copies elements of 1, 2, 4, 8 or 16 bytes: for each step of the loops, element at[0] of `from`
/// to element at[1] of `to`, beginning at `at`. Best with loops in the order of `to` in memory. The
/// memory must not overlap.
void strided_copy(Loops<2> loops, const Loops<2>::Offsets& at, std::size_t element_bytes,
                  const std::byte* from, std::byte* to);

/// The same element, `count` times.
void fill_elements(const std::byte* element, std::size_t element_bytes, std::byte* to,
                   std::size_t count);

}  // namespace shardwise::detail
