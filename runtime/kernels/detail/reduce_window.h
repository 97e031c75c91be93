#pragma once

#include "shardwise/runtime/graph/attributes.h"
#include "shardwise/runtime/kernels/detail/shard_view.h"

namespace shardwise {

// Boxes are anywhere in the whole tensors; operands have what the elements of out.box are made of.
// f16 and bf16 are computed in f32 and rounded once; integers wrap around. On the calling thread
// alone.

/// out[place] = the sum of what the window at that place holds of `in`.
void reduce_window_sum(const WindowAttributes& a, const ConstShardView& in, const ShardView& out);

/// The maximum; NaN if one is.
void reduce_window_max(const WindowAttributes& a, const ConstShardView& in, const ShardView& out);

/// out = 0, then out[where the window at a place is largest first in x] += source[place]. Requires
/// numbers.
void select_and_scatter_add(const WindowAttributes& a, const ConstShardView& x,
                            const ConstShardView& source, const ShardView& out);

}  // namespace shardwise
