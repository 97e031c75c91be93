#include <cassert>
#include <cmath>
#include <concepts>
#include <limits>

#include "shardwise/runtime/kernels/detail/element_type.h"
#include "shardwise/runtime/kernels/detail/reduce_dims.h"
#include "shardwise/runtime/kernels/detail/scratch.h"
#include "shardwise/runtime/program/detail/extremes.h"

namespace shardwise {
namespace {

template <class T, class Combine>
void cumulate_with(CumulationOrder order, const ConstShardView& in, std::size_t dim,
                   const ShardView& out, const Combine& combine) {
  std::int64_t outer = 1, inner = 1;
  for (std::size_t d = 0; d < in.box.rank(); ++d) {
    if (d != dim) (d < dim ? outer : inner) *= in.box.extent(d);
  }
  const std::int64_t count = in.box.extent(dim);
  const bool is_forward = order == CumulationOrder::forward;
  const T* from = reinterpret_cast<const T*>(in.data);
  T* to = reinterpret_cast<T*>(out.data);
  for (std::int64_t o = 0; o < outer; ++o, from += count * inner, to += count * inner) {
    for (std::int64_t c = 0; c < count; ++c) {
      const std::int64_t row = (is_forward ? c : count - 1 - c) * inner;
      const T* const before = to + row + (is_forward ? -inner : inner);
      for (std::int64_t i = 0; i < inner; ++i) {
        to[row + i] = c == 0 ? from[row + i] : combine(before[i], from[row + i]);
      }
    }
  }
}

template <class T>
T log_of_sum_of_exps(T a, T b) {
  const double most = static_cast<double>(detail::larger(a, b));
  const double least = static_cast<double>(detail::smaller(a, b));
  // Infinities of one sign have no difference.
  if (a == b && std::isinf(a)) return a;
  return static_cast<T>(most + std::log1p(std::exp(least - most)));
}

}  // namespace

void cumulate(Cumulation how, CumulationOrder order, const ConstShardView& in, std::size_t dim,
              const ShardView& out) {
  assert(in.dtype == out.dtype && in.box == out.box);
  if (out.box.empty()) return;
  if (detail::is_half(in.dtype)) {
    const detail::Widened wide(in);
    const detail::Unrounded result(out);
    cumulate(how, order, wide.view(), dim, result.view());
    return result.round();
  }
  if (how == Cumulation::sum || how == Cumulation::product) {
    return detail::with_arithmetic_type(in.dtype, [&](auto zero) {
      using T = decltype(zero);
      if (how == Cumulation::product) {
        return cumulate_with<T>(order, in, dim, out,
                                [](T a, T b) { return detail::multiply(a, b); });
      }
      cumulate_with<T>(order, in, dim, out, [](T a, T b) { return detail::add(a, b); });
    });
  }
  detail::with_ordered_type(in.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (how == Cumulation::max) {
      return cumulate_with<T>(order, in, dim, out, [](T a, T b) { return detail::larger(a, b); });
    }
    if (how == Cumulation::min) {
      return cumulate_with<T>(order, in, dim, out, [](T a, T b) { return detail::smaller(a, b); });
    }
    if constexpr (std::floating_point<T>) {
      return cumulate_with<T>(order, in, dim, out, log_of_sum_of_exps<T>);
    }
    assert(false && "a floating type");
  });
}

}  // namespace shardwise
