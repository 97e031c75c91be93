#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "shardwise/shard/detail/dim_cut.h"
#include "shardwise/shard/sharding.h"

namespace shardwise::detail {

/// Digits of the position as digits of the device's id. Both are mixed radix numbers; one can be
/// written in terms of the other if their digits begin and end at common factors. Absent if not.
///
/// Requires the digits of a compact order.
std::optional<Digits> by_device(const Digits& digits, const std::vector<DeviceOrder::Digit>& order);

/// True if each device holds the same box under both for every shape. `cuts_a` and `cuts_b` are
/// their cuts.
bool same_boxes(const Sharding& a, const Sharding& b, const std::vector<DimCut>& cuts_a,
                const std::vector<DimCut>& cuts_b);

/// The same number for shardings that give each device the same boxes.
std::size_t hash_of_boxes(const Sharding& sharding) noexcept;

}  // namespace shardwise::detail
