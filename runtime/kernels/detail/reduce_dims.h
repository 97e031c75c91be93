#pragma once

#include "shardwise/runtime/kernels/detail/shard_view.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

/// Combines the elements of `in` along `dims` (ascending); the other dims are those of `out`, in
/// order and of the same extents. Both of one dtype. The order of additions depends on the local
/// shape alone. f16 and bf16 are summed in f32 and rounded once. Of nothing: zero, or the least or
/// largest value of the dtype (infinities for floating types). NaN wins over numbers in max and
/// min. boolean: sum and max are "or", min is "and".
void reduce_dims(Reduction reduction, const ConstShardView& in, const Dims& dims,
                 const ShardView& out);

/// The index (global, as i32) of the first largest element along `dim`, which `out` does not have.
/// NaN counts as largest. Requires a dim that is not empty.
void argmax(const ConstShardView& in, std::size_t dim, const ShardView& out);

/// Sums of the elements up to and with each, along `dim`, from the first of the box on. Both of one
/// dtype and box. Halves and boolean as in reduce_dims.
void cumsum(const ConstShardView& in, std::size_t dim, const ShardView& out);

}  // namespace shardwise
