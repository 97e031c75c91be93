#pragma once

#include <string>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/runtime/spmd/plans.h"

// Tensors, marks and reasons in words.
namespace shardwise::detail {

/// `"w1"` for an input; else "%98"
std::string tensor_text(const Graph& graph, NodeId node);

/// `line 2 marks "w1" as -,model`. Requires a mark.
std::string mark_text(const Graph& graph, NodeId node, const LineOf& line_of);

/// As those of an Executable.
std::vector<CutReason> cut_reasons(const Graph& graph, const Mesh& mesh,
                                   const Propagation& propagation, NodeId node);

/// `dim 1 by model: because line 2 marks "w1" as -,model, by way of %3, %5`
std::string reason_text(const Graph& graph, const CutReason& reason, const LineOf& line_of);

}  // namespace shardwise::detail
