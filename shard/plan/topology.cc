#include <fmt/format.h>

#include <algorithm>

#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

std::string_view name(Link link) {
  switch (link) {
    case Link::same_device:
      return "same_device";
    case Link::same_process:
      return "same_process";
    case Link::same_slice:
      return "same_slice";
    case Link::between_slices:
      return "between_slices";
  }
  return "unknown";
}

Link link_between(const Topology::Site& a, const Topology::Site& b) {
  if (a.slice != b.slice) return Link::between_slices;
  return a.process == b.process ? Link::same_process : Link::same_slice;
}

Topology::Topology(std::span<const DeviceAttributes> devices) : one_process_(false) {
  entries_.reserve(devices.size());
  for (const DeviceAttributes& device : devices) {
    // Devices without a slice index are a slice of their own, not slice 0.
    entries_.push_back({device.id, {device.slice_index.value_or(-1), device.process}});
  }
  const auto by_device = [](const Entry& a, const Entry& b) { return a.device < b.device; };
  std::sort(entries_.begin(), entries_.end(), by_device);
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    if (entries_[i - 1].device != entries_[i].device) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("topology: device {} is there twice; needed are distinct devices",
                            entries_[i].device));
  }
}

Topology::Site Topology::site(DeviceId device) const {
  if (one_process_) return {};
  // Devices are mostly numbered from 0 on.
  const auto at = static_cast<std::size_t>(device);
  if (device >= 0 && at < entries_.size() && entries_[at].device == device) {
    return entries_[at].site;
  }
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), device,
                       [](const Entry& entry, DeviceId id) { return entry.device < id; });
  if (found == entries_.end() || found->device != device) {
    throw Error(ErrorCode::not_found, fmt::format("topology: device {} is not among its {} devices",
                                                  device, entries_.size()));
  }
  return found->site;
}

Link Topology::link(DeviceId a, DeviceId b) const {
  const Site at = site(a);
  return a == b ? Link::same_device : link_between(at, site(b));
}

}  // namespace shardwise
