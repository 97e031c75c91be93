#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shardwise/shard/device_attributes.h"

namespace shardwise {

/// The connection between two devices, the nearest first.
enum class Link {
  same_device,
  same_process,
  same_slice,      ///< the fast network between processes
  between_slices,  ///< the slow network
};
inline constexpr std::size_t kNumLinks = 4;

/// "same_device", ...
std::string_view name(Link link);

/// Which process and slice each device belongs to.
///
/// Immutable, thread-safe.
///
///   const Topology topology(devices);
///   topology.link(0, 5);                // Link::same_slice
class Topology {
 public:
  /// All devices there may be are in one process.
  Topology() = default;

  /// Devices without a slice index are one slice. Throws invalid_argument where an id repeats.
  explicit Topology(std::span<const DeviceAttributes> devices);

  /// Devices with one site belong to one process.
  struct Site {
    std::int64_t slice = 0, process = 0;

    auto operator<=>(const Site&) const = default;
  };

  /// Throws not_found for a device that is not among those given.
  Site site(DeviceId device) const;
  Link link(DeviceId a, DeviceId b) const;

 private:
  struct Entry {
    DeviceId device;
    Site site;
  };
  std::vector<Entry> entries_;  // by device
  bool one_process_ = true;
};

/// The link between a device at one site and another device at the other site.
Link link_between(const Topology::Site& a, const Topology::Site& b);

}  // namespace shardwise
