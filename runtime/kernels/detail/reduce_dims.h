#pragma once

#include "shardwise/runtime/kernels/detail/shard_view.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

/// Combines the elements of `in` along `dims` (ascending); the other dims are those of `out`, in
/// order and of the same extents. Both are of one dtype. The order of additions depends only on the
/// local shape. f16 and bf16 are summed in f32 and rounded once. Without elements the result is
/// zero, or the least or largest value of the dtype (infinities for floating types). NaN wins over
/// numbers in max and min. boolean: sum and max are "or", min is "and". A product requires numbers,
/// and is one without elements.
void reduce_dims(Reduction reduction, const ConstShardView& in, const Dims& dims,
                 const ShardView& out);

/// The index (global, as i32) of the first element along `dim` that equals that of `wanted`. Like
/// `out`, `wanted` lacks the dim. NaN equals NaN. The largest i32 if no element equals.
void index_of(const ConstShardView& in, const ConstShardView& wanted, std::size_t dim,
              const ShardView& out);

/// The kind of combination, and the end of the dim where it begins.
enum class Cumulation { sum, product, max, min, logsumexp };
enum class CumulationOrder { forward, reverse };

/// Along `dim`, combines the elements of the box up to and including each. Both are of one dtype
/// and box; halves as in reduce_dims. Requires numbers, and a floating type for logsumexp.
void cumulate(Cumulation how, CumulationOrder order, const ConstShardView& in, std::size_t dim,
              const ShardView& out);

}  // namespace shardwise
