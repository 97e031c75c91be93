#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "shardwise/runtime/ops/functions.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// The last dim of a tensor. Requires a dim.
template <TensorLike T>
std::int64_t last_dim(const T& x) {
  return static_cast<std::int64_t>(x.type().shape.size()) - 1;
}

/// The result of a reduction over `dims` of a tensor of `shape`, repeated along these dims.
template <TensorLike T>
T spread(const T& reduced, const Shape& shape, const Dims& dims) {
  Dims kept;
  for (const std::int64_t dim : all_dims(shape.size())) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) kept.push_back(dim);
  }
  return broadcast(reduced, shape, kept);
}

/// Over `dims`, which go. They may be counted from the end: -1 is the last.
template <TensorLike T>
T mean(const T& x, const Dims& dims) {
  const T sums = reduce_sum(x, dims);  // throws if there is no such dim
  double count = 1;
  for (const std::int64_t dim : dims_of(x, dims)) {
    count *= static_cast<double>(x.type().shape[as_size(dim)]);
  }
  return sums / count;
}
template <TensorLike T, std::integral Dim>
T mean(const T& x, Dim dim) {
  return mean(x, {static_cast<std::int64_t>(dim)});
}

/// Of all elements: a scalar.
template <TensorLike T>
T mean(const T& x) {
  return mean(x, all_dims(x.type().shape.size()));
}

/// The mean square of the distance from the mean, over `dims`, which go.
template <TensorLike T>
T variance(const T& x, const Dims& given) {
  const Dims dims = dims_of(x, given);
  const T centred = x - spread(mean(x, dims), x.type().shape, dims);
  return mean(centred * centred, dims);
}

}  // namespace shardwise
