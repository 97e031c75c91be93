#pragma once

#include <algorithm>
#include <cstdint>

#include "shardwise/runtime/sharded_array.h"

namespace shardwise {

/// Whether the shards of this process are those of the other array.
inline bool same_shards(const ShardedArray& found, const ShardedArray& needed) {
  for (std::int64_t p = 0; p < found.sharding().mesh().size(); ++p) {
    if (!found.is_addressable(p)) continue;
    const ConstBoxView a = found.shard(p), b = needed.shard(p);
    const std::size_t bytes = num_bytes(a.box.shape(), size_bytes(found.dtype()));
    if (!std::equal(a.data, a.data + bytes, b.data)) return false;
  }
  return true;
}

}  // namespace shardwise
