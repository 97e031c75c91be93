#include "shardwise/runtime/spmd/detail/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <vector>

#include "shardwise/runtime/spmd/detail/out_of_memory.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/detail/plans/further.h"

namespace shardwise {
namespace {

// Totals for all attempts, so that advice on a large program takes seconds.
constexpr std::int64_t kMostNodes = 200'000, kMostPlans = 1'000;

constexpr const char* kNothing = "no marks were found with which it fits";

/// Each input alone.
std::vector<detail::InputGroup> single_inputs(const Graph& graph) {
  std::vector<detail::InputGroup> groups;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const MemoryKind kind = graph.inputs[i].kind;
    groups.push_back({{i},
                      graph.node(graph.inputs[i].node).type,
                      kind != MemoryKind::parameter && kind != MemoryKind::optimizer});
  }
  return groups;
}

std::string marks_text(const detail::Trials& trials, const detail::FurtherMarks& best) {
  if (best.all_weights_over) {
    return fmt::format("all weights and optimizer state cut over {} too",
                       trials.mesh().axes()[*best.all_weights_over].name);
  }
  std::string text;
  for (const auto& [group, spec] : best.marks) {
    text += fmt::format("{}\"{}\" cut as {}", text.empty() ? "" : " and ",
                        trials.graph().inputs[group].label, spec.to_string());
  }
  return text;
}

std::string advice(const Graph& graph, const Mesh& mesh, const CompileOptions& options,
                   std::size_t capacity_bytes) {
  const auto peak = [&](const detail::Trials&, const detail::Marks& marks) {
    auto other = std::make_shared<Graph>(graph);
    CompileOptions changed = options;
    changed.moves = MovePlans::left_out;
    for (const auto& [input, spec] : marks) {
      other->node(graph.inputs[input].node).mark = spec;
      if (input < changed.input_specs.size()) changed.input_specs[input] = spec;
    }
    const std::size_t bytes = PlannedProgram(other, mesh, changed).memory(0).peak_bytes;
    return detail::Outcome{true, {.peak_bytes = bytes}, bytes - std::min(bytes, capacity_bytes)};
  };
  detail::Trials trials(std::make_shared<const Graph>(graph), mesh, {.threads = 1},
                        single_inputs(graph), detail::trials_within(kMostNodes, kMostPlans, graph),
                        peak);
  const Propagation now = propagate(graph, mesh);
  std::vector<Cut> cuts;
  for (const GraphInput& input : graph.inputs) cuts.push_back(now.cuts[as_size(input.node)]);
  const auto best = detail::cut_further(trials, cuts, detail::Goal::first_that_fits);
  if (!best) return kNothing;
  return fmt::format("{} with {}: peak {}",
                     best->outcome.excess_bytes == 0 ? "it fits" : "the least found is",
                     marks_text(trials, *best), detail::mebibytes(best->outcome.cost.peak_bytes));
}

}  // namespace

std::string suggest(const Graph& graph, const Mesh& mesh, const CompileOptions& options,
                    std::size_t capacity_bytes) {
  try {
    return advice(graph, mesh, options, capacity_bytes);
  } catch (const std::exception&) {
    return kNothing;
  }
}

}  // namespace shardwise
