#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
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

/// Plans a program with its inputs cut in one way after another, each once.
class Trials {
 public:
  Trials(std::shared_ptr<const Graph> graph, const Mesh& mesh, const CompareOptions& options,
         Layers layers);

  const Graph& graph() const { return *graph_; }
  const Mesh& mesh() const { return mesh_; }
  const std::vector<InputGroup>& groups() const { return groups_; }
  const std::vector<PartitionSpec>& specs(std::size_t group) const { return specs_[group]; }

  /// The number of a spec of a group, which is added if missing.
  std::int32_t number(std::size_t group, const PartitionSpec& spec);

  std::vector<GroupMark> marks(const Choice& choice) const;

  /// The graph with the groups marked.
  std::shared_ptr<const Graph> marked(const Choice& choice) const;

  /// Plans it if it is unknown.
  const Outcome& of(const Choice& choice);

  /// Plans the unknown ones, side by side. Returns false, without planning anything, if that would
  /// exceed the number of plans that a program of this size may take.
  bool plan(const std::vector<Choice>& choices);

  std::int64_t planned() const { return static_cast<std::int64_t>(known_.size()); }
  std::int64_t most_plans() const { return most_; }

 private:
  std::shared_ptr<const Graph> graph_;
  const Mesh mesh_;
  const CompareOptions options_;
  std::vector<InputGroup> groups_;
  std::vector<std::vector<PartitionSpec>> specs_;  ///< by group
  std::map<Choice, Outcome> known_;
  std::int64_t most_;  ///< most plans
};

}  // namespace shardwise::detail
