#include "shardwise/runtime/spmd/detail/planned.h"

#include <algorithm>
#include <utility>

#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/spmd/detail/control/live_results.h"

namespace shardwise {
namespace {

/// The number of operations searched for the weight or optimizer state that a result replaces.
constexpr int kMostReplacedVisits = 64;

}  // namespace

PlannedProgram::PlannedProgram(std::shared_ptr<const Graph> recorded, const Mesh& on,
                               const CompileOptions& how)
    : traced(std::move(recorded)),
      graph(without_unused_results(
          how.attention == Attention::fused ? traced : with_written_attention(traced))),
      mesh(on),
      options(how),
      propagation(propagate(*graph, mesh)),
      partitioned(partition(*graph, mesh, propagation, input_cuts(), options.partition)),
      steps(fuse(*graph, partitioned, options.nan_check)),
      lowered(lower(graph, mesh, partitioned, steps, options.nan_check, options.moves)),
      plan(plan_memory(*graph, lowered, options.may_donate)) {}

std::vector<Cut> PlannedProgram::input_cuts() const {
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

PlannedMemory PlannedProgram::memory(std::int64_t position) const {
  return planned_memory(*graph, lowered, plan, position);
}

std::vector<std::int64_t> input_numbers(const Graph& graph) {
  std::vector<std::int64_t> numbers(graph.nodes.size(), -1);
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    numbers[as_size(graph.inputs[i].node)] = static_cast<std::int64_t>(i);
  }
  return numbers;
}

std::int64_t replaced_input(const Graph& graph, const std::vector<std::int64_t>& inputs,
                            NodeId node, const std::vector<bool>& may_be) {
  std::vector<NodeId> open{node};
  for (int visits = 0; !open.empty() && visits < kMostReplacedVisits; ++visits) {
    const NodeId id = open.back();
    open.pop_back();
    const std::int64_t input = inputs[as_size(id)];
    if (input >= 0 && may_be[as_size(input)] && graph.node(id).type == graph.node(node).type) {
      return input;
    }
    if (!keeps_places(graph.node(id).op)) continue;
    const std::vector<NodeId>& operands = graph.node(id).operands;
    open.insert(open.end(), operands.rbegin(), operands.rend());
  }
  return -1;
}

std::vector<Replacement> replacements(const Graph& graph, std::vector<bool> may_be) {
  const std::vector<std::int64_t> numbers = input_numbers(graph);
  std::vector<Replacement> all;
  for (const NodeId output : graph.outputs) {
    const std::int64_t old = replaced_input(graph, numbers, output, may_be);
    if (old < 0) continue;
    may_be[as_size(old)] = false;
    all.push_back({output, as_size(old)});
  }
  return all;
}

void mark_inputs(Graph& graph, std::span<const std::optional<PartitionSpec>> marks) {
  std::vector<bool> may_be;
  for (const GraphInput& input : graph.inputs) {
    may_be.push_back(input.kind == MemoryKind::parameter || input.kind == MemoryKind::optimizer);
  }
  for (const auto& [output, input] : replacements(graph, std::move(may_be))) {
    std::optional<PartitionSpec>& mark = graph.node(output).mark;
    const bool is_its_own = mark && mark != graph.node(graph.inputs[input].node).mark;
    if (input < marks.size() && marks[input] && !is_its_own) mark = marks[input];
  }
  for (std::size_t i = 0; i < std::min(marks.size(), graph.inputs.size()); ++i) {
    if (marks[i]) graph.node(graph.inputs[i].node).mark = marks[i];
  }
}

}  // namespace shardwise
