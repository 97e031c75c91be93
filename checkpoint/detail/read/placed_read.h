#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Bytes of a chunk, and where they belong: so far behind each of the places.
struct PlacedRun {
  std::size_t from;  ///< counted from the chunk's begin
  std::size_t size;
  std::span<std::byte* const> places;
  std::size_t offset;
};

/// A raw chunk in its file, and what belongs where. The runs are ordered by `from`; several may
/// want the same bytes, and some bytes none.
struct PlacedChunk {
  File& file;
  std::uint64_t address;
  std::size_t bytes;
  std::span<const PlacedRun> runs;
};

/// How bytes are copied to their places: for whoever reads them next, or past the caches.
enum class CopyBy { cache, stream };

/// Unshuffles a decompressed chunk window by window, in the order of its elements; copies to all
/// runs what belongs there, and returns the XXH3 of all elements: each window is hashed and copied
/// while it is in a core's first-level cache. `runs` as in PlacedChunk.
std::uint64_t unshuffle_placed(std::span<const std::byte> shuffled, std::size_t element_bytes,
                               std::span<const PlacedRun> runs, CopyBy copy_by);

/// Reads a chunk by way of `window`, which begins on a page and has kReadWindowBytes; copies to all
/// runs what belongs there, and returns the XXH3 of all.
std::uint64_t read_placed(const PlacedChunk& chunk, CopyBy copy_by, std::byte* window);

}  // namespace shardwise::detail
