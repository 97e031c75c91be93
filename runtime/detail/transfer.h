#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/runtime/device.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::detail {

/// A plan and the memory that its pieces lie in: the one way in which the runtime moves data
/// between devices. Does not own the memory. Immutable once made.
struct Transfer {
  TransferPlan plan;
  DType dtype;
  std::vector<ConstBoxView> sources;  ///< per source of the plan; contains the piece's box
  std::vector<BoxView> targets;       ///< per target of the plan; contains the piece's box
};

/// Carries out the copies that fill one target, reducing where the plan does, and counts on the
/// devices what passes between them. Different targets may be filled at the same time. A source
/// that is the target's own memory is left as it is.
///
/// Requires that the copies of a reducing plan that fill one target have equal or disjoint boxes,
/// and those with equal boxes equal source views; so it is where the sources are tiles of
/// shardings.
void fill_target(const Transfer& transfer, std::int64_t target, const Devices& devices);

}  // namespace shardwise::detail
