#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shardwise/checkpoint/detail/file.h"

namespace shardwise::detail {

/// Bytes of a chunk, and memory they belong to.
struct PlacedRun {
  std::size_t from;  ///< counted from the chunk's begin
  std::byte* to;
  std::size_t size;
};

/// So many bytes are read, hashed and copied at once: while they lie in the processor's cache.
inline constexpr std::size_t kReadWindowBytes = std::size_t{256} << 10;

/// Reads `size` bytes from `address` on, by way of `window`, which begins on a page and has
/// kReadWindowBytes; copies to all runs what belongs there, and returns the XXH3 of all. Requires
/// runs that are ordered by `from`; several may want the same bytes, and some bytes none.
std::uint64_t read_placed(File& file, std::uint64_t address, std::size_t size,
                          std::span<const PlacedRun> runs, std::byte* window);

}  // namespace shardwise::detail
