#include "shardwise/runtime/ops/autodiff.h"

#include <fmt/format.h>

#include <cstddef>
#include <optional>

#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/ops/detail/rules.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// Nodes up to `last` that a change of `wrt` changes, and that may have a gradient.
std::vector<bool> depend_on(const Graph& graph, std::span<const NodeId> wrt, NodeId last) {
  std::vector<bool> depends(graph.nodes.size(), false);
  for (const NodeId id : wrt) depends[as_size(id)] = true;
  for (NodeId id = 0; id <= last; ++id) {
    const Node& node = graph.node(id);
    if (!is_floating(node.type.dtype)) continue;
    for (const NodeId operand : node.operands) {
      if (depends[as_size(operand)]) depends[as_size(id)] = true;
    }
  }
  return depends;
}

/// Until it goes, nodes belong to a gradient; then the scope is what it was.
class RecordsBackward {
 public:
  explicit RecordsBackward(Graph& graph) : graph_(graph), scope_(graph.scope) {
    graph.backward = true;
  }
  ~RecordsBackward() {
    graph_.backward = false;
    graph_.scope = scope_;
  }
  RecordsBackward(const RecordsBackward&) = delete;
  RecordsBackward& operator=(const RecordsBackward&) = delete;

 private:
  Graph& graph_;
  const std::int32_t scope_;
};

void check(const Graph& graph, NodeId loss, std::span<const NodeId> wrt) {
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

}  // namespace

std::vector<NodeId> grad(Graph& graph, NodeId loss, std::span<const NodeId> wrt) {
  check(graph, loss, wrt);
  const std::vector<bool> depends = depend_on(graph, wrt, loss);
  std::vector<std::optional<NodeRef>> cotangents(graph.nodes.size());
  const RecordsBackward backward(graph);
  cotangents[as_size(loss)] = full_like(NodeRef{&graph, loss}, 1);
  for (NodeId id = loss; id >= 0; --id) {
    const std::optional<NodeRef>& cotangent = cotangents[as_size(id)];
    if (!cotangent || !depends[as_size(id)]) continue;
    const Op op = graph.node(id).op;
    const Attributes attributes = graph.node(id).attributes;  // the graph grows: nodes move
    const std::vector<NodeId> ids = graph.node(id).operands;
    std::vector<NodeRef> operands;
    std::vector<bool> wanted;
    for (const NodeId operand : ids) {
      operands.push_back({&graph, operand});
      wanted.push_back(depends[as_size(operand)]);
    }
    graph.scope = graph.node(id).scope;
    const NodeRef result{&graph, id};
    const Gradients gradients =
        row(op).gradient({operands, result, *cotangent, attributes, wanted});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!wanted[i] || !gradients[i]) continue;
      std::optional<NodeRef>& sum = cotangents[as_size(ids[i])];
      sum = sum ? *sum + *gradients[i] : *gradients[i];
    }
  }
  std::vector<NodeId> results;
  for (const NodeId id : wrt) {
    const std::optional<NodeRef>& cotangent = cotangents[as_size(id)];
    results.push_back(cotangent ? cotangent->id : full_like(NodeRef{&graph, id}, 0).id);
  }
  return results;
}

}  // namespace shardwise
