#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/shard/box.h"

namespace shardwise::detail {

/// A box of a tensor that is wanted, and the row-major memory, one or several times, that gets it.
/// Owns neither, they outlive its use: there may be a hundred thousand targets of a few boxes.
struct ReadTarget {
  std::size_t tensor;  ///< number in the manifest
  const Box* box;
  std::span<std::byte* const> places;
};

/// A chunk that has to be read, once, and what for.
struct WantedChunk {
  ChunkId id;
  std::size_t first_use;  ///< in ReadPlan::uses
  std::size_t num_uses;
};

/// Which chunks the targets need, each once, ordered by file and address. Immutable.
class ReadPlan {
 public:
  /// Requires targets inside their tensors, of which it keeps the numbers only. Takes time for what
  /// is wanted, not for what is stored: a piece's chunks are found by division.
  ReadPlan(const StoredCheckpoint& checkpoint, std::span<const ReadTarget> targets);

  std::span<const WantedChunk> chunks() const { return chunks_; }

  /// Numbers of the targets that take something from the chunk.
  std::span<const std::size_t> uses(const WantedChunk& chunk) const {
    return std::span(uses_).subspan(chunk.first_use, chunk.num_uses);
  }

 private:
  std::vector<WantedChunk> chunks_;
  std::vector<std::size_t> uses_;
};

}  // namespace shardwise::detail
