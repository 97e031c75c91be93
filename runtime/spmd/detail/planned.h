#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shardwise/runtime/spmd/detail/fuse.h"
#include "shardwise/runtime/spmd/detail/lower.h"
#include "shardwise/runtime/spmd/detail/memory_plan.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise {

/// What the passes make of a graph on a mesh, one after the other. Immutable.
struct Planned {
  /// Throws what propagate() and the ops throw.
  Planned(std::shared_ptr<const Graph> traced, const Mesh& on, const CompileOptions& how,
          MovePlans moves);

  /// By Graph::inputs: how each is bound.
  std::vector<Cut> input_cuts() const;

  /// At the mesh position, with inputs and outputs.
  PlannedMemory memory(std::int64_t position) const;

  std::shared_ptr<const Graph> graph;
  Mesh mesh;
  CompileOptions options;
  Propagation propagation;
  PartitionedGraph partitioned;
  std::vector<FusedStep> steps;
  LoweredProgram lowered;
  MemoryPlan plan;
};

}  // namespace shardwise
