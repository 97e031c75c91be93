#pragma once

#include <span>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Appends the gradient of `loss` with respect to each of `wrt`, by the gradient rule of each op
/// from `loss` back (reverse mode). Gives a node for each of `wrt`, which is zeros if the loss does
/// not depend on it. The new nodes are marked as backward, in the scope of the node that they come
/// from. Works on the program for one device; how it is cut plays no part.
///
/// Throws invalid_argument if the loss is not a floating scalar or one of `wrt` not floating.
std::vector<NodeId> grad(Graph& graph, NodeId loss, std::span<const NodeId> wrt);

}  // namespace shardwise
