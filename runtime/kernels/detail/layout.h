#pragma once

#include <span>

#include "shardwise/runtime/graph/attributes.h"
#include "shardwise/runtime/kernels/detail/shard_view.h"

namespace shardwise {

// Kernels that move elements. Each fills all of out.box from the inputs' boxes; both count elements
// of the whole tensors, so any boxes work as long as the needed elements are there.

/// Dim i of the operand is dim dims[i] of out; an operand dim of extent 1 (in the whole tensor: its
/// box is [0:1]) is repeated.
void broadcast(const ConstShardView& in, const Dims& dims, const ShardView& out);

/// Dim i of out is dim dims[i] of the operand.
void transpose(const ConstShardView& in, const Dims& dims, const ShardView& out);

/// Element o of out is element begin + o * stride of the operand, in each dim.
void slice(const ConstShardView& in, const Dims& begin, const Dims& stride, const ShardView& out);

/// Element i of the operand is element low + i * stride of out; the others are `number`.
void pad(const ConstShardView& in, const Dims& low, const Dims& stride, const Scalar& number,
         const ShardView& out);

/// One after another along `dim`: extents[i] is the whole extent of input i there.
void concatenate(std::span<const ConstShardView> inputs, std::span<const std::int64_t> extents,
                 std::size_t dim, const ShardView& out);

/// Element i of a dim in `dims` is element extent - 1 - i of the operand, whose whole shape is
/// `shape`.
void reverse(const ConstShardView& in, const Dims& dims, const Shape& shape, const ShardView& out);

/// out = in from `starts` on (one per dim, in elements of the whole operand).
void dynamic_slice(const ConstShardView& in, const Dims& starts, const ShardView& out);

/// out = in, except for the elements of `update`, whose element 0 is at `starts`. `out` may be in
/// the memory of `in`: then only the update is written.
void dynamic_update_slice(const ConstShardView& in, const ConstShardView& update,
                          const Dims& starts, const ShardView& out);

/// The index along `dim`, converted to out's dtype.
void iota(std::size_t dim, const ShardView& out);

/// `number` everywhere, converted to out's dtype.
void fill(const Scalar& number, const ShardView& out);

}  // namespace shardwise
