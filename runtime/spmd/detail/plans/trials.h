#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/runtime/spmd/detail/plans/groups.h"
#include "shardwise/runtime/spmd/plans.h"

namespace shardwise::detail {

/// For each group the number of its spec.
using Choice = std::vector<std::int32_t>;

/// The cost of a choice. The better one needs fewer bytes beyond the capacity, then is faster, then
/// needs and sends less. A choice that cannot be planned is the worst.
struct Outcome {
  bool is_planned = false;
  PlanCost cost = {};
  std::size_t excess_bytes = 0;

  bool is_better_than(const Outcome& other) const;
};

Outcome outcome_of(const PlanCost& cost, const CompareOptions& options);

/// Plans the graph; if that fails, the outcome is not planned.
Outcome planned_outcome(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                        const CompareOptions& options);

/// Calls plan(i) for each 0 <= i < count on the threads of the options, and reports progress:
/// `before` plans were made already, of `of`. Exceptions of plan() pass through.
void plan_all(std::int64_t count, const CompareOptions& options,
              const std::function<void(std::int64_t)>& plan, std::int64_t before, std::int64_t of);

/// The number of trials of a program that have this many operations together, at most `most`.
std::int64_t trials_within(std::int64_t nodes, std::int64_t most, const Graph& graph);

/// Tries marks of a program's inputs, each once. Thread-compatible.
class Trials {
 public:
  /// The outcome of marks. Called on several threads at once; an Error means that they are no
  /// choice.
  using Objective = std::function<Outcome(const Trials&, const Marks&)>;

  /// `most`: the number of trials.
  Trials(std::shared_ptr<const Graph> graph, const Mesh& mesh, const CompareOptions& options,
         std::vector<InputGroup> groups, std::int64_t most, Objective objective);

  /// For choices among the even specs of all groups but very small ones, by the cost of a step.
  Trials(const std::shared_ptr<const Graph>& graph, const Mesh& mesh, const CompareOptions& options,
         Layers layers);

  const Graph& graph() const { return *graph_; }
  const Mesh& mesh() const { return mesh_; }
  const CompareOptions& options() const { return options_; }
  const std::vector<InputGroup>& groups() const { return groups_; }

  /// The graph with these marks.
  std::shared_ptr<const Graph> marked(const Marks& marks) const {
    return with_marks(*graph_, groups_, marks);
  }

  /// Tries them if they are unknown.
  const Outcome& of(const Marks& marks);

  /// Tries the unknown ones, side by side. Returns false, without trying any, if they are more than
  /// left(). `shown`: the number of all trials for progress; 0: those so far and these.
  bool plan(const std::vector<Marks>& all, std::int64_t shown = 0);

  std::int64_t planned() const { return static_cast<std::int64_t>(known_.size()); }
  std::int64_t most_plans() const { return most_; }
  std::int64_t left() const { return most_ - planned(); }

  // Choices.

  const std::vector<PartitionSpec>& specs(std::size_t group) const { return specs_[group]; }

  /// The number of a spec of a group, which is added if missing.
  std::int32_t number(std::size_t group, const PartitionSpec& spec);

  Marks marks(const Choice& choice) const;
  const Outcome& of(const Choice& choice) { return of(marks(choice)); }
  bool plan(const std::vector<Choice>& choices);

 private:
  Outcome outcome(const Marks& marks) const;

  std::shared_ptr<const Graph> graph_;
  const Mesh mesh_;
  const CompareOptions options_;
  std::vector<InputGroup> groups_;
  std::vector<std::vector<PartitionSpec>> specs_;  ///< by group
  std::map<std::string, Outcome> known_;           ///< by the texts of the marks
  std::int64_t most_;
  Objective objective_;
};

/// An objective: the planned cost of a step.
Outcome step_cost(const Trials& trials, const Marks& marks);

}  // namespace shardwise::detail
