#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/program/detail/loop.h"
#include "shardwise/runtime/spmd/detail/fuse.h"
#include "shardwise/runtime/spmd/detail/lower.h"
#include "shardwise/runtime/spmd/detail/memory_plan.h"
#include "shardwise/runtime/spmd/detail/partition.h"

namespace shardwise {

/// A body of a scan or cond, planned separately.
struct LoweredBody {
  std::vector<FusedStep> steps;
  MemoryPlan plan;
  std::shared_ptr<const LoopBody> body;
  std::map<std::size_t, LoweredBodies> bodies;  ///< by step that is a loop

  /// Memory that a device needs for the loop.
  std::size_t region_bytes = 0;
};

/// The schedule of all steps; an empty one, at no cost, without moves.
Schedule made_schedule(const Program& program, const MemoryReuse& reuse, MovePlans move_plans);

LoweredBody lower_body(const detail::BodyParts& parts, const PartitionedBody& body,
                       const Mesh& mesh, NanCheck nan_check, MovePlans move_plans);

}  // namespace shardwise
