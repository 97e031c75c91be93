#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/shard/plan/packed_boxes.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::detail {

/// Sources grouped by the box that they hold: the sources of a group hold the same box.
struct Replicas {
  std::vector<std::uint32_t> first;    // in members, per group, and one past the end
  std::vector<std::uint32_t> members;  // numbers of sources

  std::size_t num_groups() const { return first.size() - 1; }
  std::size_t size_of(std::size_t group) const { return first[group + 1] - first[group]; }
  std::span<const std::uint32_t> of(std::size_t group) const {
    return std::span(members).subspan(first[group], size_of(group));
  }
};

/// The groups of the non-empty boxes, in ascending order of their first members.
Replicas group_replicas(const PackedBoxes& boxes);

/// Chooses between the members of a group: see TransferPlan. Each choice depends on earlier ones.
/// O(log replicas) per choice.
///
/// Thread-compatible.
class ReplicaChooser {
 public:
  /// `places` is per source. Keeps `places` and `topology`, which must outlive it. Throws as
  /// Topology::site().
  ReplicaChooser(Replicas replicas, std::span<const DeviceId> places, const Topology& topology);

  /// The member that a device takes from. Valid until the next count_sent().
  struct Choice {
    Link link;
    std::int64_t sent;  ///< elements so far
    std::uint32_t source;
    std::uint32_t slot;  ///< in members
  };
  Choice choose(std::size_t group, DeviceId place, const Topology::Site& site) const;

  /// Records that the choice is taken. Elements that stay in their place do not count as sent.
  void count_sent(std::size_t group, const Choice& choice, std::int64_t elements);

  /// Members are sorted by slice, process, place and number, so that near ones are neighbours.
  const Replicas& replicas() const { return replicas_; }

 private:
  struct Home {
    Topology::Site site;
    DeviceId place;

    auto operator<=>(const Home&) const = default;
  };

  Home home(std::size_t slot) const;
  bool freer(std::uint32_t slot, std::uint32_t other) const;
  std::uint32_t freest(std::size_t group, std::size_t first, std::size_t last) const;

  Replicas replicas_;
  std::span<const DeviceId> places_;
  const Topology& topology_;
  std::vector<std::int64_t> sent_;  // per slot
  // Per group of n a tree of 2n slots: n leaves, and before them at slot i the less busy of slots
  // 2i and 2i + 1.
  std::vector<std::uint32_t> trees_;
};

}  // namespace shardwise::detail
