#pragma once

#include <cstddef>
#include <span>

#include "shardwise/shard/dtype.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::detail {

/// out[i] = sources[0][i] op sources[1][i] op ... for 0 <= i < count, always in that order.
///
/// f16 and bf16 are combined in f32 and rounded once at the end. Integer sums and products wrap
/// around. For booleans the sum and the maximum are "or", the minimum and the product are "and". A
/// NaN in any source gives NaN.
/// Requires at least one source, a reduction other than none, and that `out` is one of the sources
/// or overlaps none.
void reduce(Reduction reduction, DType dtype, std::span<const std::byte* const> sources,
            std::byte* out, std::size_t count);

}  // namespace shardwise::detail
