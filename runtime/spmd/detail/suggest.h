#pragma once

#include <cstddef>
#include <string>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

/// Marks with which no device needs more than `capacity_bytes` for the program, including its
/// inputs and outputs: on one of the largest inputs, several of them, or all weights and optimizer
/// state, each cut over one more mesh axis. Plans each to see, as far as a bounded number of nodes
/// goes; nothing runs.
///
///   it fits with "w1" cut as fsdp,- and "w2" cut as -,fsdp: peak 1.50 MiB (1572864 bytes)
///
/// or the lowest peak that was found. On one line. Errors of attempts are ignored.
std::string suggest(const Graph& graph, const Mesh& mesh, const CompileOptions& options,
                    std::size_t capacity_bytes);

}  // namespace shardwise
