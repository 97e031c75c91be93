#pragma once

#include "shardwise/runtime/graph/attributes.h"
#include "shardwise/runtime/kernels/detail/shard_view.h"

namespace shardwise {

/// out = the product, on the calling thread only. The operands are of one dtype, which is converted
/// to out's; f16 and bf16 are computed in f32 and rounded once; integers wrap around. OpenBLAS
/// computes floating types (see gemm.h for its threads); operands that it cannot read in place are
/// copied to memory that the thread keeps for later calls. Letters that meet have the same extent
/// in each view: boxes may begin anywhere. An empty sum is zero.
///
/// Requires all that; throws unsupported for boolean.
void einsum(const Equation& equation, const ConstShardView& lhs, const ConstShardView& rhs,
            const ShardView& out);

}  // namespace shardwise
