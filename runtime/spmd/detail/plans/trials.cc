#include "shardwise/runtime/spmd/detail/plans/trials.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "shardwise/runtime/parallel.h"

namespace shardwise::detail {
namespace {

// Total of planned operations: 250 plans of a program of 20,000 operations.
constexpr std::int64_t kMostNodes = 5'000'000;
constexpr std::int64_t kMostPlans = 2'000;

// Ways to cut one tensor.
constexpr std::size_t kMostSpecs = 27;

// A group of weights with less than this part of all bytes stays unchanged.
constexpr std::size_t kSmallPart = 10'000;

// A plan of a large program takes some hundred megabytes.
constexpr int kMostThreads = 8;

std::string text_of(const Marks& marks) {
  std::string text;
  for (const GroupMark& mark : marks) {
    text += std::to_string(mark.group) + '=' + mark.spec.to_string() + ';';
  }
  return text;
}

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

Outcome step_cost(const Trials& trials, const Marks& marks) {
  return outcome_of(plan_cost(trials.marked(marks), trials.mesh(), trials.options().machine),
                    trials.options());
}

Outcome planned_outcome(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                        const CompareOptions& options) {
  try {
    return outcome_of(plan_cost(graph, mesh, options.machine), options);
  } catch (const Error&) {  // then it is not a choice
    return {};
  }
}

void plan_all(std::int64_t count, const CompareOptions& options,
              const std::function<void(std::int64_t)>& plan, std::int64_t before, std::int64_t of) {
  const Executor executor(options.threads != 0 ? options.threads
                                               : std::min(Executor::threads_for(0), kMostThreads));
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<std::int64_t> done = before;
  executor.parallel_for(count, [&](std::int64_t i) {
    plan(i);
    const std::int64_t now = ++done;
    if (options.progress && std::this_thread::get_id() == caller) options.progress(now, of);
  });
}

std::int64_t trials_within(std::int64_t nodes, std::int64_t most, const Graph& graph) {
  const auto size = std::max<std::int64_t>(1, static_cast<std::int64_t>(graph.nodes.size()));
  return std::clamp<std::int64_t>(nodes / size, 1, most);
}

Trials::Trials(std::shared_ptr<const Graph> graph, const Mesh& mesh, const CompareOptions& options,
               std::vector<InputGroup> groups, std::int64_t most, Objective objective)
    : graph_(std::move(graph)),
      mesh_(mesh),
      options_(options),
      groups_(std::move(groups)),
      most_(most),
      objective_(std::move(objective)) {}

Trials::Trials(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
               const CompareOptions& options, Layers layers)
    : Trials(graph, mesh, options, input_groups(*graph, layers),
             trials_within(kMostNodes, kMostPlans, *graph), step_cost) {
  std::size_t bytes = 0;
  for (const InputGroup& group : groups_) bytes += group.bytes();
  std::erase_if(groups_, [&](const InputGroup& group) {
    return !group.is_data && group.bytes() < bytes / kSmallPart;
  });
  for (const InputGroup& group : groups_) {
    specs_.push_back(even_specs(group.type.shape, mesh, kMostSpecs));
  }
}

const Outcome& Trials::of(const Marks& marks) {
  const auto [at, is_new] = known_.try_emplace(text_of(marks));
  if (is_new) at->second = outcome(marks);
  return at->second;
}

Outcome Trials::outcome(const Marks& marks) const {
  try {
    return objective_(*this, marks);
  } catch (const Error&) {
    return {};
  }
}

bool Trials::plan(const std::vector<Marks>& all, std::int64_t shown) {
  std::map<std::string, const Marks*> unknown;
  for (const Marks& marks : all) {
    std::string text = text_of(marks);
    if (!known_.contains(text)) unknown.emplace(std::move(text), &marks);
  }
  const auto count = static_cast<std::int64_t>(unknown.size());
  if (count > left()) return false;
  std::vector<std::pair<const Marks*, Outcome*>> tried;
  tried.reserve(unknown.size());
  const std::int64_t before = planned();
  for (const auto& [text, marks] : unknown) tried.emplace_back(marks, &known_[text]);
  plan_all(
      count, options_,
      [&](std::int64_t i) {
        const auto& [marks, outcome] = tried[as_size(i)];
        *outcome = this->outcome(*marks);
      },
      before, shown != 0 ? shown : before + count);
  return true;
}

std::int32_t Trials::number(std::size_t group, const PartitionSpec& spec) {
  std::vector<PartitionSpec>& specs = specs_[group];
  const auto at = std::ranges::find(specs, spec);
  const auto number = static_cast<std::int32_t>(at - specs.begin());
  if (at == specs.end()) specs.push_back(spec);
  return number;
}

Marks Trials::marks(const Choice& choice) const {
  Marks marks;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    marks.push_back({g, specs_[g][as_size(choice[g])]});
  }
  return marks;
}

bool Trials::plan(const std::vector<Choice>& choices) {
  std::vector<Marks> all;
  all.reserve(choices.size());
  for (const Choice& choice : choices) all.push_back(marks(choice));
  return plan(all, most_);
}

}  // namespace shardwise::detail
