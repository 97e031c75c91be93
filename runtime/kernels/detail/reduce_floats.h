#pragma once

#include <cstdint>

#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::detail {

/// Functions that combine elements.
template <class T>
struct ReduceFunctions {
  /// out[c] = the combination of out[c], in[c], in[c + step], .., row after row.
  void (*combine_rows)(const T* in, std::int64_t step, std::int64_t rows, std::int64_t cols,
                       T* out);

  /// The combination of rows of `count` elements side by side.
  T (*reduce_rows)(const T* in, std::int64_t step, std::int64_t rows, std::int64_t count);
};

/// Sum, max or min of float or double, by vectors; NaN wins in max and min. The order of additions
/// depends only on the counts, not on the machine's vectors.
template <class T>
ReduceFunctions<T> reduce_floats(Reduction reduction);

}  // namespace shardwise::detail
