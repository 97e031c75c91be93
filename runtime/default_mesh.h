#pragma once

#include <optional>

#include "shardwise/shard/mesh.h"

namespace shardwise {

/// The mesh that a program has named as its own, if any: PyTorch/XLA's set_global_mesh() and
/// get_global_mesh(). A tracer that was given no mesh takes it, in mark_sharding() without a mesh
/// and in the first step; nothing else in Shardwise reads it.
///
/// Thread-safe.
std::optional<Mesh> default_mesh();

/// Replaces it; without a value there is no default mesh again.
void set_default_mesh(std::optional<Mesh> mesh);

}  // namespace shardwise
