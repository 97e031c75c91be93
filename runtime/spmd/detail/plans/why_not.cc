#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/detail/plans/groups.h"
#include "shardwise/runtime/spmd/detail/plans/tensors.h"
#include "shardwise/runtime/spmd/detail/plans/trials.h"
#include "shardwise/runtime/spmd/plans.h"

namespace shardwise {
namespace {

// Total of propagated operations: 400 times for a program of 20,000 operations.
constexpr std::int64_t kMostPropagated = 8'000'000;
constexpr std::int64_t kMostTried = 10'000;

// Number of edits that are planned.
constexpr std::size_t kMostPriced = 8;

constexpr std::size_t kMostSpecsTried = 27;

using detail::Marks;
using detail::Trials;

class Asker {
 public:
  Asker(std::shared_ptr<const Graph> graph, const Mesh& mesh, NodeId node,
        const PartitionSpec& wanted, const CompareOptions& options)
      : graph_(std::move(graph)), mesh_(mesh), node_(node), wanted_(wanted), options_(options) {
    const auto at = std::ranges::find(graph_->inputs, node, &GraphInput::node);
    if (at != graph_->inputs.end()) input_ = as_size(at - graph_->inputs.begin());
  }

  WhyNot run(const LineOf& line_of) {
    const std::size_t rank = graph_->node(node_).type.shape.size();
    const Cut wanted = to_cut(wanted_, mesh_, rank);
    const Propagation now = propagate(*graph_, mesh_);
    const Cut& cut = now.cuts[as_size(node_)];
    WhyNot result;
    result.now = to_text(cut, mesh_);
    result.wanted = to_text(wanted, mesh_);
    result.is_so_already = cut == wanted;
    result.uneven = uneven(wanted);
    if (result.is_so_already) return result;
    result.against = against(now, wanted, line_of);
    result.cost_now = plan_cost(graph_, mesh_, options_.machine);
    result.cost_wanted = plan_cost(marked(), mesh_, options_.machine);
    add_edits(wanted, result);
    return result;
  }

 private:
  std::vector<std::string> uneven(const Cut& wanted) const {
    std::vector<std::string> texts;
    const Shape& shape = graph_->node(node_).type.shape;
    for (std::size_t dim = 0; dim < wanted.size(); ++dim) {
      const std::int64_t parts = ways(wanted[dim], mesh_), extent = shape[dim];
      if (extent % parts == 0) continue;
      const std::int64_t tile = tile_extent(extent, wanted[dim], mesh_);
      const std::int64_t tiles = (extent + tile - 1) / tile;
      std::string text = fmt::format(
          "dim {} of {} does not divide by {}: it is cut in tiles of {}, the last of {}", dim,
          extent, parts, tile, extent - (tiles - 1) * tile);
      if (tiles < parts)
        text += fmt::format(", and {} of {} parts are empty", parts - tiles, parts);
      texts.push_back(std::move(text));
    }
    return texts;
  }

  std::vector<std::string> against(const Propagation& now, const Cut& wanted,
                                   const LineOf& line_of) const {
    std::vector<std::string> texts;
    const Cut& cut = now.cuts[as_size(node_)];
    for (const CutReason& reason : detail::cut_reasons(*graph_, mesh_, now, node_)) {
      if (cut[reason.dim] == wanted[reason.dim]) continue;
      if (!reason.marked && cut[reason.dim].empty()) {
        Cut one(1);
        one[0] = wanted[reason.dim];
        texts.push_back(
            fmt::format("no mark brings {} to dim {}", to_text(one, mesh_), reason.dim));
      } else {
        texts.push_back(detail::reason_text(*graph_, reason, line_of));
      }
    }
    std::set<std::string> before;
    for (const Propagation::Conflict& conflict : now.conflicts) before.insert(conflict.text);
    for (const Propagation::Conflict& conflict : propagate(*marked(), mesh_).conflicts) {
      if (is_near(conflict.node) && !before.contains(conflict.text)) {
        texts.push_back("two wishes then at " + conflict.text);
      }
    }
    return texts;
  }

  /// True for the tensor itself, and for tensors computed from it.
  bool is_near(NodeId id) const {
    return id == node_ ||
           std::ranges::find(graph_->node(id).operands, node_) != graph_->node(id).operands.end();
  }

  /// With the mark on the tensor itself.
  std::shared_ptr<const Graph> marked() const {
    auto graph = std::make_shared<Graph>(*graph_);
    if (input_) {
      std::vector<std::optional<PartitionSpec>> marks(graph->inputs.size());
      marks[*input_] = wanted_;
      mark_inputs(*graph, marks);
    } else {
      graph->node(node_).mark = wanted_;
    }
    return graph;
  }

  /// Without a mark of its own, or on its replacement.
  Graph unmarked() const {
    Graph graph = *graph_;
    const std::optional<PartitionSpec> own = graph.node(node_).mark;
    if (input_ && own) {
      std::vector<bool> may_be(graph.inputs.size(), false);
      may_be[*input_] = true;
      for (const Replacement& one : replacements(graph, std::move(may_be))) {
        if (graph.node(one.output).mark == own) graph.node(one.output).mark.reset();
      }
    }
    graph.node(node_).mark.reset();
    return graph;
  }

  void add_edits(const Cut& wanted, WhyNot& result) {
    std::vector<detail::InputGroup> groups =
        detail::input_groups(*graph_, detail::Layers::together);
    for (detail::InputGroup& group : groups) {
      if (input_) std::erase(group.inputs, *input_);
    }
    std::erase_if(groups, [](const detail::InputGroup& group) { return group.inputs.empty(); });
    const auto base = std::make_shared<const Graph>(unmarked());
    Trials trials(base, mesh_, options_, std::move(groups),
                  detail::trials_within(kMostPropagated, kMostTried, *base),
                  [&](const Trials& self, const Marks& marks) {
                    const Propagation then = propagate(*self.marked(marks), mesh_);
                    return detail::Outcome{.is_planned = then.cuts[as_size(node_)] == wanted};
                  });
    const std::vector<Marks> singles = single_edits(trials.groups());
    result.has_tried_all = true;
    std::vector<Marks> found = those_that_bring(trials, singles, result);
    if (found.empty()) found = those_that_bring(trials, pairs(singles, trials.left()), result);
    price(trials, std::move(found), result);
  }

  std::vector<Marks> single_edits(const std::vector<detail::InputGroup>& groups) const {
    std::vector<Marks> edits;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto& mark = graph_->node(graph_->inputs[groups[g].inputs[0]].node).mark;
      for (const PartitionSpec& spec :
           detail::even_specs(groups[g].type.shape, mesh_, kMostSpecsTried)) {
        if (mark != spec) edits.push_back({{g, spec}});
      }
    }
    return edits;
  }

  /// As many pairs as may be tried, and one more.
  static std::vector<Marks> pairs(const std::vector<Marks>& singles, std::int64_t most) {
    std::vector<Marks> edits;
    for (std::size_t i = 0; i < singles.size(); ++i) {
      for (std::size_t j = i + 1; j < singles.size(); ++j) {
        if (static_cast<std::int64_t>(edits.size()) > most) return edits;
        if (singles[i][0].group == singles[j][0].group) continue;
        edits.push_back({singles[i][0], singles[j][0]});
      }
    }
    return edits;
  }

  static std::vector<Marks> those_that_bring(Trials& trials, std::vector<Marks> edits,
                                             WhyNot& result) {
    if (static_cast<std::int64_t>(edits.size()) > trials.left()) {
      edits.resize(as_size(trials.left()));
      result.has_tried_all = false;
    }
    trials.plan(edits);
    std::erase_if(edits, [&](const Marks& edit) { return !trials.of(edit).is_planned; });
    return edits;
  }

  void price(const Trials& trials, std::vector<Marks> edits, WhyNot& result) const {
    if (edits.size() > kMostPriced) edits.resize(kMostPriced);
    for (const Marks& edit : edits) {
      result.edits.push_back({.marks = detail::mark_texts(*graph_, trials.groups(), edit),
                              .cost = plan_cost(trials.marked(edit), mesh_, options_.machine)});
    }
    std::ranges::stable_sort(result.edits, [&](const MarkEdit& a, const MarkEdit& b) {
      return detail::outcome_of(a.cost, options_)
          .is_better_than(detail::outcome_of(b.cost, options_));
    });
  }

  const std::shared_ptr<const Graph> graph_;
  const Mesh mesh_;
  const NodeId node_;
  const PartitionSpec wanted_;
  const CompareOptions options_;
  std::optional<std::size_t> input_;  ///< the node's number in Graph::inputs
};

}  // namespace

WhyNot why_not(const std::shared_ptr<const Graph>& graph, const Mesh& mesh, NodeId node,
               const PartitionSpec& wanted, const LineOf& line_of, const CompareOptions& options) {
  return Asker(graph, mesh, node, wanted, options).run(line_of);
}

}  // namespace shardwise
