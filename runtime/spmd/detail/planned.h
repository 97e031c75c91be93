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

/// The results of the passes over a graph on a mesh, one after the other. Immutable.
struct PlannedProgram {
  /// Errors of propagate() and of the ops pass through.
  PlannedProgram(std::shared_ptr<const Graph> recorded, const Mesh& on, const CompileOptions& how);

  /// The cut of each bound input, by Graph::inputs.
  std::vector<Cut> input_cuts() const;

  /// At the mesh position, with inputs and outputs.
  PlannedMemory memory(std::int64_t position) const;

  std::shared_ptr<const Graph> traced;
  std::shared_ptr<const Graph> graph;  ///< without results of scans that nothing uses
  Mesh mesh;
  CompileOptions options;
  Propagation propagation;
  PartitionedGraph partitioned;
  std::vector<FusedStep> steps;
  LoweredProgram lowered;
  MemoryPlan plan;
};

namespace detail {
struct ExecutableInternals {
  static const PlannedProgram& planned(const Executable& executable);
};
}  // namespace detail

/// The results of the passes for an executable, which keeps them.
inline const PlannedProgram& planned_program(const Executable& executable) {
  return detail::ExecutableInternals::planned(executable);
}

// Queries of Executable about a plan.
std::vector<CollectiveTotal> collectives(const PlannedProgram& planned);
std::vector<Traffic> traffic(const PlannedProgram& planned);
FullestStep fullest_step(const PlannedProgram& planned);

/// By node: its number in Graph::inputs; -1 for other nodes.
std::vector<std::int64_t> input_numbers(const Graph& graph);

/// The weight or optimizer state, by Graph::inputs, from which a node is computed element by
/// element, depth first through operand 0: in w - 0.1 * g it is w. `inputs` are input_numbers().
/// -1: none.
std::int64_t replaced_input(const Graph& graph, const std::vector<std::int64_t>& inputs,
                            NodeId node, const std::vector<bool>& may_be);

/// An output, and the number of the input that it replaces.
struct Replacement {
  NodeId output;
  std::size_t input;
};

/// The first output that may replace each replaced_input(), each input once.
std::vector<Replacement> replacements(const Graph& graph, std::vector<bool> may_be);

}  // namespace shardwise
