#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/process/process_group.h"

namespace shardwise::detail {

class Packer;
class Unpacker;

/// The time and the memory that a process's part took.
struct PartCosts {
  double plan_seconds = 0, write_seconds = 0;
  std::uint64_t memory_bytes = 0;  ///< of buffers

  bool operator==(const PartCosts&) const = default;
};

/// The time of the part that took longer, and the memory of the part that took more.
PartCosts costlier(const PartCosts& a, const PartCosts& b);

/// As the statistics of a save tell them.
PartCosts costs_of(const SaveStats& stats);
void set_costs(SaveStats& stats, const PartCosts& costs);

void put(Packer& packer, const PartCosts& costs);
PartCosts take_costs(Unpacker& unpacker);

/// The bytes end with their hash. decode_costs() throws corrupt if it is wrong, invalid_argument if
/// no process can have sent the costs.
Bytes encode(const PartCosts& costs);
PartCosts decode_costs(std::span<const std::byte> bytes);

}  // namespace shardwise::detail
