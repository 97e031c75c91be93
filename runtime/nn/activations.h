#pragma once

#include <cmath>
#include <numbers>

#include "shardwise/runtime/ops/functions.h"

namespace shardwise {

/// max(x, 0); the gradient at 0 is 0.
template <TensorLike T>
T relu(const T& x) {
  const T zero = full_like(x, 0);
  return select(le(x, zero), zero, x);
}

/// By tanh, as GPT-2 and jax.nn.gelu.
template <TensorLike T>
T gelu(const T& x) {
  const T inner = (x + x * x * x * 0.044715) * std::sqrt(2 * std::numbers::inv_pi);
  return x * (0.5 * (1.0 + tanh(inner)));
}

/// x times the normal distribution function, as torch's default.
template <TensorLike T>
T gelu_erf(const T& x) {
  return x * (0.5 * (1.0 + erf(x * (1 / std::numbers::sqrt2))));
}

/// x * logistic(x), "swish".
template <TensorLike T>
T silu(const T& x) {
  return x * logistic(x);
}

/// Along a dim; -1, as without one, is the last. One division a row: the gradients have none for
/// each element either.
template <TensorLike T>
T softmax(const T& x, std::int64_t along = -1) {
  const std::int64_t dim = dim_of(x, along);
  const Shape shape = x.type().shape;
  const T top = stop_gradient(reduce_max(x, {dim}));
  const T e = exp(x - spread(top, shape, {dim}));
  return e * spread(1.0 / reduce_sum(e, {dim}), shape, {dim});
}

/// Along a dim; -1, as without one, is the last.
template <TensorLike T>
T log_softmax(const T& x, std::int64_t along = -1) {
  const std::int64_t dim = dim_of(x, along);
  const Shape shape = x.type().shape;
  const T shifted = x - spread(stop_gradient(reduce_max(x, {dim})), shape, {dim});
  return shifted - spread(log(reduce_sum(exp(shifted), {dim})), shape, {dim});
}

}  // namespace shardwise
