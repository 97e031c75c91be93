#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/read/read_plan.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {

/// How bytes are copied to their places: for who reads them next, or past the caches.
enum class CopyBy { cache, stream };

/// The part of a chunk that a target takes: the elements that both boxes share, as runs of bytes in
/// the order of the chunk. Thread-compatible.
class ChunkPart {
 public:
  ChunkPart(const StoredCheckpoint& checkpoint, const ChunkId& chunk, const ReadTarget& target);

  /// Copies to all places what belongs there of the chunk's bytes from `begin` on, which follow
  /// those of the last call.
  void take(std::size_t begin, std::span<const std::byte> bytes, CopyBy copy_by);

 private:
  void advance(std::int64_t runs);

  std::span<std::byte* const> places_;
  std::size_t run_bytes_ = 0;
  std::size_t from_ = 0, to_ = 0;    // the next run's place in the chunk and in the target
  Dims extents_, steps_, to_steps_;  // the loops over the runs, outermost first; steps in bytes
  Dims at_;
  bool done_;
};

/// Takes the bytes of one decoded chunk in their order, window by window while each is in a core's
/// cache: hashes them, and copies to every target its elements. Thread-compatible.
class ChunkScatter {
 public:
  /// `numbers` are those of the targets that take something. Owns none of its arguments.
  ChunkScatter(const StoredCheckpoint& checkpoint, const ChunkId& chunk,
               std::span<const ReadTarget> targets, std::span<const std::size_t> numbers,
               CopyBy copy_by);
  ~ChunkScatter();
  ChunkScatter(const ChunkScatter&) = delete;
  ChunkScatter& operator=(const ChunkScatter&) = delete;

  /// The bytes that follow those of the last call.
  void put(std::span<const std::byte> window);

  /// XXH3-64 of all bytes so far.
  std::uint64_t hash() const { return hasher_ ? hasher_->digest() : hash_; }

  /// Bytes that one of them takes for a chunk in several windows, for that many targets.
  static constexpr std::size_t held_bytes(std::size_t targets) {
    return targets * sizeof(ChunkPart);
  }

 private:
  const StoredCheckpoint& checkpoint_;
  const ChunkId chunk_;
  const std::span<const ReadTarget> targets_;
  const std::span<const std::size_t> numbers_;
  const std::size_t chunk_bytes_;
  const CopyBy copy_by_;
  std::size_t done_ = 0;
  std::vector<ChunkPart> parts_;    // if there are several windows
  std::optional<Hasher64> hasher_;  // as well
  std::uint64_t hash_ = 0;
};

/// Calls body(window) for a decompressed chunk's bytes in the order of its elements, unshuffled
/// into a window that stays in a core's first-level cache.
template <class Body>
void for_each_unshuffled(std::span<const std::byte> shuffled, std::size_t element_bytes,
                         Body&& body) {
  alignas(64) std::byte window[std::size_t{16} << 10];  // half of such a cache, or less
  const std::size_t step = sizeof(window) / element_bytes * element_bytes;
  for (std::size_t at = 0; at < shuffled.size(); at += step) {
    const std::span<std::byte> part(window, std::min(step, shuffled.size() - at));
    unshuffle(shuffled, element_bytes, at / element_bytes, part);
    body(std::span<const std::byte>(part));
  }
}

}  // namespace shardwise::detail
