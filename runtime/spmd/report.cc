#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "shardwise/runtime/spmd/detail/control/lower_body.h"
#include "shardwise/runtime/spmd/detail/out_of_memory.h"
#include "shardwise/runtime/spmd/detail/partition.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/detail/plans/modelled.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

std::size_t most_received(const MovePlan& plan) {
  std::size_t most = 0;
  for (const DeviceBytes& bytes : plan.traffic) most = std::max(most, bytes.received);
  return most;
}

/// A program, or the body of a scan, as the passes have left it.
struct Passed {
  const Graph& graph;
  const Propagation& propagation;
  const PartitionedGraph& partitioned;
  const std::vector<FusedStep>& steps;
  const Program& program;
  const std::map<std::size_t, LoweredBodies>& bodies;
  std::int64_t times;  ///< that it runs
  std::string scope;   ///< of the scan
};

Passed passed(const Planned& planned) {
  return {*planned.graph,
          planned.propagation,
          planned.partitioned,
          planned.steps,
          planned.lowered.program,
          planned.lowered.bodies,
          1,
          ""};
}

/// One move of a run, and how often it happens.
struct CountedMove {
  const Passed& in;
  const PartitionedGraph::Move& move;
  CollectiveKind kind;
  std::size_t wire_bytes;
  bool is_first;  ///< of its bucket
};

// So that no sum over a program's moves is beyond 64 bits.
constexpr std::int64_t kMostRuns = std::int64_t{1} << 40;

Passed body_of(const Passed& in, const PartitionedGraph::Loop& loop, const PartitionedBody& body,
               const LoweredBody& lowered) {
  const std::string& scope = in.graph.scopes[as_size(in.graph.node(loop.node).scope)];
  const std::int64_t trips = lowered.body->trips;
  if (trips > 0 && in.times > kMostRuns / trips) {
    throw Error(ErrorCode::unsupported,
                fmt::format("count what loops do: found {} trips of a loop that runs {} times, "
                            "needed at most {} together",
                            trips, in.times, kMostRuns));
  }
  return {
      *body.graph,           *body.propagation, body.partitioned, lowered.steps,
      lowered.body->program, lowered.bodies,    in.times * trips, scope.empty() ? in.scope : scope};
}

/// What one run of a body sends; each is looked at once.
using WireBytes = std::map<const PartitionedGraph*, std::size_t>;
std::size_t wire_bytes(Passed passed, WireBytes& known);

/// Calls count(CountedMove) for each move of a run and of the bodies in it, slices without bytes
/// left out. Of a cond it is the branch that sends more.
template <class Count>
void for_each_move(const Passed& in, WireBytes& known, const Count& count) {
  const auto steps = in.program.steps();
  for (std::size_t s = 0; s < in.steps.size(); ++s) {
    const PartitionedGraph::Step& first = in.partitioned.steps[in.steps[s].steps.front()];
    if (const auto* const loop = std::get_if<PartitionedGraph::Loop>(&first)) {
      const LoweredBodies& bodies = in.bodies.at(s);
      const Passed body = body_of(in, *loop, *loop->body, *bodies.body);
      if (loop->otherwise != nullptr) {
        const Passed other = body_of(in, *loop, *loop->otherwise, *bodies.otherwise);
        const bool sends_more = wire_bytes(other, known) > wire_bytes(body, known);
        for_each_move(sends_more ? other : body, known, count);
      } else {
        for_each_move(body, known, count);
      }
    }
    const auto* const moves = std::get_if<Program::Move>(&steps[s]);
    if (moves == nullptr) continue;
    for (std::size_t part = 0; part < moves->parts.size(); ++part) {
      const auto& move =
          std::get<PartitionedGraph::Move>(in.partitioned.steps[in.steps[s].steps[part]]);
      const bool combines =
          move.kind == CollectiveKind::all_reduce || move.kind == CollectiveKind::reduce_scatter;
      const std::size_t wire = combines ? move.wire_bytes : most_received(moves->parts[part].plan);
      // Uneven parts may overlap several of those that they are cut from.
      const bool is_slice = move.kind == CollectiveKind::slice;
      if (is_slice && wire == 0) continue;
      count(CountedMove{in, move, is_slice ? CollectiveKind::general : move.kind, wire, part == 0});
    }
  }
}

template <class Count>
void for_each_move(const Passed& in, const Count& count) {
  WireBytes known;
  for_each_move(in, known, count);
}

std::size_t wire_bytes(Passed passed, WireBytes& known) {
  const auto found = known.find(&passed.partitioned);
  if (found != known.end()) return found->second;
  passed.times = 1;
  std::size_t bytes = 0;
  for_each_move(passed, known,
                [&](const CountedMove& one) { bytes += as_size(one.in.times) * one.wire_bytes; });
  return known[&passed.partitioned] = bytes;
}

}  // namespace

std::vector<CollectiveTotal> collectives(const Planned& planned) {
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

/// What needs the moved tensor, and, if tensors of it asked for different cuts, which was kept.
std::string needed_by(const CountedMove& one) {
  const std::vector<Propagation::Conflict>& conflicts = one.in.propagation.conflicts;
  const auto at = std::find_if(conflicts.begin(), conflicts.end(), [&](const auto& conflict) {
    return conflict.node == one.move.consumer;
  });
  return at == conflicts.end() ? to_string(one.in.graph, one.move.consumer) : at->text;
}

}  // namespace

std::vector<Traffic> traffic(const Planned& planned) {
  std::map<std::tuple<CollectiveKind, AxisSet, std::string, bool>, Traffic> all;
  std::map<const Traffic*, std::size_t> largest;
  for_each_move(passed(planned), [&](const CountedMove& moved) {
    const Graph& graph = moved.in.graph;
    const NodeId id = moved.in.partitioned.values[as_size(moved.move.from)].node;
    const bool is_asked_for = moved.kind == CollectiveKind::all_reduce ||
                              moved.kind == CollectiveKind::reduce_scatter ||
                              graph.node(id).mark.has_value();
    const std::string& own = graph.scopes[as_size(graph.node(moved.move.consumer).scope)];
    const std::string& scope = own.empty() ? moved.in.scope : own;
    Traffic& one = all[{moved.kind, moved.move.axes, scope, is_asked_for}];
    if (one.tensors == 0) {
      one.kind = moved.kind;
      one.scope = scope;
      one.is_asked_for = is_asked_for;
      for (std::size_t axis = 0; axis < planned.mesh.rank(); ++axis) {
        if (moved.move.axes >> axis & 1) one.axes.push_back(planned.mesh.axes()[axis].name);
      }
    }
    one.tensors += moved.in.times;
    one.bytes += as_size(moved.in.times) * moved.move.bytes;
    one.wire_bytes += as_size(moved.in.times) * moved.wire_bytes;
    std::size_t& most = largest[&one];
    if (!one.largest.empty() && moved.wire_bytes <= most) return;
    most = moved.wire_bytes;
    one.largest = to_string(graph, id);
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
  StepReport result{executable.flops(), 0, executable.collectives(), {}, machine, 0, 0};
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    const PlannedMemory memory = executable.memory(p);
    if (memory.peak_bytes > result.memory.peak_bytes) result.memory = memory;
  }
  const detail::Modelled times =
      detail::modelled(graph, mesh, executable.propagation(), executable.partitioned(), machine);
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
