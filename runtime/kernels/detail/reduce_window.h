#pragma once

#include "shardwise/runtime/graph/attributes.h"
#include "shardwise/runtime/kernels/detail/shard_view.h"

namespace shardwise {

// Boxes are anywhere in the whole tensors; operands have all elements that out.box needs. f16 and
// bf16 are computed in f32 and rounded once; integers wrap around. Runs on the calling thread only.

/// out[place] = the sum of the elements of `in` in the window at that place.
void reduce_window_sum(const WindowAttributes& a, const ConstShardView& in, const ShardView& out);

/// The maximum; NaN if one is.
void reduce_window_max(const WindowAttributes& a, const ConstShardView& in, const ShardView& out);

/// out = 0, then out[i] += source[place], where i is the first largest element of x in the window
/// at that place. Requires numbers.
void select_and_scatter_add(const WindowAttributes& a, const ConstShardView& x,
                            const ConstShardView& source, const ShardView& out);

}  // namespace shardwise
