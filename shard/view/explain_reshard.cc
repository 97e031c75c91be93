#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "shardwise/shard/text.h"
#include "shardwise/shard/view/explain.h"

namespace shardwise {
namespace {

/// "6 elements (24 B)"
std::string amount(std::int64_t elements, std::size_t element_bytes) {
  return fmt::format("{} element{} ({})", elements, elements == 1 ? "" : "s",
                     human_bytes(as_size(elements) * element_bytes));
}

}  // namespace

ReshardExplanation explain_reshard(const Sharding& from, const Sharding& to, const Shape& shape) {
  const TransferPlan plan = TransferPlan::reshard(from, to, shape);
  std::map<DeviceId, DeviceChange> changes;
  for (const PieceList* pieces : {&plan.sources(), &plan.targets()}) {
    for (const DeviceId device : pieces->places()) {
      changes.try_emplace(device, DeviceChange{device, 0, 0, 0, {}});
    }
  }
  for (const Piece& held : plan.sources()) {
    changes.at(held.place).dropped = held.box.num_elements();
  }
  std::map<std::pair<DeviceId, DeviceId>, std::int64_t> fetched;  // to, from
  for (const Copy& copy : plan.copies()) {
    const DeviceId source = plan.sources().place(static_cast<std::size_t>(copy.source));
    const DeviceId target = plan.targets().place(static_cast<std::size_t>(copy.target));
    if (source != target) {
      fetched[{target, source}] += copy.box.num_elements();
      continue;
    }
    // A device takes the elements that it has and needs from itself.
    changes.at(target).kept += copy.box.num_elements();
    changes.at(target).dropped -= copy.box.num_elements();
  }
  for (const auto& [ends, elements] : fetched) {
    DeviceChange& change = changes.at(ends.first);
    change.fetched += elements;
    change.fetches.push_back({ends.second, elements});
  }
  ReshardExplanation result{plan.classify(), 0, 0, 0, from == to, {}};
  for (auto& [device, change] : changes) {
    result.kept += change.kept;
    result.fetched += change.fetched;
    result.dropped += change.dropped;
    result.devices.push_back(std::move(change));
  }
  return result;
}

std::string ReshardExplanation::to_string(std::size_t element_bytes,
                                          std::size_t most_devices) const {
  std::string text = fmt::format("{}: ", name(transfer));
  if (needs_communication()) {
    text += "communication is needed\n";
  } else if (same_placement) {
    text += "no communication: both place every element alike\n";
  } else {
    text += "no communication: each device already has the elements that it needs\n";
  }
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "in all: kept {}, fetched {}, dropped {}\n", amount(kept, element_bytes),
                 amount(fetched, element_bytes), amount(dropped, element_bytes));
  for (std::size_t i = 0; i < std::min(most_devices, devices.size()); ++i) {
    const DeviceChange& change = devices[i];
    fmt::format_to(out, "device {}: keeps {}, fetches {}", change.device,
                   amount(change.kept, element_bytes), amount(change.fetched, element_bytes));
    constexpr std::size_t kMostSources = 8;
    for (std::size_t k = 0; k < std::min(kMostSources, change.fetches.size()); ++k) {
      fmt::format_to(out, "{} {} from {}", k == 0 ? ":" : ",", change.fetches[k].elements,
                     change.fetches[k].from);
    }
    if (change.fetches.size() > kMostSources) {
      fmt::format_to(out, " and from {} more", change.fetches.size() - kMostSources);
    }
    fmt::format_to(out, "; drops {}\n", amount(change.dropped, element_bytes));
  }
  if (devices.size() > most_devices) {
    fmt::format_to(out, "and {} more devices\n", devices.size() - most_devices);
  }
  return text;
}

}  // namespace shardwise
