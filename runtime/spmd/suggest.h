#pragma once

#include <cstddef>
#include <string>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

/// What could be marked otherwise so that no device needs more than `capacity_bytes`: one of the
/// largest inputs, or all weights and optimizer state, cut over one more mesh axis. Plans each to
/// see. "it fits with \"w1\" cut as fsdp,-: peak 1024 bytes", or that nothing of this kind does.
std::string suggest(const Graph& graph, const Mesh& mesh, const CompileOptions& options,
                    std::size_t capacity_bytes);

}  // namespace shardwise
