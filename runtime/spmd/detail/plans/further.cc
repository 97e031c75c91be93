#include "shardwise/runtime/spmd/detail/plans/further.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace shardwise::detail {
namespace {

struct Limits {
  std::size_t groups;  ///< that are cut alone, those with the most bytes on a device first
  std::size_t marks;   ///< that are combined
};

class Further {
 public:
  Further(Trials& trials, const std::vector<Cut>& cuts, Goal goal)
      : trials_(trials),
        cuts_(cuts),
        is_quick_(goal == Goal::first_that_fits),
        limits_(is_quick_ ? Limits{.groups = 4, .marks = 4} : Limits{.groups = 10, .marks = 8}) {}

  std::optional<FurtherMarks> run() {
    std::vector<FurtherMarks> tried = try_all(singles());
    if (!fits()) put_together(std::move(tried));
    if (!fits()) try_all(all_weights());
    return best_;
  }

 private:
  bool fits() const { return best_ && best_->outcome.excess_bytes == 0; }

  /// Puts one more axis on the longest dim that it divides, if possible a whole one.
  std::optional<GroupMark> further(std::size_t group, const Cut& cut, std::size_t axis) const {
    const Mesh& mesh = trials_.mesh();
    const Shape& shape = trials_.groups()[group].type.shape;
    const std::int64_t size = mesh.axes()[axis].size;
    if (size == 1 || (axes_of(cut) >> axis & 1)) return std::nullopt;
    std::optional<std::size_t> best;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (is_quick_ && !cut[dim].empty()) continue;
      if (shape[dim] == 0 || shape[dim] % (ways(cut[dim], mesh) * size) != 0) continue;
      const auto order = [&](std::size_t d) { return std::tuple(cut[d].empty(), shape[d]); };
      if (!best || order(dim) > order(*best)) best = dim;
    }
    if (!best) return std::nullopt;
    Cut more = cut;
    more[*best].push_back(axis);
    return GroupMark{group, to_spec(more, mesh)};
  }

  std::vector<FurtherMarks> singles() const {
    const auto key = [&](std::size_t group) {
      const InputGroup& one = trials_.groups()[group];
      const std::size_t held = one.bytes() / as_size(ways(axes_of(cuts_[group]), trials_.mesh()));
      return std::tuple(is_quick_ || !one.is_data, held);
    };
    std::vector<std::size_t> order;
    for (std::size_t g = 0; g < cuts_.size(); ++g) order.push_back(g);
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
    if (order.size() > limits_.groups) order.resize(limits_.groups);
    std::vector<FurtherMarks> all;
    for (const std::size_t group : order) {
      for (std::size_t axis = 0; axis < trials_.mesh().rank(); ++axis) {
        if (auto mark = further(group, cuts_[group], axis)) all.push_back({{*mark}, {}, {}});
      }
    }
    return all;
  }

  /// Returns those that can be planned.
  std::vector<FurtherMarks> try_all(std::vector<FurtherMarks> all) {
    std::vector<Marks> marks;
    marks.reserve(all.size());
    for (const FurtherMarks& one : all) marks.push_back(one.marks);
    if (!is_quick_) trials_.plan(marks);
    std::vector<FurtherMarks> tried;
    for (FurtherMarks& one : all) {
      if (is_quick_ && (fits() || !trials_.plan(std::vector<Marks>{one.marks}))) continue;
      one.outcome = trials_.of(one.marks);
      if (!one.outcome.is_planned) continue;
      if (!best_ || one.outcome.is_better_than(best_->outcome)) best_ = one;
      tried.push_back(std::move(one));
    }
    return tried;
  }

  /// Takes the best single mark first, then marks that improve it.
  void put_together(std::vector<FurtherMarks> singles) {
    if (singles.empty()) return;
    std::ranges::stable_sort(singles, [](const FurtherMarks& a, const FurtherMarks& b) {
      return a.outcome.is_better_than(b.outcome);
    });
    FurtherMarks together = singles.front();
    for (std::size_t i = 1; i < singles.size() && together.marks.size() < limits_.marks; ++i) {
      const GroupMark& next = singles[i].marks.front();
      if (std::ranges::find(together.marks, next.group, &GroupMark::group) !=
          together.marks.end()) {
        continue;
      }
      FurtherMarks more = together;
      more.marks.push_back(next);
      for (FurtherMarks& one : try_all({std::move(more)})) {
        if (one.outcome.is_better_than(together.outcome)) together = std::move(one);
      }
      if (fits()) return;
    }
  }

  /// All weights and their state over an axis; with Goal::best over all axes so far, too.
  std::vector<FurtherMarks> all_weights() const {
    std::vector<FurtherMarks> all;
    std::vector<Cut> cuts = cuts_;
    for (std::size_t axis = 0; axis < trials_.mesh().rank(); ++axis) {
      Marks one, several;
      for (std::size_t g = 0; g < cuts.size(); ++g) {
        if (trials_.groups()[g].is_data) continue;
        if (auto mark = further(g, cuts_[g], axis)) one.push_back(*mark);
        if (auto mark = further(g, cuts[g], axis)) {
          cuts[g] = to_cut(mark->spec, trials_.mesh(), cuts[g].size());
        }
        if (cuts[g] != cuts_[g]) several.push_back({g, to_spec(cuts[g], trials_.mesh())});
      }
      if (!one.empty()) all.push_back({std::move(one), {}, axis});
      if (!is_quick_ && !several.empty()) all.push_back({std::move(several), {}, axis});
    }
    return all;
  }

  Trials& trials_;
  const std::vector<Cut>& cuts_;
  const bool is_quick_;
  const Limits limits_;
  std::optional<FurtherMarks> best_;
};

}  // namespace

std::optional<FurtherMarks> cut_further(Trials& trials, const std::vector<Cut>& cuts, Goal goal) {
  return Further(trials, cuts, goal).run();
}

}  // namespace shardwise::detail
