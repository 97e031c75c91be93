#pragma once

#include <cstddef>
#include <cstdint>

#include "shardwise/runtime/graph/op.h"
#include "shardwise/runtime/spmd/detail/cut.h"

namespace shardwise {

/// Elements of the largest part.
double part_elements(const Shape& shape, const Cut& cut, const Mesh& mesh);

/// Elements that a device lacks of its part under `to` if it has its part under `from`.
double missing_elements(const Shape& shape, const Cut& from, const Cut& to, const Mesh& mesh);

/// True if an op that needs its operand cut as `needed` can use one cut as `have`: the same cut,
/// except that it may have more elements in dims with a window.
bool holds(const Shape& shape, const Cut& have, const Cut& needed, const Mesh& mesh);

/// Parts of a sum or product of bf16 or f16 numbers are f32, so that it is rounded once, as on one
/// device. Others have the tensor's dtype.
TensorType sum_type(const TensorType& type);
constexpr bool is_rounded(Reduction reduction) {
  return reduction == Reduction::sum || reduction == Reduction::product;
}

/// Bytes that a device sends in a ring so that parts of a sum over `partial` become the sum cut as
/// `to`. These are (g - 1) parts if the group's axes cut the result (reduce-scatter), else
/// 2 (g - 1) / g parts (all-reduce).
double combine_bytes(const TensorType& type, const Cut& to, AxisSet partial, const Mesh& mesh);

}  // namespace shardwise
