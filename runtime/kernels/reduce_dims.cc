#include "shardwise/runtime/kernels/detail/reduce_dims.h"

#include <algorithm>
#include <cassert>
#include <concepts>
#include <limits>
#include <type_traits>

#include "shardwise/runtime/kernels/detail/element_type.h"
#include "shardwise/runtime/kernels/detail/loops.h"
#include "shardwise/runtime/kernels/detail/reduce_floats.h"
#include "shardwise/runtime/kernels/detail/scratch.h"
#include "shardwise/runtime/program/detail/extremes.h"

namespace shardwise {
namespace {

using ReduceLoops = detail::Loops<2>;  // of the operand and the result

struct TakeSum {
  static constexpr Reduction kReduction = Reduction::sum;
  template <class T>
  static constexpr T kIdentity = 0;

  template <class T>
  static T combine(T a, T b) {
    return detail::add(a, b);
  }
};

struct TakeProduct {
  template <class T>
  static constexpr T kIdentity = 1;

  template <class T>
  static T combine(T a, T b) {
    return detail::multiply(a, b);
  }
};

struct TakeLargest {
  static constexpr Reduction kReduction = Reduction::max;
  template <class T>
  static constexpr T kIdentity = std::numeric_limits<T>::has_infinity
                                     ? -std::numeric_limits<T>::infinity()
                                     : std::numeric_limits<T>::lowest();

  template <class T>
  static T combine(T a, T b) {
    return detail::larger(a, b);
  }
};

struct TakeLeast {
  static constexpr Reduction kReduction = Reduction::min;
  template <class T>
  static constexpr T kIdentity = std::numeric_limits<T>::has_infinity
                                     ? std::numeric_limits<T>::infinity()
                                     : std::numeric_limits<T>::max();

  template <class T>
  static T combine(T a, T b) {
    return detail::smaller(a, b);
  }
};

/// The minimum of booleans, which are bytes of 0 and 1.
struct TakeLeastBoolean : TakeLeast {
  template <class T>
  static constexpr T kIdentity = 1;
};

template <class Operation, class T>
detail::ReduceFunctions<T> reduce_functions() {
  if constexpr (std::floating_point<T> && !std::same_as<Operation, TakeProduct>) {
    return detail::reduce_floats<T>(Operation::kReduction);
  } else {
    return {[](const T* in, std::int64_t step, std::int64_t rows, std::int64_t cols, T* out) {
              for (; rows > 0; --rows, in += step) {
                for (std::int64_t c = 0; c < cols; ++c) out[c] = Operation::combine(out[c], in[c]);
              }
            },
            [](const T* in, std::int64_t step, std::int64_t rows, std::int64_t count) {
              T result = Operation::template kIdentity<T>;
              for (; rows > 0; --rows, in += step) {
                for (std::int64_t i = 0; i < count; ++i) result = Operation::combine(result, in[i]);
              }
              return result;
            }};
  }
}

template <class Operation, class T>
void reduce_loops(ReduceLoops loops, const T* in, T* out, std::int64_t out_count) {
  std::fill_n(out, out_count, Operation::template kIdentity<T>);
  if (loops.nothing()) return;
  const detail::ReduceFunctions<T> functions = reduce_functions<Operation, T>();
  const ReduceLoops::Loop inner = loops.take_innermost();
  // All of the operand is walked through, so the innermost loop is a run of it.
  assert(inner.extent == 1 || inner.steps[0] == 1);
  ReduceLoops::Loop rows;
  if (inner.steps[1] == 0) {
    for (std::size_t i = loops.size(); i-- > 0;) {
      if (loops[i].steps[1] != 0) continue;
      rows = loops.take(i);
      break;
    }
    loops.for_each({}, [&](const ReduceLoops::Offsets& at) {
      T& result = out[at[1]];
      result = Operation::combine(
          result, functions.reduce_rows(in + at[0], rows.steps[0], rows.extent, inner.extent));
    });
    return;
  }
  if (loops.size() > 0 && loops[loops.size() - 1].steps[1] == 0) rows = loops.take_innermost();
  // Blocks of columns whose results stay in the nearest cache.
  constexpr std::int64_t kBlock = 4096 / sizeof(T);
  loops.for_each({}, [&](const ReduceLoops::Offsets& at) {
    for (std::int64_t begin = 0; begin < inner.extent; begin += kBlock) {
      functions.combine_rows(in + at[0] + begin, rows.steps[0], rows.extent,
                             std::min(kBlock, inner.extent - begin), out + at[1] + begin);
    }
  });
}

template <class Operation>
void reduce_with(const ReduceLoops& loops, const ConstShardView& in, const ShardView& out) {
  detail::with_ordered_type(in.dtype, [&](auto zero) {
    using T = decltype(zero);
    // Sums and products of integers wrap around.
    constexpr bool kWraps =
        std::same_as<Operation, TakeSum> || std::same_as<Operation, TakeProduct>;
    using Number = typename std::conditional_t<std::integral<T> && kWraps, std::make_unsigned<T>,
                                               std::type_identity<T>>::type;
    reduce_loops<Operation>(loops, reinterpret_cast<const Number*>(in.data),
                            reinterpret_cast<Number*>(out.data), out.box.num_elements());
  });
}

/// A tensor seen as [outer, count, inner] around one of its dims.
struct AroundDim {
  AroundDim(const Box& box, std::size_t dim) : count(box.extent(dim)) {
    for (std::size_t d = 0; d < box.rank(); ++d) {
      if (d != dim) (d < dim ? outer : inner) *= box.extent(d);
    }
  }

  std::int64_t outer = 1, count, inner = 1;
};

constexpr std::int32_t kNowhere = std::numeric_limits<std::int32_t>::max();

template <class T>
bool is_equal(T a, T b) {
  return a == b || (a != a && b != b);  // NOLINT: NaN equals NaN
}

/// The place of the first element of a run that equals `wanted`; kNowhere if no element does.
template <class T>
std::int32_t first_in_run(const T* in, std::int64_t count, T wanted) {
  constexpr std::int64_t kBlock = 64;  // compared together, so that vectors may be used
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    bool is_here = false;
    for (std::int64_t i = begin; i < end; ++i) is_here |= is_equal(in[i], wanted);
    if (!is_here) continue;
    std::int64_t i = begin;
    while (!is_equal(in[i], wanted)) ++i;
    return static_cast<std::int32_t>(i);
  }
  return kNowhere;
}

ReduceLoops loops_of(const Box& in, const Dims& dims, const Box& out) {
  const Dims in_strides = row_major_strides(in.shape()),
             out_strides = row_major_strides(out.shape());
  ReduceLoops loops;
  std::size_t kept = 0;
  for (std::size_t dim = 0; dim < in.rank(); ++dim) {
    const bool goes =
        std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(dim)) != dims.end();
    assert(goes || in.extent(dim) == out.extent(kept));
    loops.add(in.extent(dim), {in_strides[dim], goes ? 0 : out_strides[kept++]});
  }
  return loops;
}

}  // namespace

void reduce_dims(Reduction reduction, const ConstShardView& in, const Dims& dims,
                 const ShardView& out) {
  assert(in.dtype == out.dtype && in.box.rank() == out.box.rank() + dims.size());
  if (out.box.empty()) return;
  if (detail::is_half(in.dtype)) {
    const detail::Widened wide(in);
    const detail::Unrounded result(out);
    reduce_dims(reduction, wide.view(), dims, result.view());
    return result.round();
  }
  const ReduceLoops loops = loops_of(in.box, dims, out.box);
  const bool is_bool = in.dtype == DType::boolean;
  switch (reduction) {
    case Reduction::none:
    case Reduction::bit_or:
      assert(false && "nothing to combine with");
      return;
    case Reduction::sum:
      return is_bool ? reduce_with<TakeLargest>(loops, in, out)
                     : reduce_with<TakeSum>(loops, in, out);
    case Reduction::max:
      return reduce_with<TakeLargest>(loops, in, out);
    case Reduction::min:
      return is_bool ? reduce_with<TakeLeastBoolean>(loops, in, out)
                     : reduce_with<TakeLeast>(loops, in, out);
    case Reduction::product:
      return reduce_with<TakeProduct>(loops, in, out);
  }
}

void index_of(const ConstShardView& in, const ConstShardView& wanted, std::size_t dim,
              const ShardView& out) {
  assert(in.dtype == wanted.dtype && out.dtype == DType::i32 && wanted.box == out.box);
  if (out.box.empty()) return;
  if (detail::is_half(in.dtype)) {
    return index_of(detail::Widened(in).view(), detail::Widened(wanted).view(), dim, out);
  }
  const AroundDim around(in.box, dim);
  const auto first = static_cast<std::int32_t>(in.box.begin(dim));
  auto* const result = reinterpret_cast<std::int32_t*>(out.data);
  std::fill_n(result, out.box.num_elements(), kNowhere);
  detail::with_ordered_type(in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* row = reinterpret_cast<const T*>(in.data);
    for (std::int64_t o = 0; o < around.outer; ++o) {
      const T* const values = reinterpret_cast<const T*>(wanted.data) + o * around.inner;
      std::int32_t* const at = result + o * around.inner;
      if (around.inner == 1) {
        const std::int32_t found = first_in_run(row, around.count, *values);
        if (found != kNowhere) *at = first + found;
        row += around.count;
        continue;
      }
      for (std::int64_t c = 0; c < around.count; ++c, row += around.inner) {
        const auto index = static_cast<std::int32_t>(first + c);
        for (std::int64_t i = 0; i < around.inner; ++i) {
          at[i] = std::min(at[i], is_equal(row[i], values[i]) ? index : kNowhere);
        }
      }
    }
  });
}

}  // namespace shardwise
