#pragma once

#include <cstddef>
#include <string>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

/// What could be marked otherwise so that no device needs more than `capacity_bytes` for the
/// program, its inputs and outputs included: one of the largest inputs, several of them, or all
/// weights and optimizer state, each cut over one more mesh axis. Plans each to see, as far as a
/// bounded number of nodes goes; nothing runs.
///
///   it fits with "w1" cut as fsdp,- and "w2" cut as -,fsdp: peak 1.50 MiB (1572864 bytes)
///
/// or the least that was found. On one line. Errors of what is tried are no advice and are not
/// thrown on.
std::string suggest(const Graph& graph, const Mesh& mesh, const CompileOptions& options,
                    std::size_t capacity_bytes);

}  // namespace shardwise
