#include "shardwise/runtime/spmd/detail/planned.h"

#include <utility>

namespace shardwise {

Planned::Planned(std::shared_ptr<const Graph> traced, const Mesh& on, const CompileOptions& how,
                 MovePlans moves)
    : graph(std::move(traced)),
      mesh(on),
      options(how),
      propagation(propagate(*graph, mesh)),
      partitioned(partition(*graph, mesh, propagation, input_cuts(), options.partition)),
      steps(fuse(*graph, partitioned, options.nan_check)),
      lowered(lower(graph, mesh, partitioned, steps, options.nan_check, moves)),
      plan(plan_memory(*graph, lowered, options.may_donate)) {}

std::vector<Cut> Planned::input_cuts() const {
  std::vector<Cut> cuts;
  for (std::size_t i = 0; i < graph->inputs.size(); ++i) {
    const NodeId node = graph->inputs[i].node;
    const bool bound = i < options.input_specs.size() && options.input_specs[i].has_value();
    cuts.push_back(bound
                       ? to_cut(*options.input_specs[i], mesh, graph->node(node).type.shape.size())
                       : propagation.cuts[as_size(node)]);
  }
  return cuts;
}

PlannedMemory Planned::memory(std::int64_t position) const {
  return planned_memory(*graph, lowered, plan, position);
}

}  // namespace shardwise
