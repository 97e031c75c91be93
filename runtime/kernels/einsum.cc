#include "shardwise/runtime/kernels/detail/einsum.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/kernels/detail/contraction.h"
#include "shardwise/runtime/kernels/detail/element_type.h"
#include "shardwise/runtime/kernels/detail/lanes.h"
#include "shardwise/runtime/kernels/detail/layout.h"
#include "shardwise/runtime/kernels/detail/scratch.h"
#include "shardwise/runtime/kernels/detail/strided_copy.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::ContractionLoop;
using detail::ContractionLoops;
using detail::ContractionPlan;
using detail::kLhs;
using detail::kOut;
using detail::kRhs;

/// Copies a tensor to or from the plan's copy of it.
void copy_packed(const std::vector<ContractionLoop>& from, const std::vector<ContractionLoop>& to,
                 std::size_t tensor, std::size_t element_bytes, const std::byte* source,
                 std::byte* target) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i].steps[tensor] != 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
    return to[i].steps[tensor] > to[j].steps[tensor];
  });
  detail::Loops<2> loops;
  for (const std::size_t i : order) {
    loops.add(from[i].extent, {from[i].steps[tensor], to[i].steps[tensor]});
  }
  detail::strided_copy(loops, {}, element_bytes, source, target);
}

template <class T>
void run_gemm(const ContractionPlan& plan, const T* lhs, const T* rhs, T* out) {
  const ContractionLoop &m = plan.m, &n = plan.n, &k = plan.k;
  plan.outer.for_each({}, [&](const ContractionLoops::Offsets& outer) {
    T beta = 0;
    plan.sums.for_each(outer, [&](const ContractionLoops::Offsets& at) {
      gemm<T>({lhs + at[kLhs], m.extent, k.extent, m.steps[kLhs], k.steps[kLhs]},
              {rhs + at[kRhs], k.extent, n.extent, k.steps[kRhs], n.steps[kRhs]},
              {out + at[kOut], m.extent, n.extent, m.steps[kOut], n.steps[kOut]}, beta);
      beta = 1;
    });
  });
}

/// Adds element(i) times factor(i) to out for each index of the line, or to zero if the result was
/// not written yet.
template <class T, class Element, class Factor>
void add_line(const ContractionLoop& line, Element element, Factor factor, T* out, bool first) {
  const std::int64_t step = line.steps[kOut];
  const auto term = [&](std::int64_t i) { return detail::multiply<T>(element(i), factor(i)); };
  if (step == 0) {
    const T sum = detail::reduce_in_lanes(line.extent, T{0}, detail::add<T>, term);
    *out = detail::add(first ? T{0} : *out, sum);
  } else if (step == 1 && first) {
    for (std::int64_t i = 0; i < line.extent; ++i) out[i] = detail::add(T{0}, term(i));
  } else if (step == 1) {
    for (std::int64_t i = 0; i < line.extent; ++i) out[i] = detail::add(out[i], term(i));
  } else {
    for (std::int64_t i = 0; i < line.extent; ++i) {
      T& sum = out[i * step];
      sum = detail::add(first ? T{0} : sum, term(i));
    }
  }
}

template <class T>
void run_lines(const ContractionPlan& plan, const T* lhs_data, const T* rhs_data, T* out) {
  const ContractionLoop& line = plan.line;
  const std::int64_t lhs_step = line.steps[kLhs], rhs_step = line.steps[kRhs];
  plan.outer.for_each({}, [&](const ContractionLoops::Offsets& outer) {
    bool first = true;
    plan.sums.for_each(outer, [&](const ContractionLoops::Offsets& at) {
      const T *lhs = lhs_data + at[kLhs], *rhs = rhs_data + at[kRhs];
      const auto lhs_at = [=](std::int64_t i) { return lhs[i]; };
      const auto rhs_at = [=](std::int64_t i) { return rhs[i]; };
      if (lhs_step == 1 && rhs_step == 1) {
        add_line(line, lhs_at, rhs_at, out + at[kOut], first);
      } else if (lhs_step == 0 && rhs_step == 1) {
        add_line(
            line, [x = *lhs](std::int64_t) { return x; }, rhs_at, out + at[kOut], first);
      } else if (lhs_step == 1 && rhs_step == 0) {
        add_line(
            line, lhs_at, [y = *rhs](std::int64_t) { return y; }, out + at[kOut], first);
      } else {
        add_line(
            line, [=](std::int64_t i) { return lhs[i * lhs_step]; },
            [=](std::int64_t i) { return rhs[i * rhs_step]; }, out + at[kOut], first);
      }
      first = false;
    });
  });
}

/// A shard in another dtype.
class ConvertedShard {
 public:
  ConvertedShard(const ConstShardView& from, DType to)
      : memory_(num_bytes(from.box.shape(), size_bytes(to))), view_{memory_.data(), to, from.box} {
    convert(from.dtype, from.data, to, memory_.data(), as_size(from.box.num_elements()));
  }

  const ConstShardView& view() const { return view_; }

 private:
  detail::Scratch memory_;
  ConstShardView view_;
};

template <class T>
void run_floating(const std::vector<ContractionLoop>& loops, const ConstShardView& lhs,
                  const ConstShardView& rhs, const ShardView& out) {
  const ContractionPlan plan = detail::plan_gemm(loops);
  std::optional<detail::Scratch> copies[3];
  const std::byte* data[] = {lhs.data, rhs.data, out.data};
  const Box* const boxes[] = {&lhs.box, &rhs.box, &out.box};
  for (std::size_t t = 0; t < 3; ++t) {
    if (!plan.packed[t]) continue;
    copies[t].emplace(num_bytes(boxes[t]->shape(), sizeof(T)));
    if (t != kOut) copy_packed(loops, plan.loops, t, sizeof(T), data[t], copies[t]->data());
  }
  const T* x = copies[kLhs] ? copies[kLhs]->as<T>() : reinterpret_cast<const T*>(lhs.data);
  const T* y = copies[kRhs] ? copies[kRhs]->as<T>() : reinterpret_cast<const T*>(rhs.data);
  T* z = copies[kOut] ? copies[kOut]->as<T>() : reinterpret_cast<T*>(out.data);
  plan.is_gemm ? run_gemm(plan, x, y, z) : run_lines(plan, x, y, z);
  if (copies[kOut]) {
    copy_packed(plan.loops, loops, kOut, sizeof(T), copies[kOut]->data(), out.data);
  }
}

}  // namespace

void einsum(const Equation& equation, const ConstShardView& lhs, const ConstShardView& rhs,
            const ShardView& out) {
  assert(lhs.dtype == rhs.dtype);
  if (out.dtype == DType::boolean) {
    throw Error(ErrorCode::unsupported,
                fmt::format("product {}: the dtype is bool; needed is one of numbers",
                            equation.to_string()));
  }
  if (out.box.empty()) return;
  if (lhs.box.empty() || rhs.box.empty()) return fill(0, out);
  if (lhs.dtype != out.dtype) {
    const ConvertedShard x(lhs, out.dtype), y(rhs, out.dtype);
    return einsum(equation, x.view(), y.view(), out);
  }
  if (detail::is_half(out.dtype)) {
    const detail::Widened x(lhs), y(rhs);
    const detail::Unrounded z(out);
    einsum(equation, x.view(), y.view(), z.view());
    return z.round();
  }
  const auto loops = detail::contraction_loops(equation, lhs.box, rhs.box, out.box);
  detail::with_arithmetic_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>) {
      run_floating<T>(loops, lhs, rhs, out);
    } else {
      run_lines(detail::plan_loops(loops), reinterpret_cast<const T*>(lhs.data),
                reinterpret_cast<const T*>(rhs.data), reinterpret_cast<T*>(out.data));
    }
  });
}

}  // namespace shardwise
