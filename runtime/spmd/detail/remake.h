#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/detail/cut.h"

namespace shardwise {

/// What a device needs of an operand of a node to have the node's tensor cut as `wanted`, which may
/// have windows: with it the device can make that again, instead of getting it from others. Nothing
/// if the op does more than put elements at other places, or if no cut says what is needed.
std::optional<Cut> needed_to_remake(const Graph& graph, const Node& node, const FactorRule& rule,
                                    std::size_t operand, const Cut& wanted);

/// The op puts elements at other places, or needs none.
bool can_be_remade(const Node& node);

/// The node has more elements than its operands. A part of it is better made from them than taken
/// from the whole, which may have no other use.
bool repeats(const Graph& graph, NodeId id);

/// By node: it is a parameter, or one in another dtype, as mixed precision has it. What is gathered
/// of these for the loss is gathered again for the gradient, in place of being kept.
std::vector<bool> weights_of(const Graph& graph);

/// By node: how often, before it, nodes that use weights turned from a loss to its gradient or
/// back.
std::vector<std::int64_t> passes_of(const Graph& graph, const std::vector<bool>& is_weight);

}  // namespace shardwise
