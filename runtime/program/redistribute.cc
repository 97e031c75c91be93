#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/program/detail/fill_target.h"
#include "shardwise/runtime/program/detail/move.h"
#include "shardwise/runtime/program/detail/remote_copies.h"
#include "shardwise/runtime/program/detail/run.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

/// The same number on all processes that move the same array in the same way.
std::uint64_t what_moves(const ShardedArray& array, const Sharding& to) {
  Mixer mixer;
  for (const std::string& text :
       {to_string(array.shape()), array.sharding().to_string(), to.to_string()}) {
    mixer.add(text);
  }
  return mixer.state();
}

}  // namespace

// Here rather than with the other members, since a redistribution is a move.
ShardedArray ShardedArray::redistribute(Devices& devices, const Sharding& to,
                                        std::string_view label) const {
  const MovePlan plan = plan_redistribution(sharding(), to, shape(), dtype());
  const TransferPlan& copies = plan.phases.front().groups.front().plan;
  std::vector<std::shared_ptr<Buffer>> shards;
  const std::uint64_t tag = what_moves(*this, to);
  detail::together(devices, [&] {
    const std::array<ProcessGroup::Fact, 3> facts{
        {{"the dtype", static_cast<std::uint64_t>(dtype())},
         {"the number of elements", static_cast<std::uint64_t>(num_elements(shape()))},
         {"a hash of shape and shardings", tag}}};
    devices.group().agree("redistribute an array", facts);
    std::vector<std::int64_t> to_fill;
    for (std::int64_t position = 0; position < to.mesh().size(); ++position) {
      const DeviceId device = to.mesh().device_at(position);
      if (!devices.is_addressable(device)) {
        shards.emplace_back();
        continue;
      }
      const Box box = to.box_at(position, shape());
      const auto old = sharding().mesh().position_of(device);
      if (old && sharding().box_at(*old, shape()) == box) {
        shards.push_back(data_->shards[static_cast<std::size_t>(*old)]);
      } else {
        const std::size_t bytes = num_bytes(box.shape(), size_bytes(dtype()));
        shards.push_back(devices.at(device).allocate(bytes, MemoryKind::array, label));
        to_fill.push_back(position);
      }
    }
    const detail::Transfer transfer{
        .plan = &copies,
        .dtype = dtype(),
        .source_device = [&](std::int64_t source) { return sharding().mesh().device_at(source); },
        .target_device = [&](std::int64_t target) { return to.mesh().device_at(target); }};
    const detail::RemotePlan messages({&transfer, 1}, devices);
    const detail::RemoteCopies remote(
        messages, devices, tag, [&](std::size_t, std::int64_t source) { return shard(source); });
    const detail::SourceMemory source = [&](const Copy& copy) { return remote.from(0, copy); };
    devices.executor().parallel_for(static_cast<std::int64_t>(to_fill.size()), [&](std::int64_t i) {
      const std::int64_t position = to_fill[static_cast<std::size_t>(i)];
      std::byte* const data = shards[static_cast<std::size_t>(position)]->data();
      detail::fill_target(copies, position, dtype(), source, {data, to.box_at(position, shape())});
    });
  });
  count_traffic(plan, devices);
  return from_shards(devices, {dtype(), shape(), to}, std::move(shards));
}

}  // namespace shardwise
