#pragma once

#include <memory>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/detail/partition.h"

namespace shardwise {

/// The same program, with scans and conds reduced to the results that are used, and the carries,
/// operands and outputs of bodies that these need. Nodes keep their numbers; an unused `result`
/// gets the index -1. Returns the graph itself if it has neither.
std::shared_ptr<const Graph> without_unused_results(const std::shared_ptr<const Graph>& graph);

/// Removes steps whose results are unused because they were made again elsewhere.
void drop_unused_steps(PartitionedGraph& partitioned);

}  // namespace shardwise
