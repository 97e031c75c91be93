#pragma once

#include <vector>

#include "shardwise/shard/mesh.h"

namespace shardwise {

/// The devices of a mesh, in its order.
inline std::vector<DeviceId> devices_of(const Mesh& mesh) {
  std::vector<DeviceId> ids;
  for (std::int64_t p = 0; p < mesh.size(); ++p) ids.push_back(mesh.device_at(p));
  return ids;
}

}  // namespace shardwise
