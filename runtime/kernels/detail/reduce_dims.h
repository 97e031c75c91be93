#pragma once

#include "shardwise/runtime/kernels/detail/shard_view.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

/// Combines the elements of `in` along `dims` (ascending); the other dims are those of `out`, in
/// order and of the same extents. Both of one dtype. The order of additions depends on the local
/// shape alone. f16 and bf16 are summed in f32 and rounded once. Of nothing: zero, or the least or
/// largest value of the dtype (infinities for floating types). NaN wins over numbers in max and
/// min. boolean: sum and max are "or", min is "and". A product requires numbers; of nothing: one.
void reduce_dims(Reduction reduction, const ConstShardView& in, const Dims& dims,
                 const ShardView& out);

/// The index (global, as i32) of the first element along `dim` that equals that of `wanted`, which,
/// as `out`, does not have the dim: NaN equals NaN. The largest i32 if there is none.
void index_of(const ConstShardView& in, const ConstShardView& wanted, std::size_t dim,
              const ShardView& out);

/// What elements are combined to, and from which end of the dim.
enum class Cumulation { sum, product, max, min, logsumexp };
enum class CumulationOrder { forward, reverse };

/// Along `dim` the combination of the elements of the box up to and with each. Both of one dtype
/// and box; halves as in reduce_dims. Requires numbers, for logsumexp of a floating type.
void cumulate(Cumulation how, CumulationOrder order, const ConstShardView& in, std::size_t dim,
              const ShardView& out);

}  // namespace shardwise
