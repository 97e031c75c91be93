#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/spmd/detail/cost.h"
#include "shardwise/runtime/spmd/detail/out_of_memory.h"
#include "shardwise/runtime/spmd/detail/partition.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise {
namespace {

double part_bytes(const Graph& graph, const Mesh& mesh, const PartitionedGraph::Value& value) {
  const TensorType& type = graph.node(value.node).type;
  return part_elements(type.shape, value.cut, mesh) * static_cast<double>(size_bytes(type.dtype));
}

/// Multiplications and additions of one device.
double part_flops(const Graph& graph, const Mesh& mesh, const PartitionedGraph& partitioned,
                  const PartitionedGraph::Compute& compute, const FactorRule& rule) {
  if (!row(graph.node(compute.node).op).traits().is_product) return 0;
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

std::size_t most_received(const MovePlan& plan) {
  std::size_t most = 0;
  for (const DeviceBytes& bytes : plan.traffic) most = std::max(most, bytes.received);
  return most;
}

/// Calls count(move, kind, wire bytes, is first of its bucket) for each move of a run, slices
/// without bytes left out.
template <class Count>
void for_each_move(const Planned& planned, const Count& count) {
  const auto steps = planned.lowered.program.steps();
  for (std::size_t s = 0; s < planned.steps.size(); ++s) {
    const auto* const moves = std::get_if<Program::Move>(&steps[s]);
    if (moves == nullptr) continue;
    for (std::size_t part = 0; part < moves->parts.size(); ++part) {
      const auto& move =
          std::get<PartitionedGraph::Move>(planned.partitioned.steps[planned.steps[s].steps[part]]);
      const bool combines =
          move.kind == CollectiveKind::all_reduce || move.kind == CollectiveKind::reduce_scatter;
      const std::size_t wire = combines ? move.wire_bytes : most_received(moves->parts[part].plan);
      // Uneven parts may overlap several of those that they are cut from.
      const bool is_slice = move.kind == CollectiveKind::slice;
      if (is_slice && wire == 0) continue;
      count(move, is_slice ? CollectiveKind::general : move.kind, wire, part == 0);
    }
  }
}

}  // namespace

std::vector<CollectiveTotal> collectives(const Planned& planned) {
  std::map<CollectiveKind, CollectiveTotal> totals;
  for_each_move(planned, [&](const PartitionedGraph::Move& move, CollectiveKind kind,
                             std::size_t wire, bool is_first) {
    CollectiveTotal& total = totals.emplace(kind, CollectiveTotal{kind}).first->second;
    total.count += is_first ? 1 : 0;
    ++total.tensors;
    total.bytes += move.bytes;
    total.wire_bytes += wire;
  });
  std::vector<CollectiveTotal> list;
  list.reserve(totals.size());
  for (const auto& [kind, total] : totals) list.push_back(total);
  return list;
}

std::vector<Traffic> traffic(const Planned& planned) {
  const Graph& graph = *planned.graph;
  std::map<std::tuple<CollectiveKind, AxisSet, std::int32_t, bool>, Traffic> all;
  std::map<const Traffic*, std::size_t> largest;
  const std::vector<Propagation::Conflict>& conflicts = planned.propagation.conflicts;
  for_each_move(planned, [&](const PartitionedGraph::Move& move, CollectiveKind kind,
                             std::size_t wire, bool) {
    const NodeId id = planned.partitioned.values[as_size(move.from)].node;
    const Node& moved = graph.node(id);
    const bool is_asked_for = kind == CollectiveKind::all_reduce ||
                              kind == CollectiveKind::reduce_scatter || moved.mark.has_value();
    const std::int32_t scope = graph.node(move.consumer).scope;
    Traffic& one = all[{kind, move.axes, scope, is_asked_for}];
    if (one.tensors == 0) {
      one.kind = kind;
      one.scope = graph.scopes[as_size(scope)];
      one.is_asked_for = is_asked_for;
      for (std::size_t axis = 0; axis < planned.mesh.rank(); ++axis) {
        if (move.axes >> axis & 1) one.axes.push_back(planned.mesh.axes()[axis].name);
      }
    }
    ++one.tensors;
    one.bytes += move.bytes;
    one.wire_bytes += wire;
    std::size_t& most = largest[&one];
    if (!one.largest.empty() && wire <= most) return;
    most = wire;
    one.largest = to_string(graph, id);
    const auto at = std::find_if(conflicts.begin(), conflicts.end(), [&](const auto& conflict) {
      return conflict.node == move.consumer;
    });
    one.needed_by = at == conflicts.end() ? to_string(graph, move.consumer) : at->text;
  });
  std::vector<Traffic> list;
  list.reserve(all.size());
  for (auto& [key, one] : all) list.push_back(std::move(one));
  std::stable_sort(list.begin(), list.end(), [](const Traffic& a, const Traffic& b) {
    return std::tuple(a.is_asked_for, b.wire_bytes) < std::tuple(b.is_asked_for, a.wire_bytes);
  });
  return list;
}

FullestStep fullest_step(const Planned& planned) {
  const Graph& graph = *planned.graph;
  const Program& program = planned.lowered.program;
  const detail::Fullest at = detail::fullest(graph, planned.lowered, planned.plan);
  FullestStep result;
  if (at.step < program.steps().size()) {
    const Program::Step& step = program.steps()[at.step];
    result.name = name(step);
    visit_step(
        step, [](Program::ValueId) {},
        [&](Program::ValueId made) {
          const NodeId node = planned.lowered.nodes[as_size(made)];
          result.scope = graph.scopes[as_size(graph.node(node).scope)];
        });
  }
  for (const detail::Fullest::Held& held : at.held) {
    const Program::Value& value = program.value(held.value);
    result.held.push_back({value.label,
                           held.kind,
                           graph.node(planned.lowered.nodes[as_size(held.value)]).backward,
                           {value.dtype, value.shape},
                           value.layout.short_text(),
                           held.bytes});
  }
  std::stable_sort(result.held.begin(), result.held.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return result;
}

std::span<const Machine> machines() {
  static const std::array<Machine, 2> all = {
      Machine{"tpu-v4", "TPU v4", 275e12, 1.2e12, 50e9, 1e-6, std::size_t{32} << 30,
              "Jouppi et al., arXiv 2304.01433, table 1: bf16; one ICI link; latency assumed"},
      Machine{"h100-80gb", "H100 SXM", 989e12, 3.35e12, 450e9, 3e-6, 80'000'000'000,
              "NVIDIA H100 data sheet: bf16 without sparsity; NVLink one way; latency assumed"}};
  return all;
}

StepReport report(const Executable& executable, const Machine& machine) {
  const Graph& graph = executable.graph();
  const Mesh& mesh = executable.mesh();
  const PartitionedGraph& partitioned = executable.partitioned();
  StepReport result{executable.flops(), 0, executable.collectives(), {}, machine, 0, 0};
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    const PlannedMemory memory = executable.memory(p);
    if (memory.peak_bytes > result.memory.peak_bytes) result.memory = memory;
  }
  for (const PartitionedGraph::Step& step : partitioned.steps) {
    if (const auto* const compute = std::get_if<PartitionedGraph::Compute>(&step)) {
      const double flops = part_flops(graph, mesh, partitioned, *compute,
                                      executable.propagation().rules[as_size(compute->node)]);
      double bytes = part_bytes(graph, mesh, partitioned.values[as_size(compute->result)]);
      for (const auto operand : compute->operands) {
        bytes += part_bytes(graph, mesh, partitioned.values[as_size(operand)]);
      }
      // Elementwise chains are fused: what they pass on stays in the cache.
      if (is_elementwise(graph.node(compute->node).op)) bytes = 0;
      result.device_flops += flops;
      result.compute_seconds +=
          std::max(flops / machine.flops_per_second, bytes / machine.memory_bytes_per_second);
    } else {
      const auto& move = std::get<PartitionedGraph::Move>(step);
      if (move.wire_bytes == 0) continue;
      const double hops = static_cast<double>(ways(move.axes, mesh) - 1);
      result.collective_seconds +=
          hops * machine.link_seconds +
          static_cast<double>(move.wire_bytes) / machine.link_bytes_per_second;
    }
  }
  return result;
}

std::string to_string(const StepReport& report) {
  std::string text = fmt::format("model       {:.3f} GFLOP, {:.3f} on one device\n",
                                 report.model_flops * 1e-9, report.device_flops * 1e-9);
  for (const CollectiveTotal& total : report.collectives) {
    text += fmt::format("{:<14} {:>4} ({} tensors)  {} bytes, {} on the wire\n", name(total.kind),
                        total.count, total.tensors, total.bytes, total.wire_bytes);
  }
  text += fmt::format("memory      {} bytes at the peak:", report.memory.peak_bytes);
  for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
    if (report.memory.by_kind[kind] == 0) continue;
    text += fmt::format(" {} {}", name(static_cast<MemoryKind>(kind)), report.memory.by_kind[kind]);
  }
  return text + fmt::format("\nmodelled    {:.3f} ms computing, {:.3f} ms collectives on {} ({})\n",
                            report.compute_seconds * 1e3, report.collective_seconds * 1e3,
                            report.machine.name, report.machine.source);
}

}  // namespace shardwise
