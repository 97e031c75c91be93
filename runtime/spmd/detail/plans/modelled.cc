#include "shardwise/runtime/spmd/detail/plans/modelled.h"

#include <algorithm>
#include <cstdint>
#include <variant>

#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/spmd/detail/cost.h"

namespace shardwise::detail {
namespace {

double part_bytes(const Graph& graph, const Mesh& mesh, const PartitionedGraph::Value& value) {
  const TensorType type = type_of(graph, value);
  return part_elements(type.shape, value.cut, mesh) * static_cast<double>(size_bytes(type.dtype));
}

/// Multiplications and additions of one device.
double part_flops(const Graph& graph, const Mesh& mesh, const PartitionedGraph& partitioned,
                  const PartitionedGraph::Compute& compute, const FactorRule& rule) {
  if (compute.only_converts || !row(graph.node(compute.node).op).traits().is_product) return 0;
  FactorCut cut(rule.factors.size());
  for (std::size_t i = 0; i < compute.operands.size(); ++i) {
    project(partitioned.values[as_size(compute.operands[i])].cut, rule.operands[i], rule.factors,
            mesh, cut);
  }
  project(partitioned.values[as_size(compute.result)].cut, rule.result, rule.factors, mesh, cut);
  double flops = 2;
  for (std::size_t f = 0; f < rule.factors.size(); ++f) {
    flops *= static_cast<double>(tile_extent(rule.factors[f].size, cut[f], mesh));
  }
  return flops;
}

/// The number of devices that share a move along these axes with position 0, among the first
/// positions of a mesh.
std::int64_t among_first(std::int64_t positions, AxisSet axes, const Mesh& mesh) {
  std::int64_t found = 0, below = ways(axes, mesh);
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {  // the slowest first
    if ((axes >> axis & 1) == 0) continue;
    const std::int64_t size = mesh.axes()[axis].size, stride = mesh.stride(axis);
    if (positions >= size * stride) return found + below;
    below /= size;
    found += positions / stride * below;
    positions %= stride;
  }
  return found + (positions > 0 ? 1 : 0);
}

/// A ring is as fast as its slowest link. Over several nodes there is a ring for each participating
/// device of a node, and each leaves by a device of its own, as in NCCL.
double wire_seconds(const PartitionedGraph::Move& move, const Mesh& mesh, const Machine& machine) {
  const std::int64_t all = ways(move.axes, mesh);
  const auto bytes = static_cast<double>(move.wire_bytes);
  double seconds = bytes / machine.link_bytes_per_second;
  const std::int64_t of_node =
      machine.node_devices == 0 ? all : among_first(machine.node_devices, move.axes, mesh);
  if (of_node < all) {
    double leaving = bytes;
    if (move.kind == CollectiveKind::all_to_all) {
      leaving *= static_cast<double>(all - of_node) / static_cast<double>(all - 1);
    } else if (move.kind == CollectiveKind::all_reduce || move.kind == CollectiveKind::all_gather ||
               move.kind == CollectiveKind::reduce_scatter) {
      leaving /= static_cast<double>(of_node);
    }
    seconds = std::max(seconds, leaving / machine.node_bytes_per_second);
  }
  return static_cast<double>(all - 1) * machine.link_seconds + seconds;
}

void add_steps(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
               const PartitionedGraph& partitioned, const Machine& machine, double times,
               Modelled& result);

/// Adds the costs of a step that runs this often. `within` by node: true if it stays on the chip.
void add_step(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
              const PartitionedGraph& partitioned, const PartitionedGraph::Step& step,
              const std::vector<bool>& within, const Machine& machine, double times,
              Modelled& result) {
  if (const auto* const compute = std::get_if<PartitionedGraph::Compute>(&step)) {
    const double flops =
        part_flops(graph, mesh, partitioned, *compute, propagation.rules[as_size(compute->node)]);
    double bytes = 0;
    const auto move = [&](PartitionedGraph::ValueId id) {
      const PartitionedGraph::Value& value = partitioned.values[as_size(id)];
      if (within.empty() || !within[as_size(value.node)]) bytes += part_bytes(graph, mesh, value);
    };
    move(compute->result);
    std::ranges::for_each(compute->operands, move);
    // Elementwise chains are fused: their intermediate values stay in the cache.
    if (compute->only_converts || is_elementwise(graph.node(compute->node).op)) bytes = 0;
    result.device_flops += times * flops;
    const double computing = flops / machine.flops_per_second,
                 reading = bytes / machine.memory_bytes_per_second;
    (computing < reading ? result.memory_seconds : result.compute_seconds) +=
        times * std::max(computing, reading);
  } else if (const auto* const loop = std::get_if<PartitionedGraph::Loop>(&step)) {
    const auto with = [&](const PartitionedBody& body) {
      Modelled more = result;
      add_steps(*body.graph, mesh, *body.propagation, body.partitioned, machine,
                times * static_cast<double>(trips(graph, *loop)), more);
      return more;
    };
    Modelled most = with(*loop->body);
    if (loop->otherwise != nullptr) {
      const Modelled other = with(*loop->otherwise);
      if (other.seconds() > most.seconds()) most = other;
    }
    result = most;
  } else {
    const auto& move = std::get<PartitionedGraph::Move>(step);
    if (move.wire_bytes == 0) return;
    result.wire_bytes += times * static_cast<double>(move.wire_bytes);
    result.wire_seconds += times * wire_seconds(move, mesh, machine);
  }
}

/// The steps of a program, or of the body of a scan.
void add_steps(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
               const PartitionedGraph& partitioned, const Machine& machine, double times,
               Modelled& result) {
  const std::vector<bool> within = within_kernels(graph);
  for (const PartitionedGraph::Step& step : partitioned.steps) {
    add_step(graph, mesh, propagation, partitioned, step, within, machine, times, result);
  }
}

}  // namespace

Modelled modelled(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
                  const PartitionedGraph& partitioned, const Machine& machine) {
  Modelled result;
  add_steps(graph, mesh, propagation, partitioned, machine, 1, result);
  return result;
}

Modelled modelled_step(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
                       const PartitionedGraph& partitioned, std::size_t step,
                       const std::vector<bool>& within, const Machine& machine) {
  Modelled result;
  add_step(graph, mesh, propagation, partitioned, partitioned.steps[step], within, machine, 1,
           result);
  return result;
}

}  // namespace shardwise::detail
