#pragma once

#include <span>
#include <vector>

#include "shardwise/runtime/graph/graph.h"

namespace shardwise {

/// Appends what computes the gradient of `loss` with respect to each of `wrt`, by the gradient rule
/// of each op from `loss` back (reverse mode), and gives its nodes, one for each of `wrt`: of zeros
/// where the loss does not depend on it. The new nodes are marked as backward, in the scope of the
/// node that they come from. Works on the program for one device; how it is cut plays no part.
///
/// Throws invalid_argument where the loss is not a floating scalar or one of `wrt` not floating.
std::vector<NodeId> grad(Graph& graph, NodeId loss, std::span<const NodeId> wrt);

}  // namespace shardwise
