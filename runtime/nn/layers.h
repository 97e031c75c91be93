#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>

#include "shardwise/runtime/ops/functions.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// x w: [.., in], [in, out] -> [.., out]. The leading dims stay separate, so marks on them pass
/// through.
template <TensorLike T>
T linear(const T& x, const T& w) {
  std::string leading;
  for (std::size_t dim = 1; dim < x.type().shape.size(); ++dim) {
    leading += static_cast<char>('a' + dim - 1);
  }
  return einsum(leading + "y,yz->" + leading + "z", x, w);
}

/// The product of the last two dims, as numpy's: [.., i, k], [k, j] -> [.., i, j], or both with the
/// same leading dims. Throws invalid_argument if they do not fit.
template <TensorLike T>
T matmul(const T& x, const T& w) {
  const std::size_t rank = x.type().shape.size();
  if (w.type().shape.size() == 2) return linear(x, w);
  if (rank < 2 || w.type().shape.size() != rank) {
    refuse_all("matmul", {x, w},
               "found other ranks, needed [.., i, k] and [k, j], or two of one rank from 2 on");
  }
  std::string leading;
  for (std::size_t dim = 2; dim < rank; ++dim) leading += static_cast<char>('a' + dim - 2);
  return einsum(leading + "xy," + leading + "yz->" + leading + "xz", x, w);
}

template <TensorLike T>
void dot(const T&, const T&) = delete;  // matmul(x, w), or einsum(equation, x, w)

/// x w + b, b: [out].
template <TensorLike T>
T linear(const T& x, const T& w, const T& b) {
  return linear(x, w) + b;
}

/// Over the last dim: (x - mean) / sqrt(variance + epsilon) * gain + bias; gain, bias: [width].
template <TensorLike T>
T layernorm(const T& x, const T& gain, const T& bias, double epsilon = 1e-5) {
  const Shape shape = x.type().shape;
  const Dims last{last_dim(x)};
  const T centred = x - spread(mean(x, last), shape, last);
  const T scale = rsqrt(mean(centred * centred, last) + epsilon);
  return centred * spread(scale, shape, last) * gain + bias;
}

void layer_norm(const TensorLike auto&, const auto&...) = delete;  // layernorm(x, gain, bias)
void rms_norm(const TensorLike auto&, const auto&...) = delete;    // rmsnorm(x, gain)
void batch_norm(  // batchnorm(x, gain, bias, running)
    const TensorLike auto&, const auto&...) = delete;
void group_norm(  // groupnorm(x, gain, bias, groups)
    const TensorLike auto&, const auto&...) = delete;
void cross_entropy_loss(  // cross_entropy(x, labels)
    const TensorLike auto&, const auto&...) = delete;

/// Over the last dim: x / sqrt(mean square + epsilon) * gain; gain: [width].
template <TensorLike T>
T rmsnorm(const T& x, const T& gain, double epsilon = 1e-6) {
  const Dims last{last_dim(x)};
  const T scale = rsqrt(mean(x * x, last) + epsilon);
  return x * spread(scale, x.type().shape, last) * gain;
}

/// Statistics of each feature: a number for each element of dim `features`.
template <TensorLike T>
struct Statistics {
  T mean, variance;
};

struct BatchNormOptions {
  std::int64_t features = 1;  ///< dim of x
  double epsilon = 1e-5;
  double momentum = 0.1;  ///< weight of the new statistics in the running ones, as in torch
};

/// (x - mean) / sqrt(variance + epsilon) * gain + bias, by feature; gain, bias: [features].
template <TensorLike T>
T normalize(const T& x, const Statistics<T>& of, const T& gain, const T& bias,
            const BatchNormOptions& options = {}) {
  const Dims dim{dim_of(x, options.features)};
  const Shape shape = x.type().shape;
  const T scale = rsqrt(of.variance + options.epsilon) * gain;
  return (x - broadcast(of.mean, shape, dim)) * broadcast(scale, shape, dim) +
         broadcast(bias, shape, dim);
}

template <TensorLike T>
struct BatchNormed {
  T result;
  Statistics<T> running;  ///< new running statistics; no gradient passes through them
};

/// In training, as in torch: normalised by the statistics over all dims except the features', cut
/// or not. The running variance is a sample's: it divides by one less. In inference, normalize() by
/// the running statistics. Throws invalid_argument if a feature has only one number.
template <TensorLike T>
BatchNormed<T> batchnorm(const T& x, const T& gain, const T& bias, const Statistics<T>& running,
                         const BatchNormOptions& options = {}) {
  const std::int64_t features = dim_of(x, options.features);
  Dims others;
  double count = 1;
  for (const std::int64_t dim : all_dims(x.type().shape.size())) {
    if (dim == features) continue;
    others.push_back(dim);
    count *= static_cast<double>(x.type().shape[as_size(dim)]);
  }
  if (count < 2)
    refuse_all("batchnorm", {x},
               "found " + std::to_string(static_cast<std::int64_t>(count)) +
                   " numbers of each feature, needed 2");
  const Statistics<T> now{mean(x, others), variance(x, others)};
  const double old = 1 - options.momentum, sample = options.momentum * count / (count - 1);
  return {normalize(x, now, gain, bias, options),
          {running.mean * old + stop_gradient(now.mean) * options.momentum,
           running.variance * old + stop_gradient(now.variance) * sample}};
}

/// For [images, features, ..]: normalises each image by the statistics of each of `groups` groups
/// of adjacent features; gain, bias: [features]. Throws invalid_argument if groups do not divide
/// the features.
template <TensorLike T>
T groupnorm(const T& x, const T& gain, const T& bias, std::int64_t groups, double epsilon = 1e-5) {
  const Shape shape = x.type().shape;
  if (shape.size() < 2 || groups < 1 || shape[1] % groups != 0) {
    refuse_all("groupnorm", {x},
               "found " + std::to_string(groups) +
                   " groups, needed [images, features, ..] and a number that divides the features");
  }
  Shape split{shape[0], groups, shape[1] / groups};
  for (std::size_t dim = 2; dim < shape.size(); ++dim) split.push_back(shape[dim]);
  Dims others = all_dims(split.size());
  others = Dims(std::span(others.begin() + 2, others.end()));
  const T grouped = reshape(x, split);
  const T centred = grouped - spread(mean(grouped, others), split, others);
  const T scale = rsqrt(mean(centred * centred, others) + epsilon);
  return reshape(centred * spread(scale, split, others), shape) * broadcast(gain, shape, {1}) +
         broadcast(bias, shape, {1});
}

/// max(x, 0); the gradient at 0 is 0.
template <TensorLike T>
T relu(const T& x) {
  const T zero = full_like(x, 0);
  return select(le(x, zero), zero, x);
}

/// The tanh approximation, as in GPT-2 and jax.nn.gelu.
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

/// Along a dim; by default -1, the last. One division per row: the gradient divides no single
/// element either.
template <TensorLike T>
T softmax(const T& x, std::int64_t along = -1) {
  const std::int64_t dim = dim_of(x, along);
  const Shape shape = x.type().shape;
  const T top = stop_gradient(reduce_max(x, {dim}));
  const T e = exp(x - spread(top, shape, {dim}));
  return e * spread(1.0 / reduce_sum(e, {dim}), shape, {dim});
}

/// Along a dim; by default -1, the last.
template <TensorLike T>
T log_softmax(const T& x, std::int64_t along = -1) {
  const std::int64_t dim = dim_of(x, along);
  const Shape shape = x.type().shape;
  const T shifted = x - spread(stop_gradient(reduce_max(x, {dim})), shape, {dim});
  return shifted - spread(log(reduce_sum(exp(shifted), {dim})), shape, {dim});
}

/// Zero with probability `rate`, else x / (1 - rate). `key`: a u64 scalar; the same key gives the
/// same choice on every mesh. Requires 0 <= rate < 1.
template <TensorLike T>
T dropout(const T& x, const T& key, double rate) {
  const T bits = random_bits(key, x.type().shape);
  const T kept = ge(bits, full_like(bits, std::floor(rate * 0x1p32)));
  return where(kept, x * (1 / (1 - rate)), 0);
}

/// Mean over all rows of -log softmax(logits)[label]: logits [.., classes], labels [..] of i32 or
/// i64. The classes may be cut.
template <TensorLike T>
T cross_entropy(const T& logits, const T& labels) {
  const Shape shape = logits.type().shape;
  const Dims last{last_dim(logits)};
  const T shifted = logits - spread(stop_gradient(reduce_max(logits, last)), shape, last);
  Shape column = labels.type().shape;
  column.push_back(1);
  const T chosen = take_along(shifted, reshape(labels, column), last[0]);
  return mean(log(reduce_sum(exp(shifted), last)) - reshape(chosen, labels.type().shape));
}

/// Mean of the squared differences.
template <TensorLike T>
T mse_loss(const T& found, const T& wanted) {
  const T wrong = found - wanted;
  return mean(wrong * wrong);
}

/// Mean of -log of the probability that logistic(logits) gives to labels from 0 to 1.
template <TensorLike T>
T binary_cross_entropy_with_logits(const T& logits, const T& labels) {
  return mean(max(logits, 0) - logits * labels + log(1 + exp(-abs(logits))));
}
void sum(  // spread(sum(x, dim), x.shape(), {dim}), or reshape(sum(x, dim), {8, 1})
    const TensorLike auto&, const auto&, bool) = delete;
void mean(  // spread(mean(x, dim), x.shape(), {dim}), or reshape(mean(x, dim), {8, 1})
    const TensorLike auto&, const auto&, bool) = delete;
void clamp(const TensorLike auto&, double, double) = delete;     // clamp(low, x, high)
void nll_loss(const TensorLike auto&, const auto&...) = delete;  // cross_entropy(logits, labels)
void accuracy(  // mean(convert(eq(argmax(x, -1), labels), DType::f32))
    const TensorLike auto&, const auto&...) = delete;
void softplus(const TensorLike auto&, const auto&...) = delete;    // log(1 + exp(x))
void leaky_relu(const TensorLike auto&, const auto&...) = delete;  // where(x > 0, x, 0.01 * x)
void elu(const TensorLike auto&, const auto&...) = delete;         // where(x > 0, x, expm1(x))
void norm(const TensorLike auto&, const auto&...) = delete;        // sqrt(sum(x * x))
void logsumexp(  // log(sum(exp(x), dim)), of x less its reduce_max(x, dims)
    const TensorLike auto&, const auto&...) = delete;
void prod(const TensorLike auto&, const auto&...) = delete;             // reduce_prod(x, dims)
void var(const TensorLike auto&, const auto&...) = delete;              // variance(x, dims)
void any(const TensorLike auto&, const auto&...) = delete;              // reduce_max(x, dims)
void all(const TensorLike auto&, const auto&...) = delete;              // reduce_min(x, dims)
void isnan(const TensorLike auto&, const auto&...) = delete;            // ne(x, x)
void isfinite(const TensorLike auto&, const auto&...) = delete;         // is_finite(x)
void topk(const TensorLike auto&, const auto&...) = delete;             // top_k(x, dim, k)
void top_k(const TensorLike auto&, std::integral auto) = delete;        // top_k(x, dim, k)
void index_select(const TensorLike auto&, const auto&...) = delete;     // take(x, ids, dim)
void outer(const TensorLike auto&, const auto&...) = delete;            // einsum("a,b->ab", x, y)
void tensordot(const TensorLike auto&, const auto&...) = delete;        // einsum(equation, x, w)
void reduce_sum(const TensorLike auto&, std::integral auto) = delete;   // sum(x, 1)
void reduce_sum(const TensorLike auto&) = delete;                       // sum(x)
void reduce_max(const TensorLike auto&, std::integral auto) = delete;   // reduce_max(x, {1})
void reduce_min(const TensorLike auto&, std::integral auto) = delete;   // reduce_min(x, {1})
void max(const TensorLike auto&) = delete;                              // reduce_max(x, dims)
void min(const TensorLike auto&) = delete;                              // reduce_min(x, dims)
void reduce_prod(const TensorLike auto&, std::integral auto) = delete;  // reduce_prod(x, {1})
void binary_cross_entropy(  // binary_cross_entropy_with_logits(logits, labels)
    const TensorLike auto&, const auto&...) = delete;

}  // namespace shardwise
