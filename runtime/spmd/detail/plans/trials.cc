#include "shardwise/runtime/spmd/detail/plans/trials.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "shardwise/runtime/spmd/detail/plans/plan_all.h"

namespace shardwise::detail {
namespace {

// Total of planned operations: 250 plans of a program of 20,000 operations.
constexpr std::int64_t kMostNodes = 5'000'000;
constexpr std::int64_t kMostPlans = 2'000;

// Ways to cut one tensor.
constexpr std::size_t kMostSpecs = 27;

// A group of weights with less than this part of all bytes stays unchanged.
constexpr std::size_t kSmallPart = 10'000;

}  // namespace

bool Outcome::is_better_than(const Outcome& other) const {
  const auto order = [](const Outcome& one) {
    return std::tuple(!one.is_planned, one.excess_bytes, one.cost.seconds(), one.cost.peak_bytes,
                      one.cost.wire_bytes);
  };
  return order(*this) < order(other);
}

Outcome outcome_of(const PlanCost& cost, const CompareOptions& options) {
  const std::size_t capacity = options.capacity_bytes;
  const bool is_above = capacity != 0 && cost.peak_bytes > capacity;
  return {true, cost, is_above ? cost.peak_bytes - capacity : 0};
}

Outcome planned_outcome(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                        const CompareOptions& options) {
  try {
    return outcome_of(plan_cost(graph, mesh, options.machine), options);
  } catch (const Error&) {  // then it is not a choice
    return {};
  }
}

Trials::Trials(std::shared_ptr<const Graph> graph, const Mesh& mesh, const CompareOptions& options,
               Layers layers)
    : graph_(std::move(graph)),
      mesh_(mesh),
      options_(options),
      groups_(input_groups(*graph_, layers)),
      most_(std::clamp<std::int64_t>(
          kMostNodes / std::max<std::int64_t>(1, static_cast<std::int64_t>(graph_->nodes.size())),
          1, kMostPlans)) {
  std::size_t bytes = 0;
  for (const InputGroup& group : groups_) bytes += group.bytes();
  std::erase_if(groups_, [&](const InputGroup& group) {
    return !group.is_data && group.bytes() < bytes / kSmallPart;
  });
  for (const InputGroup& group : groups_) {
    specs_.push_back(even_specs(group.type.shape, mesh, kMostSpecs));
  }
}

std::int32_t Trials::number(std::size_t group, const PartitionSpec& spec) {
  std::vector<PartitionSpec>& specs = specs_[group];
  const auto at = std::ranges::find(specs, spec);
  const auto number = static_cast<std::int32_t>(at - specs.begin());
  if (at == specs.end()) specs.push_back(spec);
  return number;
}

std::vector<GroupMark> Trials::marks(const Choice& choice) const {
  std::vector<GroupMark> marks;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    marks.push_back({g, specs_[g][as_size(choice[g])]});
  }
  return marks;
}

std::shared_ptr<const Graph> Trials::marked(const Choice& choice) const {
  return with_marks(*graph_, groups_, marks(choice));
}

const Outcome& Trials::of(const Choice& choice) {
  const auto found = known_.find(choice);
  return found != known_.end() ? found->second
                               : known_[choice] = planned_outcome(marked(choice), mesh_, options_);
}

bool Trials::plan(const std::vector<Choice>& choices) {
  std::vector<Choice> unknown;
  for (const Choice& choice : choices) {
    if (!known_.contains(choice) && std::ranges::find(unknown, choice) == unknown.end()) {
      unknown.push_back(choice);
    }
  }
  if (planned() + static_cast<std::int64_t>(unknown.size()) > most_) return false;
  std::vector<Outcome> outcomes(unknown.size());
  plan_all(
      static_cast<std::int64_t>(unknown.size()), options_,
      [&](std::int64_t i) {
        outcomes[as_size(i)] = planned_outcome(marked(unknown[as_size(i)]), mesh_, options_);
      },
      planned(), most_);
  for (std::size_t i = 0; i < unknown.size(); ++i) known_[unknown[i]] = outcomes[i];
  return true;
}

}  // namespace shardwise::detail
