#pragma once

#include <cstddef>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/detail/partition.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise {

/// Steps of a partitioned graph that run as one.
struct FusedStep {
  /// By PartitionedGraph::steps, in order. Elementwise ones: a kernel that reads constants and
  /// repeated operands directly. Several moves: a bucket.
  std::vector<std::size_t> steps;
  bool is_elementwise = false;
};

/// Orders the steps legally, and joins elementwise ones of one shape and cut that use each other,
/// and, in buckets, sums over the same devices that do not wait for each other. Leaves out unneeded
/// steps: constants and broadcasts that only elementwise kernels read.
std::vector<FusedStep> fuse(const Graph& graph, const PartitionedGraph& partitioned,
                            NanCheck nan_check);

}  // namespace shardwise
