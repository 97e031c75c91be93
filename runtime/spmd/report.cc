#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "shardwise/runtime/spmd/detail/out_of_memory.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/detail/plans/modelled.h"
#include "shardwise/runtime/spmd/detail/plans/passed.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/shard/error.h"

namespace shardwise {
std::vector<CollectiveTotal> collectives(const PlannedProgram& planned) {
  std::map<CollectiveKind, CollectiveTotal> totals;
  for_each_move(passed(planned), [&](const CountedMove& one) {
    CollectiveTotal& total = totals.emplace(one.kind, CollectiveTotal{one.kind}).first->second;
    total.count += one.is_first ? one.in.times : 0;
    total.tensors += one.in.times;
    total.bytes += as_size(one.in.times) * one.move.bytes;
    total.wire_bytes += as_size(one.in.times) * one.wire_bytes;
  });
  std::vector<CollectiveTotal> list;
  list.reserve(totals.size());
  for (const auto& [kind, total] : totals) list.push_back(total);
  return list;
}

namespace {

/// The node that needs the moved tensor and, if its tensors asked for different cuts, the one kept.
std::string needed_by(const CountedMove& one) {
  const std::vector<Propagation::Conflict>& conflicts = one.in.propagation.conflicts;
  const auto at = std::find_if(conflicts.begin(), conflicts.end(), [&](const auto& conflict) {
    return conflict.node == one.move.consumer;
  });
  return at == conflicts.end() ? to_string(one.in.graph, one.move.consumer) : at->text;
}

}  // namespace

std::vector<Traffic> traffic(const PlannedProgram& planned) {
  std::map<std::tuple<CollectiveKind, AxisSet, std::string, bool>, Traffic> all;
  std::map<const Traffic*, std::size_t> largest;
  for_each_move(passed(planned), [&](const CountedMove& moved) {
    const NodeId id = moved.tensor();
    const bool is_asked_for = moved.is_asked_for();
    const std::string& scope = moved.scope();
    Traffic& one = all[{moved.kind, moved.move.axes, scope, is_asked_for}];
    if (one.tensors == 0) {
      one.kind = moved.kind;
      one.scope = scope;
      one.is_asked_for = is_asked_for;
      one.axes = moved.axes(planned.mesh);
    }
    one.tensors += moved.in.times;
    one.bytes += as_size(moved.in.times) * moved.move.bytes;
    one.wire_bytes += as_size(moved.in.times) * moved.wire_bytes;
    std::size_t& most = largest[&one];
    if (!one.largest.empty() && moved.wire_bytes <= most) return;
    most = moved.wire_bytes;
    one.largest = to_string(moved.in.graph, id);
    one.needed_by = needed_by(moved);
  });
  std::vector<Traffic> list;
  list.reserve(all.size());
  for (auto& [key, one] : all) list.push_back(std::move(one));
  std::stable_sort(list.begin(), list.end(), [](const Traffic& a, const Traffic& b) {
    return std::tuple(a.is_asked_for, b.wire_bytes) < std::tuple(b.is_asked_for, a.wire_bytes);
  });
  return list;
}

FullestStep fullest_step(const PlannedProgram& planned) {
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
  static const std::array<Machine, 6> all = {
      Machine{"tpu-v4", "TPU v4", 275e12, 1.2e12, 50e9, 1e-6, std::size_t{32} << 30,
              "Jouppi et al., arXiv 2304.01433, table 1: bf16; one ICI link; latency assumed"},
      Machine{
          "h100-80gb", "H100 SXM", 989e12, 3.35e12, 450e9, 3e-6, 80'000'000'000,
          "NVIDIA H100 data sheet: bf16 without sparsity; NVLink one way; DGX H100: 400 Gb/s of "
          "InfiniBand a GPU; latency assumed",
          8, 50e9},
      Machine{
          "h200", "H200 SXM", 989e12, 4.8e12, 450e9, 3e-6, 141'000'000'000,
          "NVIDIA H200 data sheet: bf16 without sparsity; NVLink one way; DGX H200: 400 Gb/s of "
          "InfiniBand a GPU; latency assumed",
          8, 50e9},
      Machine{
          "a100-80gb", "A100 SXM", 312e12, 2.039e12, 300e9, 3e-6, 80'000'000'000,
          "NVIDIA A100 data sheet: bf16 without sparsity; NVLink one way; DGX A100: 200 Gb/s of "
          "InfiniBand a GPU; latency assumed",
          8, 25e9},
      Machine{"tpu-v5e", "TPU v5e", 197e12, 819e9, 50e9, 1e-6, 16'000'000'000,
              "Google Cloud, TPU v5e: bf16; one ICI link; 6.4 Tb/s between pods of 256; latency "
              "assumed",
              256, 3.125e9},
      Machine{"tpu-v5p", "TPU v5p", 459e12, 2.765e12, 100e9, 1e-6, 95'000'000'000,
              "Google Cloud, TPU v5p: bf16; one ICI link; latency assumed"}};
  return all;
}

StepReport report(const Executable& executable, const Machine& machine) {
  const Graph& graph = executable.graph();
  const Mesh& mesh = executable.mesh();
  StepReport result{
      flops(executable), 0, executable.collectives(), executable.memory(0), machine, 0, 0};
  const detail::Modelled times =
      detail::modelled(graph, mesh, planned_program(executable).propagation,
                       planned_program(executable).partitioned, machine);
  result.device_flops = times.device_flops;
  result.compute_seconds = times.compute_seconds + times.memory_seconds;
  result.collective_seconds = times.wire_seconds;
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
