#pragma once

#include <string>
#include <string_view>

#include "shardwise/runtime/kernels/detail/shard_view.h"

namespace shardwise {

/// A product of two tensors that sums over some dims, as numpy.einsum writes it: one letter a dim.
/// Each letter comes at most once in each operand and in the result; one of the result is in an
/// operand; one that is in a single operand is in the result.
///
///   Equation::parse("btd,df->btf");
struct Equation {
  std::string lhs, rhs, result;

  /// Throws invalid_argument if the text is not such an equation.
  static Equation parse(std::string_view text);

  /// "btd,df->btf"
  std::string to_string() const;

  bool operator==(const Equation&) const = default;
};

/// out = the product, on the calling thread alone. The three are of one dtype; f16 and bf16 are
/// computed in f32 and rounded once; integers wrap around. By OpenBLAS for floating types (see
/// gemm.h for its threads); operands that it cannot read in place are copied, to memory that the
/// thread keeps for later calls. Letters that meet have the same extent in each view: boxes may
/// begin anywhere. An empty sum is zero.
///
/// Requires all that; throws unsupported for boolean.
void einsum(const Equation& equation, const ConstShardView& lhs, const ConstShardView& rhs,
            const ShardView& out);

}  // namespace shardwise
