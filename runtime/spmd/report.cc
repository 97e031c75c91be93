#include "shardwise/runtime/spmd/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/spmd/detail/cost.h"
#include "shardwise/runtime/spmd/detail/partition.h"
#include "shardwise/runtime/spmd/detail/propagate.h"

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

}  // namespace

std::span<const Machine> machines() {
  static const std::array<Machine, 2> all = {
      Machine{"TPU v4", 275e12, 1.2e12, 50e9, 1e-6,
              "Jouppi et al., arXiv 2304.01433, table 1: bf16; one ICI link; latency assumed"},
      Machine{"H100 SXM", 989e12, 3.35e12, 450e9, 3e-6,
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
