#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// One device's view of a call.
struct LocalContext {
  const Mesh& mesh;
  std::int64_t position;  ///< of this device in the mesh
  DeviceId device;
  std::span<const ConstBoxView> inputs;  ///< local shards, with the global box that each holds
  std::span<const BoxView> outputs;      ///< to be written in full

  /// The index of this device along a mesh axis. Throws no_such_name.
  std::int64_t axis_index(std::string_view axis) const {
    return mesh.coordinate(position, mesh.axis_index(axis));
  }
};

/// The work of a call on one device. Called for several devices at once; computes and does not
/// wait.
using LocalFunction = std::function<void(const LocalContext&)>;

}  // namespace shardwise
