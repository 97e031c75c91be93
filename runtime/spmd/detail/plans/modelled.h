#pragma once

#include <cstddef>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/detail/partition.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/shard/mesh.h"

namespace shardwise::detail {

/// The modelled cost of one run on a device of a machine, by the bound of each operation.
struct Modelled {
  double device_flops = 0;     ///< of products
  double compute_seconds = 0;  ///< of operations that take longer to compute than to read and write
  double memory_seconds = 0;   ///< of the others
  double wire_seconds = 0;     ///< of collectives, one after another
  double wire_bytes = 0;       ///< that one device sends in rings

  double seconds() const { return compute_seconds + memory_seconds + wire_seconds; }
};

/// Bodies of scans as often as they run; of a cond the branch that takes longer.
Modelled modelled(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
                  const PartitionedGraph& partitioned, const Machine& machine);

/// The same for one step, by its number in the partitioned graph; a loop with all its trips.
/// `within` is within_kernels() of the graph.
Modelled modelled_step(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
                       const PartitionedGraph& partitioned, std::size_t step,
                       const std::vector<bool>& within, const Machine& machine);

}  // namespace shardwise::detail
