#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/detail/cut.h"

namespace shardwise {

/// The part of an operand with which a device can make the node's tensor cut as `wanted`, which may
/// have windows, instead of getting it from others. Absent if the op does more than put elements at
/// other places, or if no cut expresses that part.
std::optional<Cut> needed_to_remake(const Graph& graph, const Node& node, const FactorRule& rule,
                                    std::size_t operand, const Cut& wanted);

/// True if the op only puts elements at other places, or has no operands.
bool can_be_remade(const Node& node);

/// True if the node has more elements than its operands. A part of it is better made from them than
/// taken from the whole, which may have no other use.
bool repeats(const Graph& graph, NodeId id);

/// By node: true for a parameter, or one in another dtype, as in mixed precision. Parameters
/// gathered for the loss are gathered again for the gradient, instead of being kept.
std::vector<bool> weights_of(const Graph& graph);

/// By node: how often, before it, nodes that use weights switched between a loss and its gradient.
std::vector<std::int64_t> passes_of(const Graph& graph, const std::vector<bool>& is_weight);

}  // namespace shardwise
