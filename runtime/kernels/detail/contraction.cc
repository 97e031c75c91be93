#include "shardwise/runtime/kernels/detail/contraction.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace shardwise::detail {
namespace {

using ContractionList = std::vector<ContractionLoop>;

// Approximate costs in ns, measured on the machine of bench/einsum_bench.cc.
constexpr double kGemmCall = 150;      // whatever its size
constexpr double kGemmProduct = 0.02;  // per multiplication, of a matrix that is not thin
constexpr double kGemmElement = 0.2;   // per element of the three matrices
constexpr double kLineCall = 5;
constexpr double kLineProduct = 0.15;  // neighbours in memory
constexpr double kStridedProduct = 1;  // others
constexpr double kPackedElement = 1;

/// The search for finer plans ends below this cost.
constexpr double kLittle = 2000;

/// The largest number in OpenBLAS's integers.
constexpr std::int64_t kMostInGemm = std::numeric_limits<std::int32_t>::max();

bool is_m(const ContractionLoop& loop) { return loop.steps[kRhs] == 0; }
bool is_n(const ContractionLoop& loop) { return loop.steps[kLhs] == 0; }
bool is_k(const ContractionLoop& loop) { return loop.steps[kOut] == 0; }
bool is_batch(const ContractionLoop& loop) { return !is_m(loop) && !is_n(loop) && !is_k(loop); }

double extents(const ContractionList& loops) {
  double product = 1;
  for (const ContractionLoop& loop : loops) product *= static_cast<double>(loop.extent);
  return product;
}

/// Joins two loops if one step of the first is the whole length of the second. They need not be
/// neighbours.
void collapse(ContractionList& loops) {
  for (std::size_t i = 0; i < loops.size(); ++i) {
    for (std::size_t j = 0; j < loops.size(); ++j) {
      const ContractionLoop &outer = loops[i], &inner = loops[j];
      bool joins = i != j;
      for (std::size_t t = 0; t < 3; ++t) {
        joins &= outer.steps[t] == inner.extent * inner.steps[t];
      }
      if (!joins) continue;
      loops[i] = {outer.extent * inner.extent, inner.steps};
      loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(j));
      return collapse(loops);
    }
  }
}

/// The loops except those taken inside, the result's in its order in memory.
void set_outer(ContractionPlan& plan, ContractionList rest) {
  std::stable_sort(rest.begin(), rest.end(),
                   [](const auto& a, const auto& b) { return a.steps[kOut] > b.steps[kOut]; });
  for (const ContractionLoop& loop : rest) (is_k(loop) ? plan.sums : plan.outer).add(loop);
}

void set_line(ContractionPlan& plan) {
  const auto is_quick = [](const ContractionLoop& loop) {
    const auto& [lhs, rhs, out] = loop.steps;
    return is_k(loop) ? lhs == 1 && rhs == 1 : out == 1 && lhs <= 1 && rhs <= 1;
  };
  // The longest of the quick loops, up to a sufficient length. Sums are slightly worse.
  const auto worth = [&](const ContractionLoop& loop) {
    const double length = static_cast<double>(std::min<std::int64_t>(loop.extent, 64));
    return length * (is_quick(loop) ? 8 : 1) * (is_k(loop) ? 0.9 : 1);
  };
  const double total = extents(plan.loops);
  ContractionList rest = plan.loops;
  if (!rest.empty()) {
    const auto best = std::max_element(rest.begin(), rest.end(), [&](const auto& a, const auto& b) {
      return worth(a) < worth(b);
    });
    plan.line = *best;
    rest.erase(best);
  }
  set_outer(plan, rest);
  plan.is_gemm = false;
  plan.cost = total / static_cast<double>(plan.line.extent) * kLineCall +
              total * (is_quick(plan.line) ? kLineProduct : kStridedProduct);
}

/// True if BLAS can read, or write, a matrix with these dims in place.
bool is_blas_matrix(const ContractionLoop& a, const ContractionLoop& b, ContractionTensor t) {
  const auto in_range = [&](const ContractionLoop& loop) {
    return loop.extent <= kMostInGemm && loop.steps[t] <= kMostInGemm;
  };
  return in_range(a) && in_range(b) &&
         (a.extent == 1 || b.extent == 1 || a.steps[t] == 1 || b.steps[t] == 1);
}

double gemm_cost(const ContractionLoop& m, const ContractionLoop& n, const ContractionLoop& k,
                 double total) {
  const auto real = [](std::int64_t extent) { return static_cast<double>(extent); };
  // The library computes whole tiles of the result, even at its edges.
  const auto whole_tiles = [&](std::int64_t extent) { return real((extent + 7) / 8 * 8); };
  const double products = whole_tiles(m.extent) * whole_tiles(n.extent) * real(k.extent);
  const double elements = real(m.extent) * real(k.extent) + real(k.extent) * real(n.extent) +
                          real(m.extent) * real(n.extent);
  const double calls = total / (real(m.extent) * real(n.extent) * real(k.extent));
  return calls * (kGemmCall + products * kGemmProduct + elements * kGemmElement);
}

/// Chooses the loops m, n and k: no loop, or one of its kind.
void set_gemm(ContractionPlan& plan) {
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> ms{kNone}, ns{kNone}, ks{kNone};
  for (std::size_t i = 0; i < plan.loops.size(); ++i) {
    const ContractionLoop& loop = plan.loops[i];
    if (!is_batch(loop)) (is_k(loop) ? ks : is_n(loop) ? ns : ms).push_back(i);
  }
  const double total = extents(plan.loops);
  std::size_t best[] = {kNone, kNone, kNone};
  const auto loop_at = [&](std::size_t i) {
    return i == kNone ? ContractionLoop{} : plan.loops[i];
  };
  for (const std::size_t i : ms) {
    const ContractionLoop m = loop_at(i);
    for (const std::size_t j : ns) {
      const ContractionLoop n = loop_at(j);
      if (!is_blas_matrix(m, n, kOut)) continue;
      for (const std::size_t l : ks) {
        const ContractionLoop k = loop_at(l);
        if (!is_blas_matrix(m, k, kLhs) || !is_blas_matrix(k, n, kRhs)) continue;
        const double cost = gemm_cost(m, n, k, total);
        if (cost >= plan.cost) continue;
        plan.cost = cost;
        plan.is_gemm = true;
        plan.m = m, plan.n = n, plan.k = k;
        best[0] = i, best[1] = j, best[2] = l;
      }
    }
  }
  if (!plan.is_gemm) return;
  ContractionList rest;
  for (std::size_t i = 0; i < plan.loops.size(); ++i) {
    if (std::find(best, best + 3, i) == best + 3) rest.push_back(plan.loops[i]);
  }
  plan.outer = plan.sums = {};
  set_outer(plan, rest);
}

/// Gives packed tensors steps of their own: batch, m, k; batch, k, n; batch, m, n; each kind in the
/// order of a tensor that is not packed.
void pack(ContractionPlan& plan) {
  const auto place = [&](const ContractionLoop& loop) {  // larger is further out
    const std::size_t first = is_k(loop) ? kLhs : kOut;
    const std::size_t then = is_n(loop) || (is_k(loop) && plan.packed[kLhs]) ? kRhs : kLhs;
    return loop.steps[plan.packed[first] ? then : first];
  };
  const auto kind = [](const ContractionLoop& loop, ContractionTensor t) {
    if (is_batch(loop)) return 0;
    if (t == kRhs) return is_k(loop) ? 1 : 2;
    return is_m(loop) ? 1 : 2;
  };
  const ContractionList before = plan.loops;
  for (const ContractionTensor t : {kLhs, kRhs, kOut}) {
    if (!plan.packed[t]) continue;
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (before[i].steps[t] != 0) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
      const int a = kind(before[i], t), b = kind(before[j], t);
      return a != b ? a < b : place(before[i]) > place(before[j]);
    });
    std::int64_t step = 1;
    for (std::size_t i = order.size(); i-- > 0;) {
      plan.loops[order[i]].steps[t] = step;
      step *= before[order[i]].extent;
    }
  }
}

}  // namespace

std::vector<ContractionLoop> contraction_loops(const Equation& equation, const Box& lhs,
                                               const Box& rhs, const Box& out) {
  const std::string_view letters[] = {equation.lhs, equation.rhs, equation.result};
  const Box* const boxes[] = {&lhs, &rhs, &out};
  const Dims strides[] = {row_major_strides(lhs.shape()), row_major_strides(rhs.shape()),
                          row_major_strides(out.shape())};
  std::string each = equation.result;
  std::copy_if(equation.lhs.begin(), equation.lhs.end(), std::back_inserter(each),
               [&](char letter) { return equation.result.find(letter) == std::string::npos; });
  ContractionList loops;
  for (const char letter : each) {
    ContractionLoop loop;
    for (std::size_t t = 0; t < 3; ++t) {
      const std::size_t dim = letters[t].find(letter);
      if (dim == std::string_view::npos) continue;
      loop.extent = boxes[t]->extent(dim);
      loop.steps[t] = strides[t][dim];
    }
    loops.push_back(loop);
  }
  std::erase_if(loops, [](const ContractionLoop& loop) { return loop.extent == 1; });
  collapse(loops);
  return loops;
}

ContractionPlan plan_loops(const std::vector<ContractionLoop>& loops) {
  ContractionPlan plan;
  plan.loops = loops;
  set_line(plan);
  return plan;
}

ContractionPlan plan_gemm(const std::vector<ContractionLoop>& loops) {
  ContractionPlan best = plan_loops(loops);
  set_gemm(best);
  const bool one_gemm_each =
      best.is_gemm && best.sums.size() == 0 &&
      std::none_of(loops.begin(), loops.end(), [&](const ContractionLoop& loop) {
        return !is_batch(loop) && loop.steps != best.m.steps && loop.steps != best.n.steps &&
               loop.steps != best.k.steps;
      });
  if (one_gemm_each || best.cost < kLittle) return best;
  for (unsigned mask = 1; mask < 8; ++mask) {
    ContractionPlan plan;
    plan.loops = loops;
    double copies = 0;
    for (std::size_t t = 0; t < 3; ++t) {
      plan.packed[t] = (mask >> t) % 2 != 0;
      if (!plan.packed[t]) continue;
      double elements = 1;
      for (const ContractionLoop& loop : loops) {
        if (loop.steps[t] != 0) elements *= static_cast<double>(loop.extent);
      }
      copies += elements * kPackedElement;
    }
    if (copies >= best.cost) continue;
    pack(plan);
    ContractionList uncollapsed = plan.loops;
    collapse(plan.loops);
    set_line(plan);
    set_gemm(plan);
    plan.cost += copies;
    plan.loops = std::move(uncollapsed);
    if (plan.cost < best.cost) best = std::move(plan);
  }
  return best;
}

}  // namespace shardwise::detail
