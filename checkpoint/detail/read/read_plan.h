#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/read/read_pipeline.h"
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

/// The numbers, ascending, of the files that hold something of the targets and are not loaded.
/// Requires targets inside their tensors. Throws corrupt if the manifest has not got such a
/// file.
std::vector<std::size_t> files_to_load(const StoredCheckpoint& checkpoint,
                                       std::span<const ReadTarget> targets);

/// Which chunks the targets need, each once, ordered by file and address; and which targets take
/// something from each. Immutable.
class ReadPlan {
 public:
  /// Requires targets inside their tensors, whose files are loaded; keeps only the targets'
  /// numbers. Takes time for the wanted chunks, not for all stored ones: a piece's chunks are found
  /// by division.
  ReadPlan(const StoredCheckpoint& checkpoint, std::span<const ReadTarget> targets);

  /// Number of chunks.
  std::size_t size() const { return chunks_.size(); }

  /// Where the stored bytes of each chunk are. Large chunks that are stored as they are come in
  /// parts.
  std::span<const FileRange> ranges() const { return ranges_; }

  /// Requires i < size().
  const ChunkId& chunk(std::size_t i) const { return chunks_[i]; }

  /// Numbers of the targets that take something from chunk i, ascending.
  std::span<const std::size_t> targets(std::size_t i) const {
    return std::span(targets_).subspan(first_target_[i], first_target_[i + 1] - first_target_[i]);
  }

 private:
  std::vector<ChunkId> chunks_;
  std::vector<FileRange> ranges_;
  std::vector<std::size_t> first_target_;  // in targets_, per chunk, and one past the end
  std::vector<std::size_t> targets_;
};

}  // namespace shardwise::detail
