#pragma once

#include <span>
#include <vector>

#include "shardwise/shard/torus/detail/torus_assignment.h"
#include "shardwise/shard/torus/hybrid_mesh.h"

namespace shardwise::detail {

/// The devices of one slice by their places.
struct Torus {
  Shape shape;
  std::vector<DeviceId> ids;  ///< in row-major order of places
};

/// Throws invalid_argument as physical_mesh().
Torus torus_of(std::span<const DeviceAttributes> devices);

/// Reorders ids from row-major order of places in the torus to row-major order of the logical mesh.
/// Requires as many ids as the product of all factors.
std::vector<DeviceId> laid_out(std::span<const DeviceId> ids, const TorusAssignment& assignment);

}  // namespace shardwise::detail
