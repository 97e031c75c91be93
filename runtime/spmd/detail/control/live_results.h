#pragma once

#include <memory>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/detail/partition.h"

namespace shardwise {

/// The same program in which scans and conds have only the results that something uses, and the
/// carries, operands and outputs of bodies that these need. Nodes keep their numbers; a `result`
/// that nothing uses gets the index -1. The graph itself if it has neither.
std::shared_ptr<const Graph> without_unused_results(const std::shared_ptr<const Graph>& graph);

/// Takes out steps that nothing needs: what was made and then made again elsewhere.
void drop_unused_steps(PartitionedGraph& partitioned);

}  // namespace shardwise
