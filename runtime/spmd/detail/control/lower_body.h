#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/program/detail/loop.h"
#include "shardwise/runtime/spmd/detail/fuse.h"
#include "shardwise/runtime/spmd/detail/lower.h"
#include "shardwise/runtime/spmd/detail/memory_plan.h"
#include "shardwise/runtime/spmd/detail/partition.h"

namespace shardwise {

/// The body of a scan, planned by itself.
struct LoweredBody {
  std::vector<FusedStep> steps;
  MemoryPlan plan;
  std::shared_ptr<const LoopBody> body;
  std::map<std::size_t, std::shared_ptr<const LoweredBody>> bodies;  ///< by step that is a loop

  /// Memory that a device needs for the loop.
  std::size_t activation_bytes = 0, collective_bytes = 0;
};

/// `scan`: the node that the body is of.
LoweredBody lower_body(const Node& scan, const PartitionedBody& body, const Mesh& mesh,
                       NanCheck nan_check, MovePlans move_plans);

}  // namespace shardwise
