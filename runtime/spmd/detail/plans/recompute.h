#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/runtime/graph/graph.h"

namespace shardwise::detail {

/// Scopes that differ only in a number: "model/layers/3" and "model/layers/4".
struct RepeatedBlocks {
  std::string name;                    ///< "model/layers/*"
  std::int32_t count = 0;              ///< at least 2
  std::vector<std::int32_t> of_scope;  ///< by Graph::scopes: the number of its block; -1: none
};

/// Blocks with values that a gradient uses, those with the most such nodes first.
std::vector<RepeatedBlocks> repeated_blocks(const Graph& graph);

/// The graph with the values that blocks keep for the gradient recomputed just before the gradient
/// first uses them, as checkpoint() of each block does. Values that other blocks use are kept.
std::shared_ptr<const Graph> recomputed(const Graph& graph, const RepeatedBlocks& blocks);

}  // namespace shardwise::detail
