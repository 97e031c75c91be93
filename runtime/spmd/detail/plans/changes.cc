#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "shardwise/runtime/spmd/detail/plans/batch.h"
#include "shardwise/runtime/spmd/detail/plans/further.h"
#include "shardwise/runtime/spmd/detail/plans/groups.h"
#include "shardwise/runtime/spmd/detail/plans/recompute.h"
#include "shardwise/runtime/spmd/detail/plans/trials.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/runtime/spmd/plans.h"

namespace shardwise {
namespace {

using detail::Outcome;
using detail::planned_outcome;

// Number of sets of marks that are tried: more than there are.
constexpr std::int64_t kMostMarks = 1'000;

// Number of sets of blocks that are recomputed.
constexpr std::size_t kMostBlocks = 3;

/// Marks of inputs over one more axis each.
std::optional<Change> mark_change(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                                  const CompareOptions& options) {
  detail::Trials trials(graph, mesh, options,
                        detail::input_groups(*graph, detail::Layers::together), kMostMarks,
                        detail::step_cost);
  const Propagation now = propagate(*graph, mesh);
  std::vector<Cut> cuts;
  for (const detail::InputGroup& group : trials.groups()) {
    cuts.push_back(without_tiles(now.cuts[as_size(graph->inputs[group.inputs[0]].node)]));
  }
  const auto best = detail::cut_further(trials, cuts, detail::Goal::best);
  if (!best) return std::nullopt;
  std::vector<std::string> marks = detail::mark_texts(*graph, trials.groups(), best->marks);
  return Change{.kind = Change::Kind::marks,
                .text = fmt::format("mark {}", fmt::join(marks, " and ")),
                .marks = std::move(marks),
                .cost = best->outcome.cost,
                .fits = best->outcome.excess_bytes == 0};
}

/// True if the axes have the same sizes, in any order.
bool is_same(const Mesh& a, const Mesh& b) {
  return std::ranges::all_of(a.axes(), [&](const Axis& axis) {
    return std::ranges::any_of(b.axes(), [&](const Axis& other) { return axis == other; });
  });
}

std::optional<Change> mesh_change(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                                  const CompareOptions& options) {
  if (mesh.size() > kMostMeshDevices || mark_axes(*graph).empty()) return std::nullopt;
  for (const MeshPlan& plan : plan_meshes(graph, mesh.size(), options)) {
    if (!plan.cost || is_same(plan.mesh, mesh)) continue;
    return Change{.kind = Change::Kind::mesh,
                  .text = fmt::format("mesh {}", plan.mesh.to_string()),
                  .mesh = plan.mesh,
                  .cost = *plan.cost,
                  .fits = plan.fits};
  }
  return std::nullopt;
}

/// Recomputes the blocks with the most values for the gradient.
std::optional<Change> recompute_change(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                                       const CompareOptions& options) {
  std::vector<detail::RepeatedBlocks> blocks = detail::repeated_blocks(*graph);
  if (blocks.size() > kMostBlocks) blocks.resize(kMostBlocks);
  std::optional<Change> best;
  Outcome least;
  for (const detail::RepeatedBlocks& one : blocks) {
    const Outcome outcome = planned_outcome(detail::recomputed(*graph, one), mesh, options);
    if (!outcome.is_planned || (best && !outcome.is_better_than(least))) continue;
    least = outcome;
    best = Change{
        .kind = Change::Kind::recompute,
        .text = fmt::format("recompute the {} blocks {} for the gradient", one.count, one.name),
        .cost = outcome.cost,
        .fits = outcome.excess_bytes == 0};
  }
  return best;
}

/// The largest batch that fits, of those that the devices share evenly as they share this one; if
/// none fits, the smallest.
std::optional<Change> batch_change(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                                   const CompareOptions& options, std::string& refused) {
  const detail::BatchSize size(graph);
  refused = size.refused();
  if (size.get() == 0) return std::nullopt;
  std::int64_t parts = 1;
  const Propagation now = propagate(*graph, mesh);
  for (const GraphInput& input : graph->inputs) {
    const Cut& cut = now.cuts[as_size(input.node)];
    if (input.kind == MemoryKind::loader && !cut.empty())
      parts = std::max(parts, ways(cut[0], mesh));
  }
  const auto plan = [&](std::int64_t share) {
    Change change{.kind = Change::Kind::batch,
                  .text = fmt::format("batch {} in place of {}", share * parts, size.get()),
                  .batch = share * parts};
    change.cost = plan_cost(size.with(change.batch), mesh, options.machine);
    change.fits = detail::outcome_of(change.cost, options).excess_bytes == 0;
    change.part = static_cast<double>(change.batch) / static_cast<double>(size.get());
    return change;
  };
  std::int64_t most = (size.get() - 1) / parts, fitting = 0;
  if (most == 0) {
    refused = fmt::format("each device has one row of the batch of {}", size.get());
    return std::nullopt;
  }
  Change best = plan(1);
  if (best.fits) fitting = 1;
  while (fitting > 0 && fitting < most) {
    const std::int64_t share = fitting + (most - fitting + 1) / 2;
    Change change = plan(share);
    if (change.fits) {
      fitting = share;
      best = std::move(change);
    } else {
      most = share - 1;
    }
  }
  return best;
}

}  // namespace

Changes changes_that_fit(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                         const CompareOptions& options) {
  Changes result;
  const auto add = [&](std::optional<Change> change) {
    if (change) result.changes.push_back(*std::move(change));
  };
  add(mark_change(graph, mesh, options));
  add(mesh_change(graph, mesh, options));
  add(recompute_change(graph, mesh, options));
  try {
    add(batch_change(graph, mesh, options, result.batch_refused));
  } catch (const Error& error) {
    result.batch_refused = error.what();
  }
  std::ranges::stable_sort(result.changes, [](const Change& a, const Change& b) {
    return std::tuple(!a.fits, a.seconds(), a.cost.peak_bytes) <
           std::tuple(!b.fits, b.seconds(), b.cost.peak_bytes);
  });
  return result;
}

}  // namespace shardwise
