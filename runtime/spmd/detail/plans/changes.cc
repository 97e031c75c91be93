#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "shardwise/runtime/spmd/detail/plans/batch.h"
#include "shardwise/runtime/spmd/detail/plans/groups.h"
#include "shardwise/runtime/spmd/detail/plans/plan_all.h"
#include "shardwise/runtime/spmd/detail/plans/recompute.h"
#include "shardwise/runtime/spmd/detail/plans/trials.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/runtime/spmd/plans.h"

namespace shardwise {
namespace {

using detail::Outcome;
using detail::planned_outcome;

// Number of groups of inputs that are cut further, those with the most bytes on a device first.
constexpr std::size_t kMostCutFurther = 10;

// Number of sets of blocks that are recomputed.
constexpr std::size_t kMostBlocks = 3;

// Number of marks that are combined.
constexpr std::size_t kMostRemarks = 8;

/// Groups of inputs cut differently, and the resulting cost.
struct Remarked {
  std::vector<detail::GroupMark> remarks;
  Outcome outcome;
};

/// Marks of inputs.
class MarkChange {
 public:
  MarkChange(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
             const CompareOptions& options)
      : graph_(graph),
        mesh_(mesh),
        options_(options),
        groups_(detail::input_groups(*graph, detail::Layers::together)) {
    const Propagation now = propagate(*graph, mesh);
    for (const detail::InputGroup& group : groups_) {
      cuts_.push_back(without_tiles(now.cuts[as_size(graph->inputs[group.inputs[0]].node)]));
    }
  }

  std::optional<Change> run() {
    std::vector<Remarked> tried = singles();
    plan(tried);
    if (!best_) return std::nullopt;
    if (best_->outcome.excess_bytes > 0) put_together(std::move(tried));
    if (best_->outcome.excess_bytes > 0) all_weights();
    Change change{.kind = Change::Kind::marks,
                  .text = "",
                  .cost = best_->outcome.cost,
                  .fits = best_->outcome.excess_bytes == 0};
    change.marks = detail::mark_texts(*graph_, groups_, best_->remarks);
    change.text = fmt::format("mark {}", fmt::join(change.marks, " and "));
    return change;
  }

 private:
  std::size_t held_bytes(std::size_t group) const {
    return groups_[group].bytes() / as_size(ways(axes_of(cuts_[group]), mesh_));
  }

  /// Puts one more axis on the longest dim that it divides.
  std::optional<detail::GroupMark> further(std::size_t group, const Cut& cut,
                                           std::size_t axis) const {
    const Shape& shape = groups_[group].type.shape;
    const std::int64_t size = mesh_.axes()[axis].size;
    if (size == 1 || (axes_of(cut) >> axis & 1)) return std::nullopt;
    std::optional<std::size_t> best;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (shape[dim] == 0 || shape[dim] % (ways(cut[dim], mesh_) * size) != 0) continue;
      const auto order = [&](std::size_t d) { return std::tuple(cut[d].empty(), shape[d]); };
      if (!best || order(dim) > order(*best)) best = dim;
    }
    if (!best) return std::nullopt;
    Cut more = cut;
    more[*best].push_back(axis);
    return detail::GroupMark{group, to_spec(more, mesh_)};
  }

  std::vector<Remarked> singles() const {
    std::vector<std::size_t> order;
    for (std::size_t g = 0; g < groups_.size(); ++g) order.push_back(g);
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      return std::tuple(groups_[b].is_data, held_bytes(a)) >
             std::tuple(groups_[a].is_data, held_bytes(b));
    });
    if (order.size() > kMostCutFurther) order.resize(kMostCutFurther);
    std::vector<Remarked> all;
    for (const std::size_t group : order) {
      for (std::size_t axis = 0; axis < mesh_.rank(); ++axis) {
        if (auto remark = further(group, cuts_[group], axis)) all.push_back({{*remark}, {}});
      }
    }
    return all;
  }

  void plan(std::vector<Remarked>& all) {
    const auto count = static_cast<std::int64_t>(all.size());
    detail::plan_all(
        count, options_,
        [&](std::int64_t i) {
          Remarked& one = all[as_size(i)];
          one.outcome =
              planned_outcome(detail::with_marks(*graph_, groups_, one.remarks), mesh_, options_);
        },
        0, count);
    for (const Remarked& one : all) {
      if (one.outcome.is_planned && (!best_ || one.outcome.is_better_than(best_->outcome))) {
        best_ = one;
      }
    }
  }

  /// Takes the best single mark first, then marks that improve it.
  void put_together(std::vector<Remarked> tried) {
    std::ranges::stable_sort(tried, [](const Remarked& a, const Remarked& b) {
      return a.outcome.is_better_than(b.outcome);
    });
    Remarked together = tried.front();
    for (std::size_t i = 1; i < tried.size() && together.remarks.size() < kMostRemarks; ++i) {
      const detail::GroupMark& next = tried[i].remarks.front();
      if (std::ranges::any_of(together.remarks, [&](const detail::GroupMark& one) {
            return one.group == next.group;
          })) {
        continue;
      }
      std::vector<Remarked> more{{together.remarks, {}}};
      more[0].remarks.push_back(next);
      plan(more);
      if (more[0].outcome.is_better_than(together.outcome)) together = more[0];
      if (together.outcome.excess_bytes == 0) return;
    }
  }

  /// Cuts all weights and their state over an axis, and over all axes.
  void all_weights() {
    std::vector<Remarked> all;
    std::vector<Cut> cuts = cuts_;
    for (std::size_t axis = 0; axis < mesh_.rank(); ++axis) {
      Remarked one, both;
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        if (groups_[g].is_data) continue;
        if (auto remark = further(g, cuts_[g], axis)) one.remarks.push_back(*remark);
        if (auto remark = further(g, cuts[g], axis)) {
          cuts[g] = to_cut(remark->spec, mesh_, cuts[g].size());
        }
        if (cuts[g] != cuts_[g]) both.remarks.push_back({g, to_spec(cuts[g], mesh_)});
      }
      for (Remarked& remarked : {std::ref(one), std::ref(both)}) {
        if (!remarked.remarks.empty()) all.push_back(remarked);
      }
    }
    plan(all);
  }

  const std::shared_ptr<const Graph> graph_;
  const Mesh mesh_;
  const CompareOptions options_;
  std::vector<detail::InputGroup> groups_;
  std::vector<Cut> cuts_;  ///< by group, as now
  std::optional<Remarked> best_;
};

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
  add(MarkChange(graph, mesh, options).run());
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
