#include "shardwise/runtime/ops/autodiff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/ops/detail/pull_back.h"
#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/ops/detail/rules.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// Recomputes the values of blocks of checkpoint() that a gradient needs.
class Recomputed {
 public:
  /// Covers nodes up to `last`. Values of a block that nodes outside of it use are kept.
  Recomputed(Graph& graph, NodeId last)
      : graph_(graph), again_(as_size(last) + 1, -1), is_kept_(as_size(last) + 1, false) {
    for (NodeId id = 0; id <= last; ++id) {
      for (const NodeId operand : graph.node(id).operands) {
        if (graph.node(operand).block != graph.node(id).block) is_kept_[as_size(operand)] = true;
      }
    }
    is_kept_[as_size(last)] = true;
  }

  /// The node, or the node that recomputes it, which is appended the first time.
  NodeId get(NodeId id) {
    std::vector<NodeId> open{id};
    while (!open.empty()) {
      const NodeId next = open.back();
      const std::size_t before = open.size();
      if (!is_there(next)) {
        for (const NodeId operand : graph_.node(next).operands) {
          if (!is_there(operand)) open.push_back(operand);
        }
      }
      if (open.size() > before) continue;
      open.pop_back();
      if (!is_there(next)) make(next);
    }
    return value(id);
  }

  bool any() const { return !made_.empty(); }
  bool made(NodeId id) const { return std::ranges::binary_search(made_, id); }

 private:
  bool is_kept(NodeId id) const {
    const Node& node = graph_.node(id);
    return node.block == 0 || node.is_saved || is_kept_[as_size(id)];
  }
  bool is_there(NodeId id) const { return is_kept(id) || again_[as_size(id)] >= 0; }
  NodeId value(NodeId id) const { return is_kept(id) ? id : again_[as_size(id)]; }

  void make(NodeId id) {
    Node node = graph_.node(id);
    node.block = 0;
    node.backward = true;
    for (NodeId& operand : node.operands) operand = value(operand);
    again_[as_size(id)] = static_cast<NodeId>(graph_.nodes.size());
    graph_.nodes.push_back(std::move(node));
    made_.push_back(again_[as_size(id)]);
  }

  Graph& graph_;
  std::vector<NodeId> again_;  ///< -1: not yet
  std::vector<bool> is_kept_;
  std::vector<NodeId> made_;  ///< ascending
};

/// Moves recomputed nodes right before their first use, among the nodes from `first` on, and drops
/// those that no result needs.
void put_late(Graph& graph, NodeId first, const Recomputed& recomputed,
              std::vector<NodeId>& results) {
  const auto end = static_cast<NodeId>(graph.nodes.size());
  std::vector<bool> is_used(graph.nodes.size(), false);
  for (const NodeId id : results) {
    if (id >= 0) is_used[as_size(id)] = true;
  }
  for (NodeId id = end - 1; id >= first; --id) {
    if (!is_used[as_size(id)]) continue;
    for (const NodeId operand : graph.node(id).operands) is_used[as_size(operand)] = true;
  }
  std::vector<Node> late;
  std::vector<NodeId> now(graph.nodes.size());
  std::iota(now.begin(), now.begin() + first, NodeId{0});
  std::fill(now.begin() + first, now.end(), NodeId{-1});
  for (NodeId id = first; id < end; ++id) {
    if (!is_used[as_size(id)] || recomputed.made(id)) continue;
    std::vector<NodeId> open{id};
    while (!open.empty()) {
      Node& node = graph.node(open.back());
      const std::size_t before = open.size();
      if (now[as_size(open.back())] < 0) {
        for (const NodeId operand : node.operands) {
          if (now[as_size(operand)] < 0) open.push_back(operand);
        }
        if (open.size() > before) continue;
        for (NodeId& operand : node.operands) operand = now[as_size(operand)];
        now[as_size(open.back())] = first + static_cast<NodeId>(late.size());
        late.push_back(std::move(node));
      }
      open.pop_back();
    }
  }
  graph.nodes.erase(graph.nodes.begin() + first, graph.nodes.end());
  std::ranges::move(late, std::back_inserter(graph.nodes));
  for (NodeId& id : results) id = id < 0 ? id : now[as_size(id)];
}

void check(const GraphBuilder& graph, NodeId loss, std::span<const NodeId> wrt) {
  const TensorType& type = graph.node(loss).type;
  if (!type.shape.empty() || !is_floating(type.dtype)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("grad{}: found the loss {}, needed a floating scalar",
                            in_scope(graph, graph.scope), with_scope(graph, loss)));
  }
  for (const NodeId id : wrt) {
    if (is_floating(graph.node(id).type.dtype)) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("grad{}: found {} to derive by, needed a floating tensor",
                            in_scope(graph, graph.scope), with_scope(graph, id)));
  }
}

/// The cotangents of a scan's results, by result.
std::vector<std::optional<NodeRef>> cotangents_of_results(
    GraphBuilder& graph, NodeId scan, const std::vector<NodeId>& results,
    const std::vector<std::optional<NodeRef>>& cotangents) {
  std::vector<std::optional<NodeRef>> by_result(
      detail::BodyParts(graph.node(scan)).body().outputs.size());
  for (const NodeId id : results) {
    const std::optional<NodeRef>& cotangent = cotangents[as_size(id)];
    if (!cotangent) continue;
    const auto index = std::get<ResultAttributes>(graph.node(id).attributes).index;
    std::optional<NodeRef>& sum = by_result[as_size(index)];
    sum = sum ? *sum + *cotangent : *cotangent;
  }
  return by_result;
}

}  // namespace

namespace detail {

std::vector<bool> depend_on(const Graph& graph, std::span<const NodeId> wrt, NodeId last) {
  std::vector<bool> depends(graph.nodes.size(), false);
  std::map<NodeId, std::vector<bool>> results;  // by scan or cond
  for (const NodeId id : wrt) depends[as_size(id)] = true;
  for (NodeId id = 0; id <= last; ++id) {
    const Node& node = graph.node(id);
    if (has_bodies(node.op)) {
      std::vector<bool> operands;
      for (const NodeId operand : node.operands) operands.push_back(depends[as_size(operand)]);
      depends[as_size(id)] = std::find(operands.begin(), operands.end(), true) != operands.end();
      if (depends[as_size(id)]) results[id] = results_that_depend(node, operands);
      continue;
    }
    if (!is_floating(node.type.dtype)) continue;
    if (node.op == Op::result) {
      const auto of_scan = results.find(node.operands[0]);
      const auto index = as_size(std::get<ResultAttributes>(node.attributes).index);
      if (of_scan != results.end() && of_scan->second[index]) depends[as_size(id)] = true;
      continue;
    }
    for (const NodeId operand : node.operands) {
      if (depends[as_size(operand)]) depends[as_size(id)] = true;
    }
  }
  return depends;
}

std::vector<NodeId> pull_back(GraphBuilder& graph, NodeId last,
                              std::vector<std::optional<NodeRef>> cotangents,
                              std::span<const NodeId> wrt) {
  const std::vector<bool> depends = depend_on(graph, wrt, last);
  const auto first = static_cast<NodeId>(graph.nodes.size());
  std::map<NodeId, std::vector<NodeId>> results_of;  // a scan or cond
  for (NodeId id = 0; id <= last; ++id) {
    if (graph.node(id).op == Op::result) results_of[graph.node(id).operands[0]].push_back(id);
  }
  Recomputed recomputed(graph, last);
  const RecordsBackward backward(graph);
  for (NodeId id = last; id >= 0; --id) {
    const std::optional<NodeRef>& cotangent = cotangents[as_size(id)];
    const Op op = graph.node(id).op;
    if (!depends[as_size(id)] || op == Op::result || (!cotangent && !has_bodies(op))) continue;
    const Attributes attributes = graph.node(id).attributes;  // the graph grows: nodes move
    const std::vector<NodeId> ids = graph.node(id).operands;
    graph.scope = graph.node(id).scope;
    std::vector<std::optional<NodeRef>> of_results;
    if (has_bodies(op)) {
      of_results = cotangents_of_results(graph, id, results_of[id], cotangents);
      if (std::none_of(of_results.begin(), of_results.end(),
                       [](const auto& one) { return one.has_value(); })) {
        continue;
      }
    }
    std::vector<NodeRef> operands;
    std::vector<bool> wanted;
    operands.reserve(ids.size());
    wanted.reserve(ids.size());
    for (const NodeId operand : ids) wanted.push_back(depends[as_size(operand)]);
    if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) continue;  // one of `wrt`
    for (const NodeId operand : ids) operands.push_back({&graph, recomputed.get(operand)});
    const NodeRef result{&graph, recomputed.get(id)};
    const Gradients gradients =
        op == Op::scan   ? scan_gradient({result, operands, of_results, wanted})
        : op == Op::cond ? cond_gradient({result, operands, of_results, wanted})
                         : row(op).gradient({operands, result, *cotangent, attributes, wanted});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!wanted[i] || !gradients[i]) continue;
      std::optional<NodeRef>& sum = cotangents[as_size(ids[i])];
      sum = sum ? *sum + *gradients[i] : *gradients[i];
    }
  }
  std::vector<NodeId> results;
  for (const NodeId id : wrt) {
    const std::optional<NodeRef>& cotangent = cotangents[as_size(id)];
    results.push_back(cotangent ? cotangent->id : -1);
  }
  if (recomputed.any()) put_late(graph, first, recomputed, results);
  return results;
}

}  // namespace detail

std::vector<NodeId> grad(GraphBuilder& graph, NodeId loss, std::span<const NodeId> wrt) {
  check(graph, loss, wrt);
  std::vector<std::optional<NodeRef>> cotangents(graph.nodes.size());
  const detail::RecordsBackward backward(graph);
  cotangents[as_size(loss)] = full_like(NodeRef{&graph, loss}, 1);
  std::vector<NodeId> results = detail::pull_back(graph, loss, std::move(cotangents), wrt);
  for (std::size_t i = 0; i < wrt.size(); ++i) {
    if (results[i] < 0) results[i] = full_like(NodeRef{&graph, wrt[i]}, 0).id;
  }
  return results;
}

std::shared_ptr<GraphBuilder> graph_of(const NodeRef& node) {
  return {std::shared_ptr<GraphBuilder>(), node.graph};  // the caller's own
}

void keep_named(const NodeRef& node, std::string_view name) {
  const std::vector<std::string>& names = node.graph->policy.save_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) return;
  node.graph->node(node.id).is_saved = true;
}

namespace detail {

OpenBlock::OpenBlock(std::shared_ptr<GraphBuilder> graph, CheckpointPolicy policy) {
  if (graph->block != 0) return;
  graph_ = std::move(graph);
  graph_->block = ++graph_->blocks;
  graph_->policy = std::move(policy);
}

OpenBlock::~OpenBlock() {
  if (graph_ == nullptr) return;
  graph_->block = 0;
  graph_->policy = {};
}

}  // namespace detail

}  // namespace shardwise
