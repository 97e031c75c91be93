#include "shardwise/runtime/program/detail/move.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using Positions = std::vector<std::int64_t>;

/// Adds up, over all phases, the bytes that pass between devices.
std::vector<DeviceBytes> traffic_of(const std::vector<MovePhase>& phases, DType dtype) {
  std::map<DeviceId, DeviceBytes> by_device;
  for (const MovePhase& phase : phases) {
    for (const MoveGroup& group : phase.groups) {
      const PieceList& sources = group.plan.sources();
      const PieceList& targets = group.plan.targets();
      for (const Copy& copy : group.plan.copies()) {
        const DeviceId from = sources.place(as_size(copy.source)),
                       to = targets.place(as_size(copy.target));
        if (from == to) continue;
        const std::size_t bytes = as_size(copy.box.num_elements()) * size_bytes(dtype);
        by_device[from].sent += bytes;
        by_device[to].received += bytes;
      }
    }
  }
  std::vector<DeviceBytes> traffic;
  traffic.reserve(by_device.size());
  for (const auto& [device, bytes] : by_device) {
    traffic.push_back({device, bytes.sent, bytes.received});
  }
  return traffic;
}

MovePlan with_traffic(std::vector<MovePhase> phases, DType dtype) {
  std::vector<DeviceBytes> traffic = traffic_of(phases, dtype);
  return {std::move(phases), std::move(traffic)};
}

/// A range of the elements of a row-major shard, cut into parts.
std::vector<Box> even_parts(const Box& range, std::int64_t parts) {
  // Whole pages of f32: large enough for a task, and no two devices write to one cache line.
  constexpr std::int64_t kGrain = 1024;
  const std::int64_t begin = range.begin(0), elements = range.num_elements();
  const std::int64_t even = (elements + parts - 1) / parts;
  const std::int64_t block = (even + kGrain - 1) / kGrain * kGrain;
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < parts; ++i) {
    boxes.emplace_back(Index{begin + std::min(i * block, elements)},
                       Index{begin + std::min((i + 1) * block, elements)});
  }
  return boxes;
}

/// Factors of a number of devices, as few and as equal as possible with none above kMostTogether,
/// except for larger prime factors.
std::vector<std::int64_t> level_sizes(std::int64_t devices) {
  constexpr std::int64_t kMostTogether = 16;
  std::vector<std::int64_t> primes;  // ascending
  for (std::int64_t rest = devices, prime = 2; rest > 1;) {
    if (prime * prime > rest) prime = rest;
    if (rest % prime != 0) {
      ++prime;
      continue;
    }
    primes.push_back(prime);
    rest /= prime;
  }
  const std::int64_t most = primes.empty() ? 1 : std::max(kMostTogether, primes.back());
  for (std::size_t levels = 1;; ++levels) {
    std::vector<std::int64_t> sizes(levels, 1);
    for (auto prime = primes.rbegin(); prime != primes.rend(); ++prime) {
      *std::min_element(sizes.begin(), sizes.end()) *= *prime;
    }
    if (*std::max_element(sizes.begin(), sizes.end()) <= most) return sizes;
  }
}

bool hold_one_box(const Sharding& sharding, const Shape& shape, const Positions& group) {
  const Box first = sharding.box_at(group.front(), shape);
  return std::all_of(group.begin(), group.end(), [&](std::int64_t position) {
    return sharding.box_at(position, shape) == first;
  });
}

std::vector<Piece> pieces_of(const Layout& layout, const Shape& shape, const Positions& group) {
  std::vector<Piece> pieces;
  for (const std::int64_t position : group) {
    pieces.push_back({layout.mesh().device_at(position), layout.box(position, shape)});
  }
  return pieces;
}

Positions all_positions(const Mesh& mesh) {
  Positions positions(as_size(mesh.size()));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

/// Each device combines one part of the shards, and the others copy it from there. So every element
/// is combined once, not once per device. If there are many devices, neighbours combine first. Then
/// the devices that hold the same part combine their results, level by level, in place, and the
/// results go back the same way. So a device exchanges data with few others. The bytes that it
/// sends and receives are the same.
std::vector<MovePhase> all_reduce(const Sharding& sharding, const Shape& shape,
                                  const std::vector<Positions>& groups, Reduction reduction) {
  const std::vector<std::int64_t> levels = level_sizes(std::ssize(groups.front()));
  std::vector<MovePhase> phases(2 * levels.size());
  for (std::size_t i = 0; i < phases.size(); ++i) {
    phases[i].frame = MovePhase::Frame::shard;
    if (i > 0) phases[i].source = MovePhase::Source::new_value;
  }
  for (const Positions& group : groups) {
    const std::int64_t elements = sharding.box_at(group.front(), shape).num_elements();
    std::vector<Box> held(group.size(), Box({0}, {elements}));  // still to be combined, by device
    std::size_t stride = 1;  // between the devices that combine at a level, in the group
    for (std::size_t level = 0; level < levels.size(); ++level) {
      const std::size_t count = as_size(levels[level]);
      for (std::size_t first = 0; first < group.size(); ++first) {
        if (first / stride % count != 0) continue;
        const Box range = held[first];
        const std::vector<Box> boxes = even_parts(range, levels[level]);
        Positions together;
        std::vector<Piece> wholes, parts;
        for (std::size_t i = 0; i < count; ++i) {
          const std::size_t member = first + i * stride;
          const DeviceId device = sharding.mesh().device_at(group[member]);
          together.push_back(group[member]);
          wholes.push_back({device, range});
          parts.push_back({device, boxes[i]});
          held[member] = boxes[i];
        }
        phases[level].groups.push_back(
            {TransferPlan(wholes, parts, {.reduction = reduction}), together, together});
        phases[phases.size() - 1 - level].groups.push_back(
            {TransferPlan(parts, wholes), together, together});
      }
      stride *= count;
    }
  }
  return phases;
}

[[noreturn]] void refuse_permute(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, "permute: " + why);
}

/// The device that sends to each device along the axis; -1: none.
Positions senders(const Sharding& sharding, const Shape& shape,
                  const std::vector<Positions>& groups, std::span<const std::int64_t> targets) {
  const std::size_t count = groups.front().size();
  if (targets.size() != count) {
    refuse_permute(fmt::format("{} targets for {} devices along the axis", targets.size(), count));
  }
  Positions sources(count, -1);
  for (std::size_t i = 0; i < count; ++i) {
    if (targets[i] == -1) continue;
    if (targets[i] < -1 || targets[i] >= static_cast<std::int64_t>(count)) {
      refuse_permute(
          fmt::format("device {} sends to {}, needed -1 to {}", i, targets[i], count - 1));
    }
    std::int64_t& source = sources[as_size(targets[i])];
    if (source != -1)
      refuse_permute(fmt::format("device {} along the axis receives twice", targets[i]));
    source = static_cast<std::int64_t>(i);
    for (const Positions& group : groups) {
      const std::int64_t receiver = group[as_size(targets[i])];
      const Shape sent = sharding.box_at(group[i], shape).shape();
      const Shape wanted = sharding.box_at(receiver, shape).shape();
      if (sent == wanted) continue;
      refuse_permute(fmt::format("position {} would send {} to position {}, which holds {}",
                                 group[i], to_string(sent), receiver, to_string(wanted)));
    }
  }
  return sources;
}

}  // namespace

std::vector<Positions> position_groups(const Mesh& mesh, std::span<const std::size_t> axes) {
  std::vector<Positions> groups;
  std::vector<std::size_t> group_of(as_size(mesh.size()));
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    std::int64_t first = position;
    for (const std::size_t axis : axes) {
      first -= mesh.coordinate(position, axis) * mesh.stride(axis);
    }
    if (first == position) {
      group_of[as_size(position)] = groups.size();
      groups.emplace_back();
    }
    groups[group_of[as_size(first)]].push_back(position);
  }
  return groups;
}

MovePlan plan_move(const Sharding& from, const Sharding& to, const Shape& shape, DType dtype,
                   std::span<const std::size_t> axes, Reduction reduction) {
  if (reduction != Reduction::none && reduction != Reduction::bit_or && !is_computed(dtype)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("plan a reduction: found {}, needed a type that is computed with",
                            name(dtype)));
  }
  const std::vector<Positions> groups = position_groups(from.mesh(), axes);
  if (reduction != Reduction::none && from == to && hold_one_box(from, shape, groups.front())) {
    return with_traffic(all_reduce(from, shape, groups, reduction), dtype);
  }
  MovePhase phase;
  for (const Positions& group : groups) {
    phase.groups.push_back({TransferPlan(pieces_of(from, shape, group), pieces_of(to, shape, group),
                                         {.reduction = reduction}),
                            group, group});
  }
  return with_traffic({std::move(phase)}, dtype);
}

MovePlan plan_redistribution(const Sharding& from, const Sharding& to, const Shape& shape,
                             DType dtype) {
  MovePhase phase;
  phase.groups.push_back({TransferPlan::reshard(from, to, shape), all_positions(from.mesh()),
                          all_positions(to.mesh())});
  return with_traffic({std::move(phase)}, dtype);
}

MovePlan plan_redistribution(const Layout& from, const Layout& to, const Shape& shape,
                             DType dtype) {
  if (!from.has_windows() && !to.has_windows()) {
    return plan_redistribution(from.sharding(), to.sharding(), shape, dtype);
  }
  const Positions all = all_positions(from.mesh());
  MovePhase phase;
  phase.groups.push_back(
      {TransferPlan(pieces_of(from, shape, all), pieces_of(to, shape, all)), all, all});
  return with_traffic({std::move(phase)}, dtype);
}

std::size_t most_received(const Layout& from, const Layout& to, const Shape& shape, DType dtype) {
  std::int64_t most = 0;
  for (std::int64_t position = 0; position < to.mesh().size(); ++position) {
    // A device takes elements that it has from itself.
    const Box wanted = to.box(position, shape);
    const Box there = intersect(wanted, from.box(position, shape));
    most = std::max(most, wanted.num_elements() - there.num_elements());
  }
  return as_size(most) * size_bytes(dtype);
}

MovePlan plan_permute(const Sharding& sharding, const Shape& shape, DType dtype, std::size_t axis,
                      std::span<const std::int64_t> targets) {
  const std::size_t axes[] = {axis};
  const std::vector<Positions> groups = position_groups(sharding.mesh(), axes);
  const Positions sources = senders(sharding, shape, groups, targets);
  MovePhase phase{MovePhase::Source::old_value, MovePhase::Frame::shard, {}};
  for (const Positions& group : groups) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      if (sources[i] < 0) continue;
      const std::int64_t sender = group[as_size(sources[i])], receiver = group[i];
      const Box shard({0}, {sharding.box_at(sender, shape).num_elements()});
      phase.groups.push_back({TransferPlan({{sharding.mesh().device_at(sender), shard}},
                                           {{sharding.mesh().device_at(receiver), shard}}),
                              {sender},
                              {receiver}});
    }
  }
  return with_traffic({std::move(phase)}, dtype);
}

bool MovePlan::same_targets(const MovePlan& other) const {
  const auto same_group = [](const MoveGroup& a, const MoveGroup& b) {
    return a.sources == b.sources && a.targets == b.targets;
  };
  return std::equal(phases.begin(), phases.end(), other.phases.begin(), other.phases.end(),
                    [&](const MovePhase& a, const MovePhase& b) {
                      return a.source == b.source &&
                             std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(),
                                        b.groups.end(), same_group);
                    });
}

}  // namespace shardwise
