#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/runtime/kernels/detail/einsum.h"
#include "shardwise/runtime/kernels/detail/loops.h"

namespace shardwise::detail {

// A product of two tensors as nested loops over three pieces of memory: out[..] += lhs[..] rhs[..].
// A loop's step is 0 in a tensor that does not have its letter, and never 0 in one that does.
using ContractionLoops = Loops<3>;
using ContractionLoop = ContractionLoops::Loop;
enum ContractionTensor : std::size_t { kLhs, kRhs, kOut };

/// One loop for each letter, those of the result first. Letters of extent 1 are left out, and
/// letters that are adjacent, in the same order, in all their tensors are one.
std::vector<ContractionLoop> contraction_loops(const Equation& equation, const Box& lhs,
                                               const Box& rhs, const Box& out);

/// How to run the loops: first those of `outer`, which move on in the result, then those of `sums`,
/// which add to it, and inside them a matrix product, or one loop.
struct ContractionPlan {
  /// The tensors that are not read or written in place but as a copy without gaps, where each loop
  /// has the step given by `loops`.
  bool packed[3] = {};
  std::vector<ContractionLoop> loops;

  ContractionLoops outer, sums;
  bool is_gemm = false;
  ContractionLoop m, n, k;  ///< of the matrix product
  ContractionLoop line;     ///< of the one loop
  double cost = 0;          ///< about, in ns of f32
};

/// Loops only, in place: for types that no library multiplies.
ContractionPlan plan_loops(const std::vector<ContractionLoop>& loops);

/// The cheapest plan, by an estimate that depends only on the loops. Requires loops that are not
/// empty.
ContractionPlan plan_gemm(const std::vector<ContractionLoop>& loops);

}  // namespace shardwise::detail
