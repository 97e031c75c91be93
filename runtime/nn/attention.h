#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "shardwise/runtime/nn/layers.h"
#include "shardwise/shard/error.h"

namespace shardwise {

enum class Mask { causal, none };

namespace detail {

/// softmax of the scaled scores [.., queries, keys], each query seeing the keys up to its own; the
/// last query is at the last key.
template <TensorLike T>
T attention_weights(const T& scores, std::int64_t width, Mask mask) {
  T scaled = scores * (1 / std::sqrt(static_cast<double>(width)));
  const std::int64_t keys_dim = last_dim(scores);
  if (mask == Mask::causal) {
    const std::int64_t queries = scores.type().shape[as_size(keys_dim - 1)];
    const std::int64_t keys = scores.type().shape[as_size(keys_dim)];
    const T last_seen =
        iota(scores, {DType::i32, {queries}}, 0) + static_cast<double>(keys - queries);
    const T key = iota(scores, {DType::i32, {keys}}, 0);
    const Shape square{queries, keys};
    const T seen = ge(broadcast(last_seen, square, {0}), broadcast(key, square, {1}));
    scaled = where(seen, scaled, -1e30);
  }
  return softmax(scaled, keys_dim);
}

}  // namespace detail

/// softmax(q k / sqrt(width)) v, for each head: q [batch, queries, heads, width], k and v [batch,
/// keys, heads, width]; gives [batch, queries, heads, width]. If k and v have fewer heads, each of
/// them serves the same number of consecutive heads of q (grouped-query attention). Throws
/// invalid_argument if the heads do not divide.
template <TensorLike T>
T attention(const T& q, const T& k, const T& v, Mask mask = Mask::causal) {
  const Shape shape = q.type().shape;
  if (shape.size() != 4 || k.type().shape.size() != 4) {
    refuse_all("attention", {q, k, v},
               "found queries " + to_string(q.type()) + " and keys " + to_string(k.type()) +
                   ", needed [batch, position, head, width]");
  }
  const std::int64_t heads = shape[2], groups = k.type().shape[2], width = shape[3];
  if (heads == groups) {
    const T scores = einsum("bqhw,bkhw->bhqk", q, k);
    return einsum("bhqk,bkhw->bqhw", detail::attention_weights(scores, width, mask), v);
  }
  if (groups == 0 || heads % groups != 0) {
    refuse_all("attention", {q, k, v},
               "found " + std::to_string(heads) + " heads of queries and " +
                   std::to_string(groups) + " of keys, needed a multiple");
  }
  const T grouped = reshape(q, {shape[0], shape[1], groups, heads / groups, width});
  const T scores = einsum("bqgrw,bkgw->bgrqk", grouped, k);
  const T weights = detail::attention_weights(scores, width, mask);
  return reshape(einsum("bgrqk,bkgw->bqgrw", weights, v), shape);
}

/// Turns each pair (x[i], x[i + width / 2]) of a head by position * base^(-2 i / width): x [batch,
/// position, head, width]. Throws invalid_argument for another rank or an odd width.
template <TensorLike T>
T rotary_embedding(const T& x, double base = 10000) {
  const Shape shape = x.type().shape;
  if (shape.size() != 4 || shape[3] % 2 != 0) {
    refuse_all("rotary_embedding", {x},
               "found " + to_string(x.type()) +
                   ", needed [batch, position, head, width] of an even width");
  }
  const std::int64_t half = shape[3] / 2;
  const TensorType table{x.type().dtype, {shape[1], half}};
  const T exponent = iota(x, table, 1) * (-2 * std::log(base) / static_cast<double>(shape[3]));
  const T angle = iota(x, table, 0) * exp(exponent);
  const Shape halved{shape[0], shape[1], shape[2], half};
  const T c = broadcast(cos(angle), halved, {1, 3}), s = broadcast(sin(angle), halved, {1, 3});
  const T a = slice(x, {0, 0, 0, 0}, halved), b = slice(x, {0, 0, 0, half}, shape);
  return concatenate<T>({a * c - b * s, b * c + a * s}, 3);
}

void scaled_dot_product_attention(  // attention(q, k, v)
    const TensorLike auto&, const auto&...) = delete;

}  // namespace shardwise
