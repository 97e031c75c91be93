#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shardwise/shard/notation/placements.h"
#include "shardwise/shard/partition_spec.h"
#include "shardwise/shard/sharding.h"

namespace shardwise::detail {

// Placements list a dim's axes in mesh order, with a split factor if a later axis is more major; a
// spec lists them major first. If everything divides evenly, either order follows from the other.
// These functions derive it.

/// The axes that cut a dim, major first, as a spec writes them.
struct AxisOrder {
  PartitionSpec::Entry entry;

  /// Names the split factor that is no product of sizes; its axis then counts as the major one.
  /// Empty if the order says the same as the placements.
  std::string problem;
};

AxisOrder spec_order(const Placements& placements, std::size_t dim);

/// Fills `list` with one placement per mesh axis. Returns "", or the reason why it cannot.
std::string placement_order(const Sharding& sharding, std::vector<Placement>& list);

}  // namespace shardwise::detail
