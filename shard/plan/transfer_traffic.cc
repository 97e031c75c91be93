#include "shardwise/shard/plan/transfer_traffic.h"

#include <algorithm>

namespace shardwise {
namespace {

/// Per piece, which of the devices it lies on.
std::vector<std::size_t> devices_of(const PieceList& pieces,
                                    const std::vector<DeviceTraffic>& devices) {
  std::vector<std::size_t> numbers;
  numbers.reserve(pieces.size());
  for (const DeviceId place : pieces.places()) {
    const auto found = std::lower_bound(
        devices.begin(), devices.end(), place,
        [](const DeviceTraffic& device, DeviceId id) { return device.device < id; });
    numbers.push_back(static_cast<std::size_t>(found - devices.begin()));
  }
  return numbers;
}

}  // namespace

Traffic traffic(const TransferPlan& plan, std::size_t element_bytes, const Topology& topology) {
  std::vector<DeviceId> places(plan.sources().places().begin(), plan.sources().places().end());
  places.insert(places.end(), plan.targets().places().begin(), plan.targets().places().end());
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  Traffic result;
  std::vector<Topology::Site> sites;
  for (const DeviceId place : places) {
    result.devices.push_back({.device = place});
    sites.push_back(topology.site(place));
  }
  const std::vector<std::size_t> source_device = devices_of(plan.sources(), result.devices);
  const std::vector<std::size_t> target_device = devices_of(plan.targets(), result.devices);
  for (const Copy& copy : plan.copies()) {
    const std::size_t from = source_device[static_cast<std::size_t>(copy.source)];
    const std::size_t to = target_device[static_cast<std::size_t>(copy.target)];
    const std::size_t bytes = num_bytes(copy.box.shape(), element_bytes);
    if (from == to) {
      result.devices[to].kept += bytes;
      result.kept += bytes;
      continue;
    }
    const auto link = static_cast<std::size_t>(link_between(sites[from], sites[to]));
    result.devices[from].sent[link] += bytes;
    result.devices[to].received[link] += bytes;
    result.moved[link] += bytes;
  }
  return result;
}

}  // namespace shardwise
