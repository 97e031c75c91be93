#pragma once

#include <cstddef>

#include "shardwise/runtime/graph/op.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// Bytes of a block: no vector is wider. One block of equal elements can stand for any number of
/// them.
inline constexpr std::size_t kBlockBytes = 64;

/// One operand of a tile function.
struct Source {
  const std::byte* data;
  std::size_t step;  ///< 1: elements follow each other; 0: one block of equal elements
};

/// Computes `count` elements, which need not be aligned. `out` may be the data of a source whose
/// elements have the same size, and overlaps no other source. The value of an element does not
/// depend on its place: elements after the last whole vector go through the same vector code.
using TileFunction = void (*)(const Source* sources, std::byte* out, std::size_t count);

/// The type that elements of a dtype are computed in: f32 for f16 and bf16, else the dtype itself.
DType compute_dtype(DType dtype);

/// An op on operands of one dtype, which is a compute_dtype() (select: after the condition, which
/// is boolean). Null if the op is not defined for it. Convert has a function of its own.
TileFunction tile_function(Op op, DType dtype);

/// Null for pairs that shardwise::convert handles.
TileFunction convert_function(DType from, DType to);

/// f32 to the nearest f32 that f16 or bf16 can hold.
TileFunction rounding_function(DType to);

/// Copies elements of 1, 2, 4 or 8 bytes unchanged.
TileFunction copy_function(std::size_t element_bytes);

/// The vectorised part of tile_function.
TileFunction f32_function(Op op);

}  // namespace shardwise::detail
