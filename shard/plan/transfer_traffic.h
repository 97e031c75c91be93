#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "shardwise/shard/plan/topology.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

/// Bytes by the Link that they cross; nothing crosses Link::same_device.
using LinkBytes = std::array<std::size_t, kNumLinks>;

struct DeviceTraffic {
  DeviceId device = 0;
  std::size_t kept = 0;  ///< wanted on the device and taken from what it holds
  LinkBytes sent = {}, received = {};

  bool operator==(const DeviceTraffic&) const = default;
};

/// What a plan moves.
struct Traffic {
  std::vector<DeviceTraffic> devices;  ///< each place of the plan, ascending
  std::size_t kept = 0;                ///< over all devices
  LinkBytes moved = {};                ///< over all devices, each byte once
};

/// O(copies). Throws not_found for places that the topology does not have, invalid_argument where
/// the bytes of a copy overflow.
Traffic traffic(const TransferPlan& plan, std::size_t element_bytes, const Topology& topology = {});

}  // namespace shardwise
