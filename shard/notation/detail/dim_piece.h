#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/shard/mesh.h"
#include "shardwise/shard/notation/placements.h"

namespace shardwise::detail {

/// The part of one dim that is left after repeated cuts by torch.chunk's rule. Each cut keeps one
/// part of the part before. Indices stay in ascending order, but may have gaps: then the piece has
/// several runs. Only runs() lists them: the step from a local index to the one before a cut is
/// arithmetic.
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

  /// The first index; the extent if the piece is empty.
  std::int64_t begin() const { return length_ == 0 ? extent_ : index_at(0); }

  bool has_gaps() const { return length_ > 0 && index_at(length_ - 1) - begin() >= length_; }

  /// In ascending order, none touching the next. Throws unsupported beyond kMostRuns.
  std::vector<IndexRun> runs() const;

 private:
  /// One cut: where the kept parts of full chunks are, and the kept part of the last, shorter
  /// chunk.
  struct Cut {
    std::int64_t chunk;       // elements of a full chunk
    std::int64_t part;        // elements kept of a full chunk
    std::int64_t first;       // of the kept elements, within a full chunk
    std::int64_t in_full;     // elements kept of all full chunks together
    std::int64_t last_begin;  // of the elements kept of the shorter chunk
  };

  std::int64_t extent_, length_;
  std::array<Cut, 63> cuts_;  // each cuts by 2 or more, so there are no more
  std::size_t num_cuts_ = 0;
};

/// The part of a dim that the placements, one per mesh axis, leave to a mesh position.
DimPiece piece_at(const Mesh& mesh, std::span<const Placement> placements, std::size_t dim,
                  std::int64_t extent, std::int64_t position);

}  // namespace shardwise::detail
