#include "shardwise/runtime/spmd/plans.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/detail/plans/modelled.h"

namespace shardwise {

std::string_view PlanCost::bound() const {
  const double most = std::max({compute_seconds, memory_seconds, wire_seconds});
  if (most == wire_seconds && most > 0) return "wire";
  return most == compute_seconds ? "compute" : "memory";
}

PlanCost plan_cost(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                   const std::optional<Machine>& machine) {
  const std::vector<bool> may_donate(graph->inputs.size(), true);
  const PlannedProgram planned(
      graph, mesh,
      {.moves = MovePlans::left_out, .attention = Attention::fused, .may_donate = may_donate});
  const detail::Modelled times =
      detail::modelled(*planned.graph, mesh, planned.propagation, planned.partitioned,
                       machine.value_or(machines().front()));
  PlanCost cost{.peak_bytes = planned.memory(0).peak_bytes,
                .wire_bytes = static_cast<std::size_t>(times.wire_bytes)};
  if (machine) {
    cost.compute_seconds = times.compute_seconds;
    cost.memory_seconds = times.memory_seconds;
    cost.wire_seconds = times.wire_seconds;
  }
  return cost;
}

StorageNeeds storage_needs(const Executable& executable) {
  const Graph& graph = executable.graph();
  StorageNeeds needs;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const ArraySpec spec = executable.input_spec(i);
    const std::size_t bytes = num_bytes(spec.shape, size_bytes(spec.dtype));
    const MemoryKind kind = graph.inputs[i].kind;
    if (kind == MemoryKind::loader) needs.input_bytes += bytes;
    if (kind == MemoryKind::parameter) needs.parameter_bytes += bytes;
    if (kind == MemoryKind::optimizer) needs.optimizer_bytes += bytes;
    if (kind != MemoryKind::parameter && kind != MemoryKind::optimizer) continue;
    // Tiles are cut by ceil: the first is the largest.
    needs.device_bytes +=
        num_bytes(spec.sharding.box_at(0, spec.shape).shape(), size_bytes(spec.dtype));
  }
  return needs;
}

std::vector<std::string> mark_axes(const Graph& graph) {
  std::vector<std::string> axes;
  for (const Node& node : graph.nodes) {
    if (!node.mark) continue;
    for (const PartitionSpec::Entry& entry : node.mark->entries()) {
      for (const std::string& axis : entry) {
        if (std::ranges::find(axes, axis) == axes.end()) axes.push_back(axis);
      }
    }
  }
  return axes;
}

}  // namespace shardwise
