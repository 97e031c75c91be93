#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Appends the gradient of `loss` with respect to each of `wrt`, by the gradient rule of each op
/// from `loss` back (reverse mode). Returns a node for each of `wrt`, which is zeros if the loss
/// does not depend on it. The new nodes are marked as backward, in the scope of the node that they
/// come from. Works on the program for one device, independently of its sharding.
///
/// Throws invalid_argument if the loss is not a floating scalar or one of `wrt` not floating.
///
/// Values that blocks of checkpoint() do not keep are appended again, as backward nodes, right
/// before the gradient of the block's last operation. (Source: Griewank and Walther, "Algorithm
/// 799: revolve", with one checkpoint per block; Chen et al., "Training Deep Nets with Sublinear
/// Memory Cost".)
std::vector<NodeId> grad(GraphBuilder& graph, NodeId loss, std::span<const NodeId> wrt);

/// The graph that a node's operations are appended to; for tensors see tensor.h.
std::shared_ptr<GraphBuilder> graph_of(const NodeRef& node);

/// Implements checkpoint_name().
void keep_named(const NodeRef& node, std::string_view name);

namespace detail {

/// While it lives, nodes belong to a new block; inside another block, to that one.
class OpenBlock {
 public:
  OpenBlock(std::shared_ptr<GraphBuilder> graph, CheckpointPolicy policy);
  ~OpenBlock();
  OpenBlock(const OpenBlock&) = delete;
  OpenBlock& operator=(const OpenBlock&) = delete;

 private:
  std::shared_ptr<GraphBuilder> graph_;  ///< null inside another block
};

}  // namespace detail

/// Returns block(x). Its intermediate values are not kept for the gradient, except those of the
/// policy: they are computed again for it, from x and the other values that the block uses from
/// outside. This saves memory and costs time; values are the same. Like jax.checkpoint and
/// torch.utils.checkpoint, it has nothing to do with checkpoints on disk. A block in a block is
/// part of the outer one. Tracer::mark_step() throws invalid_argument inside a block.
///
///   for (const Layer& layer : layers) {
///     h = checkpoint([&](const Tensor& x) { return layer(x); }, h, {.save_products = true});
///   }
template <TensorLike T, std::invocable<const T&> Block>
auto checkpoint(Block&& block, const T& x, CheckpointPolicy policy = {}) {
  const detail::OpenBlock open(graph_of(x), std::move(policy));
  return std::invoke(std::forward<Block>(block), x);
}

/// x, which a block of checkpoint() keeps if its policy has the name. Has no effect outside a
/// block.
template <TensorLike T>
T checkpoint_name(const T& x, std::string_view name) {
  keep_named(x, name);
  return x;
}

// Other names that people try; each comment has the code to write.
void remat(const auto&, const TensorLike auto&, const auto&...) = delete;  // checkpoint(block, x)
void gradient(const TensorLike auto&, const auto&...) = delete;            // grad(loss, weights)

}  // namespace shardwise
