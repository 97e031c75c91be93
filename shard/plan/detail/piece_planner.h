#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shardwise/shard/plan/detail/overlaps.h"
#include "shardwise/shard/plan/detail/replicas.h"
#include "shardwise/shard/plan/detail/target_copies.h"
#include "shardwise/shard/plan/piece_list.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::detail {

/// Plans targets one after the other, for any pieces.
///
/// Thread-compatible.
class PiecePlanner {
 public:
  /// Keeps the lists and options: valid as long as they. Throws as Topology::site().
  PiecePlanner(const PieceList& sources, const PieceList& targets, const PlanOptions& options);

  /// Pairs of a target and a box of a source that share an element: most often as many as copies.
  std::size_t overlaps() const { return overlaps_.size(); }

  /// Throws invalid_argument where an element of the target is in no source.
  void plan(std::size_t target, TargetCopies& copies);

 private:
  using Hits = std::span<const std::uint32_t>;  // groups that overlap a target

  PiecePlanner(Replicas replicas, const PieceList& sources, const PieceList& targets,
               const PlanOptions& options);

  /// Each element of the target is in exactly one of the parts.
  bool is_tiled(std::size_t target) const;
  void choose_whole_parts(std::size_t target, Hits hits, TargetCopies& copies);
  void choose_shares(std::size_t target, Hits hits, TargetCopies& copies);
  void take_all(std::size_t target, Hits hits, TargetCopies& copies);

  const PieceList& targets_;
  const PlanOptions& options_;
  PackedBoxes groups_;  // the box of each
  Overlaps overlaps_;   // of targets with groups
  ReplicaChooser chooser_;
  PackedBoxes parts_;                 // what each hit has of the target at hand
  std::vector<std::int64_t> volume_;  // of each part
  std::int64_t wanted_ = 0;           // elements of the target
};

}  // namespace shardwise::detail
