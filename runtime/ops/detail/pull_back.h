#pragma once

#include <optional>
#include <span>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/ops/detail/row.h"

namespace shardwise::detail {

/// Nodes up to `last` that a change of `wrt` changes, and that may have a gradient.
std::vector<bool> depend_on(const Graph& graph, std::span<const NodeId> wrt, NodeId last);

/// The core of grad(), for any cotangents: appends the gradient with respect to each of `wrt` of
/// the nodes with a cotangent, by node up to `last`. -1 for those without a gradient.
std::vector<NodeId> pull_back(GraphBuilder& graph, NodeId last,
                              std::vector<std::optional<NodeRef>> cotangents,
                              std::span<const NodeId> wrt);

/// While it lives, nodes belong to a gradient; afterwards the scope is restored.
class RecordsBackward {
 public:
  explicit RecordsBackward(GraphBuilder& graph)
      : graph_(graph), scope_(graph.scope), was_backward_(graph.backward) {
    graph.backward = true;
  }
  ~RecordsBackward() {
    graph_.backward = was_backward_;
    graph_.scope = scope_;
  }
  RecordsBackward(const RecordsBackward&) = delete;
  RecordsBackward& operator=(const RecordsBackward&) = delete;

 private:
  GraphBuilder& graph_;
  const std::int32_t scope_;
  const bool was_backward_;
};

/// A scan or cond whose gradient is wanted.
struct BodiesGradientCall {
  NodeRef node;
  std::span<const NodeRef> operands;
  std::span<const std::optional<NodeRef>> cotangents;  ///< by result
  const std::vector<bool>& wanted;                     ///< by operand
};

/// Appends a scan in the other direction. The first scan is changed to give the values of each trip
/// that the second needs, stacked.
Gradients scan_gradient(const BodiesGradientCall& call);

/// Appends a cond of the gradients of both branches, which recompute the values that they need.
Gradients cond_gradient(const BodiesGradientCall& call);

}  // namespace shardwise::detail
