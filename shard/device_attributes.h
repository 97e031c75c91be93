#pragma once

#include <cstdint>
#include <optional>

#include "shardwise/shard/device_order.h"
#include "shardwise/shard/dims.h"

namespace shardwise {

/// Where a device is.
///
/// Value type, thread-compatible.
struct DeviceAttributes {
  DeviceId id = 0;

  /// Its place in the torus that joins the devices of a slice, as in {x, y, z}; empty where there
  /// is no torus. Where a chip has several cores that are devices of their own, the core is the
  /// last coordinate.
  Index coordinates = {};

  /// The slice, a set of devices with a fast network among themselves; absent where all are one.
  std::optional<std::int64_t> slice_index = {};

  /// The process that the device belongs to.
  std::int64_t process = 0;
};

}  // namespace shardwise
