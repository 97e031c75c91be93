#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shardwise/shard/plan/detail/replicas.h"
#include "shardwise/shard/plan/detail/target_copies.h"
#include "shardwise/shard/plan/piece_list.h"
#include "shardwise/shard/plan/transfer_plan.h"
#include "shardwise/shard/sharding.h"

namespace shardwise::detail {

/// Plans the targets of one sharding from the pieces of another sharding of the same tensor. The
/// tiles of a dim that share elements are found once per dim, before any target.
///
/// Thread-compatible.
class GridPlanner {
 public:
  /// `sources` and `targets` are the pieces of the shardings. Keeps references to all arguments,
  /// which must outlive it. Throws as Topology::site().
  GridPlanner(const Sharding& from, const PieceList& sources, const Sharding& to,
              const PieceList& targets, const Shape& shape, const Topology& topology);

  /// Sets `copies` to those that fill the target at a mesh position; sources are mesh positions.
  void plan(std::int64_t position, TargetCopies& copies);

 private:
  struct Tile {
    std::int64_t begin, end;
    std::int64_t offset;  // its share of a piece's mesh position
  };
  struct Dim {
    std::vector<Tile> tiles;  // the source's non-empty tiles, in order
    std::int64_t stride = 0;  // of the group number: row-major over `tiles` of all dims
  };
  /// A tile of a dim of the target, and the tiles of the source that it overlaps: [first, last).
  struct Reach {
    std::int64_t begin, end;
    std::size_t first, last;
  };

  void add_dim(std::size_t dim, std::int64_t extent);
  void make_chooser();
  void plan_without_replicas(TargetCopies& copies) const;
  void plan_with_replicas(DeviceId place, TargetCopies& copies);

  const Sharding &from_, &to_;
  const PieceList &sources_, &targets_;
  const Topology& topology_;
  std::vector<Dim> dims_;
  std::vector<std::vector<Reach>> reaches_;  // per dim, by the tile's number in the target
  std::vector<Reach> at_;                    // per dim, of the current target
  std::optional<ReplicaChooser> chooser_;    // absent if there are no replicas
};

}  // namespace shardwise::detail
