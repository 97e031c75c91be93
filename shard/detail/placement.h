#pragma once

#include <cstddef>
#include <vector>

#include "shardwise/shard/detail/dim_cut.h"
#include "shardwise/shard/sharding.h"

namespace shardwise::detail {

/// True where each device holds the same box under both, for every shape. The cuts are theirs.
bool same_placement(const Sharding& a, const Sharding& b, const std::vector<DimCut>& cuts_a,
                    const std::vector<DimCut>& cuts_b);

/// The same number for shardings of the same placement.
std::size_t placement_hash(const Sharding& sharding) noexcept;

}  // namespace shardwise::detail
