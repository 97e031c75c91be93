#include "shardwise/runtime/kernels/detail/reduce_floats.h"

#include <algorithm>
#include <cstdint>
#include <limits>

// Highway compiles this file once per SIMD target and picks one at run time. The targets are
// included again from here, so everything up to the second part is inside HWY_NAMESPACE.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shardwise/runtime/kernels/detail/reduce_floats.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway wants it.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shardwise::detail {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

struct Sum {
  template <class T>
  static constexpr T kIdentity = 0;

  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    return hn::Add(a, b);
  }
};

// A NaN in `a` compares false and stays. Equal numbers differ only in the sign of a zero: the
// larger of both is -0 only if both are.
struct Max {
  template <class T>
  static constexpr T kIdentity = -std::numeric_limits<T>::infinity();

  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    const V larger = hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(b)), b, a);
    return hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), larger);
  }
};

struct Min {
  template <class T>
  static constexpr T kIdentity = std::numeric_limits<T>::infinity();

  template <class V>
  static HWY_INLINE V combine(V a, V b) {
    const V less = hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a);
    return hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), less);
  }
};

template <class Operation, class T>
HWY_INLINE T combine_numbers(T a, T b) {
  const hn::CappedTag<T, 1> one;
  return hn::GetLane(Operation::combine(hn::Set(one, a), hn::Set(one, b)));
}

template <class Operation, class T>
void combine_rows(const T* in, std::int64_t step, std::int64_t rows, std::int64_t cols, T* out) {
  const hn::CappedTag<T, 64 / sizeof(T)> tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  // Several rows at a time, for fewer loads and stores of the results.
  constexpr std::int64_t kRows = 4;
  for (; rows >= kRows; rows -= kRows, in += kRows * step) {
    const T *second = in + step, *third = second + step, *fourth = third + step;
    std::int64_t c = 0;
    for (; c + lanes <= cols; c += lanes) {
      auto results = hn::LoadU(tag, out + c);
      for (const T* row : {in, second, third, fourth}) {
        results = Operation::combine(results, hn::LoadU(tag, row + c));
      }
      hn::StoreU(results, tag, out + c);
    }
    for (; c < cols; ++c) {
      for (const T* row : {in, second, third, fourth}) {
        out[c] = combine_numbers<Operation>(out[c], row[c]);
      }
    }
  }
  for (; rows > 0; --rows, in += step) {
    std::int64_t c = 0;
    for (; c + lanes <= cols; c += lanes) {
      const auto results = Operation::combine(hn::LoadU(tag, out + c), hn::LoadU(tag, in + c));
      hn::StoreU(results, tag, out + c);
    }
    for (; c < cols; ++c) out[c] = combine_numbers<Operation>(out[c], in[c]);
  }
}

/// Each row is treated as a matrix with this many columns. Columns are combined first, over all
/// rows, then the results of the columns.
constexpr std::int64_t kColumns = 32;

/// Combines results[0] to [2 * kHalf] to results[0].
template <class Operation, std::int64_t kHalf, class T>
HWY_INLINE void fold(T* results) {
  if constexpr (kHalf > 0) {
    const hn::CappedTag<T, std::min<std::int64_t>(kHalf, 64 / sizeof(T))> tag;
    for (std::int64_t c = 0; c < kHalf; c += static_cast<std::int64_t>(hn::Lanes(tag))) {
      const auto both =
          Operation::combine(hn::LoadU(tag, results + c), hn::LoadU(tag, results + kHalf + c));
      hn::StoreU(both, tag, results + c);
    }
    fold<Operation, kHalf / 2>(results);
  }
}

/// Combines the first `count` < 2 * kLanes elements into the results.
template <class Operation, std::int64_t kLanes, class T>
HWY_INLINE void combine_rest(const T* in, std::int64_t count, T* results) {
  if constexpr (kLanes > 0) {
    if ((count & kLanes) != 0) {
      const hn::CappedTag<T, std::min<std::int64_t>(kLanes, 64 / sizeof(T))> tag;
      for (std::int64_t c = 0; c < kLanes; c += static_cast<std::int64_t>(hn::Lanes(tag))) {
        const auto both = Operation::combine(hn::LoadU(tag, results + c), hn::LoadU(tag, in + c));
        hn::StoreU(both, tag, results + c);
      }
      in += kLanes;
      results += kLanes;
    }
    combine_rest<Operation, kLanes / 2>(in, count, results);
  }
}

/// Two vectors of columns at a time, whose results stay in registers.
template <class Operation, class T>
HWY_INLINE void combine_columns(const T* in, std::int64_t count, T* results) {
  const hn::CappedTag<T, 64 / sizeof(T)> tag;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  const std::int64_t rows = count / kColumns;
  for (std::int64_t c = 0; rows > 0 && c < kColumns; c += 2 * lanes) {
    const T* row = in + c;
    auto first = hn::LoadU(tag, results + c), second = hn::LoadU(tag, results + c + lanes);
    for (std::int64_t r = 0; r < rows; ++r, row += kColumns) {
      first = Operation::combine(first, hn::LoadU(tag, row));
      second = Operation::combine(second, hn::LoadU(tag, row + lanes));
    }
    hn::StoreU(first, tag, results + c);
    hn::StoreU(second, tag, results + c + lanes);
  }
  combine_rest<Operation, kColumns / 2>(in + rows * kColumns, count % kColumns, results);
}

template <class Operation, class T>
T reduce_rows(const T* in, std::int64_t step, std::int64_t rows, std::int64_t count) {
  constexpr std::int64_t kBlock = 256 * kColumns;  // which keeps the error of long sums small
  T result = Operation::template kIdentity<T>;
  if (rows * count < 8) {
    for (; rows > 0; --rows, in += step) {
      for (std::int64_t i = 0; i < count; ++i) result = combine_numbers<Operation>(result, in[i]);
    }
    return result;
  }
  HWY_ALIGN T results[kColumns];
  std::fill_n(results, kColumns, Operation::template kIdentity<T>);
  std::int64_t combined = 0;
  for (; rows > 0; --rows, in += step) {
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
      const std::int64_t length = std::min(kBlock, count - begin);
      if (combined + length > kBlock) {
        fold<Operation, kColumns / 2>(results);
        result = combine_numbers<Operation>(result, results[0]);
        std::fill_n(results, kColumns, Operation::template kIdentity<T>);
        combined = 0;
      }
      combine_columns<Operation>(in + begin, length, results);
      combined += length;
    }
  }
  fold<Operation, kColumns / 2>(results);
  return combine_numbers<Operation>(result, results[0]);
}

template <class T>
ReduceFunctions<T> find_reduce(Reduction reduction) {
  if (reduction == Reduction::sum) return {&combine_rows<Sum, T>, &reduce_rows<Sum, T>};
  if (reduction == Reduction::max) return {&combine_rows<Max, T>, &reduce_rows<Max, T>};
  return {&combine_rows<Min, T>, &reduce_rows<Min, T>};
}

ReduceFunctions<float> find_reduce_f32(Reduction reduction) {
  return find_reduce<float>(reduction);
}
ReduceFunctions<double> find_reduce_f64(Reduction reduction) {
  return find_reduce<double>(reduction);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace shardwise::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardwise::detail {
namespace {

HWY_EXPORT(find_reduce_f32);
HWY_EXPORT(find_reduce_f64);

}  // namespace

template <>
ReduceFunctions<float> reduce_floats(Reduction reduction) {
  return HWY_DYNAMIC_DISPATCH(find_reduce_f32)(reduction);
}

template <>
ReduceFunctions<double> reduce_floats(Reduction reduction) {
  return HWY_DYNAMIC_DISPATCH(find_reduce_f64)(reduction);
}

}  // namespace shardwise::detail
#endif
