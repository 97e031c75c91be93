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
  /// Keeps references to the lists and options, which must outlive it. Throws as Topology::site().
  PiecePlanner(const PieceList& sources, const PieceList& targets, const PlanOptions& options);

  /// Number of pairs of a target and a source's box that share an element: mostly the number of
  /// copies.
  std::size_t overlaps() const { return overlaps_.size(); }

  /// Throws invalid_argument if an element of the target is in no source.
  void plan(std::size_t target, TargetCopies& copies);

 private:
  using Hits = std::span<const std::uint32_t>;  // groups that overlap a target

  PiecePlanner(Replicas replicas, const PieceList& sources, const PieceList& targets,
               const PlanOptions& options);

  /// True if each element of the target is in exactly one of the parts.
  bool is_tiled(std::size_t target) const;
  void choose_whole_parts(std::size_t target, Hits hits, TargetCopies& copies);
  void choose_shares(std::size_t target, Hits hits, TargetCopies& copies);
  void take_all(std::size_t target, Hits hits, TargetCopies& copies);

  const PieceList& targets_;
  const PlanOptions& options_;
  PackedBoxes groups_;  // the box of each
  Overlaps overlaps_;   // of targets with groups
  ReplicaChooser chooser_;
  PackedBoxes parts_;                 // each hit's part of the current target
  std::vector<std::int64_t> volume_;  // of each part
  std::int64_t wanted_ = 0;           // elements of the target
};

}  // namespace shardwise::detail
