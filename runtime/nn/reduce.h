#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "shardwise/runtime/ops/functions.h"

namespace shardwise {

/// The last dim of a tensor. Requires a dim.
template <TensorLike T>
std::int64_t last_dim(const T& x) {
  return static_cast<std::int64_t>(x.type().shape.size()) - 1;
}

/// 0, 1, .., rank - 1
inline Dims all_dims(std::size_t rank) {
  Dims dims;
  for (std::size_t dim = 0; dim < rank; ++dim) dims.push_back(static_cast<std::int64_t>(dim));
  return dims;
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

/// Over `dims`, which go.
template <TensorLike T>
T mean(const T& x, const Dims& dims) {
  double count = 1;
  for (const std::int64_t dim : dims) count *= static_cast<double>(x.type().shape[as_size(dim)]);
  return reduce_sum(x, dims) / count;
}

/// Of all elements: a scalar.
template <TensorLike T>
T mean(const T& x) {
  return mean(x, all_dims(x.type().shape.size()));
}

/// The mean square of the distance from the mean, over `dims`, which go.
template <TensorLike T>
T variance(const T& x, const Dims& dims) {
  const T centred = x - spread(mean(x, dims), x.type().shape, dims);
  return mean(centred * centred, dims);
}

}  // namespace shardwise
