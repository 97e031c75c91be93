#pragma once

#include "shardwise/runtime/graph/attributes.h"
#include "shardwise/runtime/kernels/detail/shard_view.h"
#include "shardwise/shard/dims.h"

namespace shardwise {

/// The whole shapes of the operands and of the result.
struct ConvolutionShapes {
  const Shape &lhs, &rhs, &out;
};

/// out = the convolution, on the calling thread only. All are of one dtype; f16 and bf16 are
/// computed in f32 and rounded once; integers wrap around. Boxes are anywhere in the whole tensors:
/// sums go over the features and places in the kernel's box, and lhs has all the elements that they
/// read. Patches of the operand are copied tile by tile into a matrix that stays in the cache, and
/// multiplied by OpenBLAS (im2col). Requires all that; throws unsupported for boolean.
void convolution(const ConvolutionAttributes& a, const ConvolutionShapes& shapes,
                 const ConstShardView& lhs, const ConstShardView& rhs, const ShardView& out);

}  // namespace shardwise
