#include "shardwise/runtime/spmd/detail/plans/search.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shardwise/runtime/spmd/detail/plans/hand_made.h"

namespace shardwise {
namespace detail {
namespace {

// Programs with at most this many choices are planned in all of them.
constexpr std::int64_t kMostChoices = 2'000;

// With up to this many groups, pairs are cut in all ways, and all hand-made plans are improved.
constexpr std::size_t kFewGroups = 6;

// With more groups, only the best hand-made plans are improved.
constexpr std::size_t kMostStarts = 4;

/// The best of these and of `best`; all are planned.
Choice best_of(Trials& trials, const std::vector<Choice>& choices, Choice best) {
  for (const Choice& choice : choices) {
    if (trials.of(choice).is_better_than(trials.of(best))) best = choice;
  }
  return best;
}

/// The choice with a group cut in each other way.
std::vector<Choice> with_group(const Trials& trials, const Choice& choice, std::size_t group) {
  std::vector<Choice> others;
  const auto count = static_cast<std::int32_t>(trials.specs(group).size());
  for (std::int32_t spec = 0; spec < count; ++spec) {
    if (spec == choice[group]) continue;
    others.push_back(choice);
    others.back()[group] = spec;
  }
  return others;
}

/// The groups that hold most first: they decide most.
std::vector<std::size_t> by_bytes(const Trials& trials) {
  std::vector<std::pair<std::size_t, std::size_t>> sizes;
  for (std::size_t g = 0; g < trials.groups().size(); ++g) {
    sizes.emplace_back(trials.groups()[g].bytes(), g);
  }
  std::ranges::stable_sort(sizes, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::size_t> order;
  order.reserve(sizes.size());
  for (const auto& [bytes, group] : sizes) order.push_back(group);
  return order;
}

/// Improves one group after the other as far as possible, until none changes.
Choice descend(Trials& trials, Choice choice, const std::vector<std::size_t>& order) {
  for (std::size_t unchanged = 0, i = 0; unchanged < order.size(); i = (i + 1) % order.size()) {
    const std::vector<Choice> others = with_group(trials, choice, order[i]);
    if (!trials.plan(others)) return choice;
    Choice better = best_of(trials, others, choice);
    unchanged = better == choice ? unchanged + 1 : 0;
    choice = std::move(better);
  }
  return choice;
}

/// The axes that cut some dim in one of the specs and not in the other.
std::size_t moved_axes(const PartitionSpec& a, const PartitionSpec& b, const Mesh& mesh) {
  std::size_t count = 0;
  for (const Axis& axis : mesh.axes()) {
    const auto dim_of = [&](const PartitionSpec& spec) {
      std::size_t dim = 0;
      while (dim < spec.rank() &&
             std::ranges::find(spec.entries()[dim], axis.name) == spec.entries()[dim].end()) {
        ++dim;
      }
      return dim;
    };
    count += dim_of(a) != dim_of(b) ? 1 : 0;
  }
  return count;
}

/// The choice with a group cut differently over one axis; with few groups, over any.
std::vector<Choice> with_axis(const Trials& trials, const Choice& choice, std::size_t group) {
  const std::vector<PartitionSpec>& specs = trials.specs(group);
  std::vector<Choice> others = with_group(trials, choice, group);
  if (trials.groups().size() <= kFewGroups) return others;
  std::erase_if(others, [&](const Choice& other) {
    return moved_axes(specs[as_size(other[group])], specs[as_size(choice[group])], trials.mesh()) !=
           1;
  });
  return others;
}

/// Changes two groups at once, each over one axis, for pairs whose single changes do not help: a
/// matrix by columns and the next one by rows. Neighbours first. Returns the first pair that helps,
/// else the choice.
Choice with_pair(Trials& trials, const Choice& choice) {
  const std::size_t count = trials.groups().size();
  for (std::size_t apart = 1; apart < count; ++apart) {
    for (std::size_t g = 0; g + apart < count; ++g) {
      std::vector<Choice> pairs;
      for (const Choice& one : with_axis(trials, choice, g)) {
        const std::vector<Choice> both = with_axis(trials, one, g + apart);
        pairs.insert(pairs.end(), both.begin(), both.end());
      }
      if (!trials.plan(pairs)) return choice;
      Choice better = best_of(trials, pairs, choice);
      if (better != choice) return better;
    }
  }
  return choice;
}

}  // namespace

std::int64_t choices_of(const Trials& trials, std::int64_t most) {
  std::int64_t choices = 1;
  for (std::size_t g = 0; g < trials.groups().size() && choices <= most; ++g) {
    choices *= static_cast<std::int64_t>(trials.specs(g).size());
  }
  return std::min(choices, most + 1);
}

Choice best_of_all(Trials& trials) {
  const std::size_t count = trials.groups().size();
  std::vector<Choice> all{Choice(count, 0)};
  for (std::size_t g = 0; g < count; ++g) {
    for (std::size_t i = 0, before = all.size(); i < before; ++i) {
      const std::vector<Choice> others = with_group(trials, Choice(all[i]), g);
      all.insert(all.end(), others.begin(), others.end());
    }
  }
  trials.plan(all);
  return best_of(trials, all, all.front());
}

Choice best_from(Trials& trials, const std::vector<Choice>& starts) {
  const std::vector<std::size_t> order = by_bytes(trials);
  Choice best = starts.front();
  if (order.empty()) return best;
  for (const Choice& start : starts) best = best_of(trials, {descend(trials, start, order)}, best);
  while (true) {
    const Choice better = with_pair(trials, best);
    if (better == best) return best;
    best = descend(trials, better, order);
  }
}

}  // namespace detail

namespace {

using detail::Choice;
using detail::Trials;

SearchedPlan searched(const Trials& trials, const detail::Outcome& outcome, const Choice& best) {
  const detail::Marks marks = trials.marks(best);
  return {.graph = trials.marked(marks),
          .marks = detail::mark_texts(trials.graph(), trials.groups(), marks),
          .cost = outcome.cost,
          .fits = outcome.excess_bytes == 0,
          .plans = trials.planned()};
}

SearchedPlan search(Trials& trials, const std::vector<detail::HandMade>& starts, bool is_exact) {
  std::vector<Choice> choices;
  choices.reserve(starts.size());
  for (const detail::HandMade& start : starts) choices.push_back(start.choice);
  trials.plan(choices);
  std::ranges::stable_sort(choices, [&](const Choice& a, const Choice& b) {
    return trials.of(a).is_better_than(trials.of(b));
  });
  if (is_exact) {
    choices.insert(choices.begin(), detail::best_of_all(trials));
  } else {
    const std::size_t groups = trials.groups().size();
    if (groups > detail::kFewGroups) choices.resize(std::min(choices.size(), detail::kMostStarts));
    choices.insert(choices.begin(), detail::best_from(trials, choices));
  }
  const Choice& best = detail::best_of(trials, choices, choices.front());
  if (!trials.of(best).is_planned) detail::step_cost(trials, trials.marks(best));  // throws
  SearchedPlan plan = searched(trials, trials.of(best), best);
  plan.is_exact = is_exact;
  for (const detail::HandMade& start : starts) {
    const detail::Outcome& outcome = trials.of(start.choice);
    if (!outcome.is_planned) continue;
    plan.hand_made.push_back({start.name, outcome.cost, outcome.excess_bytes == 0});
  }
  return plan;
}

}  // namespace

SearchedPlan search_marks(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                          const CompareOptions& options) {
  for (const detail::Layers layers : {detail::Layers::apart, detail::Layers::together}) {
    Trials trials(graph, mesh, options, layers);
    const bool is_exact = detail::choices_of(trials, detail::kMostChoices) <=
                          std::min(detail::kMostChoices, trials.most_plans());
    if (layers == detail::Layers::apart && !is_exact) continue;
    return search(trials, detail::hand_made(trials), is_exact);
  }
  return {};
}

}  // namespace shardwise
