#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "shardwise/runtime/graph/graph.h"

namespace shardwise::detail {

/// The first product or look-up that takes a weight, or a copy of it in another type or shape.
struct FirstProduct {
  std::vector<NodeId> place;  ///< the node; if it is in a loop, the loop and then the node there
  std::size_t column = 0;  ///< the dim of the weight that the product keeps; of a table, its rows
};

std::optional<FirstProduct> first_product(const Graph& graph, NodeId tensor);

}  // namespace shardwise::detail
