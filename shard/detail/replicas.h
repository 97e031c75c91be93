#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/shard/transfer_plan.h"

namespace shardwise::detail {

/// Sources that hold the same box, by number.
struct Replicas {
  Box box;
  std::vector<std::int64_t> sources;  ///< ascending; never empty
};

/// The distinct boxes of the sources that are not empty.
std::vector<Replicas> group_replicas(std::span<const Piece> sources);

/// Decides which source each element of each target comes from; see TransferPlan. What is chosen
/// for one target adds to what its sources have sent, and so bears on the next choice.
///
/// Thread-compatible.
class ReplicaChooser {
 public:
  /// Keeps the spans: valid as long as the pieces.
  ReplicaChooser(std::span<const Piece> sources, std::span<const Piece> targets,
                 std::vector<Replicas> groups);

  /// Appends the copies that fill a target, by source. `hits` are the groups that overlap it.
  /// Requires that each element of the target is in exactly one of them.
  void choose_tiled(std::int64_t target, std::span<const std::int64_t> hits,
                    std::vector<Copy>& copies);

  /// The same where groups may overlap. Throws invalid_argument where an element is in none.
  void choose(std::int64_t target, std::span<const std::int64_t> hits, std::vector<Copy>& copies);

  /// Appends a copy from every source that holds an element of the target. Throws as choose().
  void take_all(std::int64_t target, std::span<const std::int64_t> hits,
                std::vector<Copy>& copies) const;

 private:
  /// A source's place and group; sorted, so as to find a group's source at a place.
  struct Resident {
    DeviceId place;
    std::int64_t group, source;

    auto operator<=>(const Resident&) const = default;
  };

  const Piece& target_at(std::int64_t target) const;
  const Box& box_of(std::int64_t group) const;
  /// What the hits hold of the target, one box for each.
  std::vector<Box> parts(std::int64_t target, std::span<const std::int64_t> hits) const;

  /// The group's source at this place; else the one that has sent least.
  std::int64_t best_source(std::int64_t group, DeviceId place) const;
  void add_copy(std::int64_t group, std::int64_t target, const Box& box, std::vector<Copy>& copies);

  std::span<const Piece> sources_, targets_;
  std::vector<Replicas> groups_;    // each one's sources are a heap with the least busy on top
  std::vector<std::int64_t> sent_;  // elements, per source
  std::vector<Resident> residents_;
};

}  // namespace shardwise::detail
