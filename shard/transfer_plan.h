#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// A box of a tensor that lies, or is wanted, somewhere. `place` is a DeviceId in memory plans; a
/// plan between files and devices numbers its files there.
struct Piece {
  DeviceId place;
  Box box;

  bool operator==(const Piece&) const = default;
};

/// How several sources of one element are combined.
enum class Reduction { none, sum, max, min };

/// One step of a plan: the elements of `box` go from a source piece to a target piece. The numbers
/// index TransferPlan::sources() and targets().
struct Copy {
  std::int64_t source;
  std::int64_t target;
  Box box;
};

/// What a plan amounts to, for people, cost models and message passing: the first that fits, over
/// the targets that are not empty.
enum class TransferClass {
  nothing,         ///< every target is, all of it, a source in the same place
  slice,           ///< every target lies inside one source in the same place
  permute,         ///< every target is all of one source, and no source is used twice
  all_gather,      ///< every target is put together from whole sources
  all_to_all,      ///< every target takes from several sources
  all_reduce,      ///< reduced; every target has the box of a source in the same place
  reduce_scatter,  ///< reduced; every target lies inside each source it takes from
  general,
};

/// "all_gather", ...
std::string_view name(TransferClass c);

/// Every copy that turns one placement of a tensor into another.
///
/// Without a reduction each element of each target comes from exactly one source: one in the same
/// place where there is one, else from the replica that has had the least to send so far, the
/// first in source order among equals. With a reduction every source that holds the element
/// contributes, in the order of sources, so that results do not depend on timing.
///
/// Immutable, thread-safe. Empty pieces are legal and take no copies.
///
///   // 8 rows in 4 blocks, to be held in 2 blocks
///   const auto plan = TransferPlan::reshard(rows_by_4, rows_by_2, {8, 3});
///   for (const Copy& copy : plan.copies()) ...
class TransferPlan {
 public:
  /// From one sharding to another; sources and targets are the boxes at each mesh position of
  /// `from` and `to`, in position order. Throws invalid_argument where a rank is not the shape's.
  static TransferPlan reshard(const Sharding& from, const Sharding& to, const Shape& shape);

  /// From any pieces to any pieces. Throws invalid_argument where ranks differ, or where an
  /// element of a target is in no source: the message names the target and a missing element.
  TransferPlan(std::vector<Piece> sources, std::vector<Piece> targets,
               Reduction reduction = Reduction::none);

  std::span<const Piece> sources() const { return sources_; }
  std::span<const Piece> targets() const { return targets_; }

  /// Ordered by target, then by source.
  std::span<const Copy> copies() const { return copies_; }

  /// The copies that fill one target. Requires 0 <= target < targets().size().
  std::span<const Copy> copies_to(std::int64_t target) const;

  Reduction reduction() const { return reduction_; }
  TransferClass classify() const;

  /// Elements that change place; those that stay are not counted.
  std::int64_t moved_elements() const;

 private:
  TransferPlan() = default;

  std::vector<Piece> sources_, targets_;
  std::vector<Copy> copies_;
  std::vector<std::size_t> first_copy_;  // per target, and one past the end
  Reduction reduction_ = Reduction::none;
};

/// Proves that the boxes cover every element of a tensor exactly once; boxes may be empty. Throws
/// invalid_argument naming an element that is missing or held twice, and the boxes that hold it.
void check_cover(std::span<const Box> boxes, const Shape& shape);

}  // namespace shardwise
