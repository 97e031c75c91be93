#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/shard/mesh.h"
#include "shardwise/shard/notation/placements.h"

namespace shardwise::detail {

/// What is left of one dim after it was cut again and again by torch.chunk's rule, always with one
/// part of what was left before. Indices stay in ascending order, but between them may be gaps:
/// then the piece has several runs. They are never listed unless asked for: a step from a local
/// index to the one before the cut is arithmetic.
///
/// Thread-compatible.
class DimPiece {
 public:
  /// All of a dim. Requires extent >= 0.
  explicit DimPiece(std::int64_t extent) : extent_(extent), length_(extent) {}

  /// Cuts into `split` chunks, each of these into `parts`, and keeps part number `part` of each.
  /// Requires split >= 1 and 0 <= part < parts; the product of all `parts` must fit in an int64.
  void cut(std::int64_t split, std::int64_t parts, std::int64_t part);

  std::int64_t length() const { return length_; }

  /// The index in the dim of the piece's element number `local`. Requires 0 <= local < length().
  std::int64_t index_at(std::int64_t local) const;

  /// The first index; the extent where the piece is empty.
  std::int64_t begin() const { return length_ == 0 ? extent_ : index_at(0); }

  bool has_gaps() const { return length_ > 0 && index_at(length_ - 1) - begin() >= length_; }

  /// In ascending order, none touching the next. Throws unsupported beyond kMostRuns.
  std::vector<IndexRun> runs() const;

 private:
  /// One cut: where the kept parts of full chunks are, and that of the last, shorter one.
  struct Cut {
    std::int64_t chunk;       // elements of a full chunk
    std::int64_t part;        // elements kept of a full chunk
    std::int64_t first;       // of them, within the chunk
    std::int64_t in_full;     // elements kept of all full chunks
    std::int64_t last_begin;  // of those kept of the shorter chunk
  };

  std::int64_t extent_, length_;
  std::array<Cut, 63> cuts_;  // each is by 2 or more, so there are no more
  std::size_t num_cuts_ = 0;
};

/// What the placements, one per mesh axis, leave of a dim at a mesh position.
DimPiece piece_at(const Mesh& mesh, std::span<const Placement> placements, std::size_t dim,
                  std::int64_t extent, std::int64_t position);

}  // namespace shardwise::detail
