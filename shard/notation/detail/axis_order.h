#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shardwise/shard/notation/placements.h"
#include "shardwise/shard/partition_spec.h"
#include "shardwise/shard/sharding.h"

namespace shardwise::detail {

// Placements count a dim's axes in mesh order, with a split factor where a later axis is more
// major; a spec writes them major first. Where everything divides evenly the two can be told from
// each other, and this is how.

/// The axes that cut a dim, major first, as a spec writes them.
struct AxisOrder {
  PartitionSpec::Entry entry;

  /// Which split factor is no product of sizes, in words; its axis counts as the major one then.
  /// Empty where the order says what the placements say.
  std::string problem;
};

AxisOrder spec_order(const Placements& placements, std::size_t dim);

/// Fills `list` with one placement per mesh axis. Returns why there are none, in words, or "".
std::string placement_order(const Sharding& sharding, std::vector<Placement>& list);

}  // namespace shardwise::detail
