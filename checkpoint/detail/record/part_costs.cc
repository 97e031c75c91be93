#include "shardwise/checkpoint/detail/record/part_costs.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "shardwise/checkpoint/detail/record/packer.h"

namespace shardwise::detail {

PartCosts costlier(const PartCosts& a, const PartCosts& b) {
  PartCosts most = a.plan_seconds + a.write_seconds < b.plan_seconds + b.write_seconds ? b : a;
  most.memory_bytes = std::max(a.memory_bytes, b.memory_bytes);
  return most;
}

PartCosts costs_of(const SaveStats& stats) {
  return {stats.plan_seconds, stats.write_seconds, stats.memory_bytes};
}

void set_costs(SaveStats& stats, const PartCosts& costs) {
  stats.plan_seconds = costs.plan_seconds;
  stats.write_seconds = costs.write_seconds;
  stats.memory_bytes = costs.memory_bytes;
}

void put(Packer& packer, const PartCosts& costs) {
  packer.word(std::bit_cast<std::uint64_t>(costs.plan_seconds));
  packer.word(std::bit_cast<std::uint64_t>(costs.write_seconds));
  packer.number(costs.memory_bytes);
}

PartCosts take_costs(Unpacker& unpacker) {
  const auto seconds = [&] {
    const auto value = std::bit_cast<double>(unpacker.word());
    unpacker.require(std::isfinite(value) && value >= 0,
                     "found a time that is negative or not finite");
    return value;
  };
  PartCosts costs;
  costs.plan_seconds = seconds();
  costs.write_seconds = seconds();
  costs.memory_bytes = static_cast<std::uint64_t>(unpacker.integer(0));
  return costs;
}

Bytes encode(const PartCosts& costs) {
  Packer packer;
  put(packer, costs);
  return sealed(packer.take());
}

PartCosts decode_costs(std::span<const std::byte> bytes) {
  Unpacker unpacker = Unpacker::of_sealed(bytes, "the costs of a process's part");
  const PartCosts costs = take_costs(unpacker);
  unpacker.end();
  return costs;
}

}  // namespace shardwise::detail
