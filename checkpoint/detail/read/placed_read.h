#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/file.h"

namespace shardwise::detail {

/// Bytes of a chunk, and the memory they belong to.
struct PlacedRun {
  std::size_t from;  ///< counted from the chunk's begin
  std::byte* to;
  std::size_t size;
};

/// Reads `size` bytes from `address` on straight to where they belong and returns their XXH3. What
/// none of the runs takes goes to its place in `unwanted`, which grows to `size`. Requires runs
/// that are ordered and disjoint.
std::uint64_t read_placed(File& file, std::uint64_t address, std::size_t size,
                          std::span<const PlacedRun> runs, std::vector<std::byte>& unwanted);

}  // namespace shardwise::detail
