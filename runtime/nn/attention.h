#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/ops/control.h"
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

namespace detail {

/// Elements [begin, end) of one dim.
template <TensorLike T>
T elements(const T& x, std::size_t dim, std::int64_t begin, std::int64_t end) {
  Dims first = Dims::filled(x.type().shape.size(), 0), last = x.type().shape;
  first[dim] = begin;
  last[dim] = end;
  return slice(x, first, last);
}

/// x with each block of dim 1 at the next one's place, and the last at the first.
template <TensorLike T>
T to_next_block(const T& x) {
  const std::int64_t blocks = x.type().shape[1];
  return concatenate<T>({elements(x, 1, blocks - 1, blocks), elements(x, 1, 0, blocks - 1)}, 1);
}

/// Attention over some of the keys: `sum` of exp(score - top) and the same with values as weights.
template <TensorLike T>
struct Attended {
  T top, sum;  ///< [batch, block, group, head, query]
  T values;    ///< [batch, block, group, head, query, width]
};

/// x, repeated along a last dim like that of `like`.
template <TensorLike T>
T along_width(const T& x, const T& like) {
  return broadcast(x, like.type().shape, {0, 1, 2, 3, 4});
}

/// Keys and values, each [batch, block, key, group, width].
template <TensorLike T>
struct KeysAndValues {
  T k, v;
};

template <TensorLike T>
KeysAndValues<T> elements(const KeysAndValues<T>& kv, std::int64_t begin, std::int64_t end) {
  return {elements(kv.k, 2, begin, end), elements(kv.v, 2, begin, end)};
}

/// q [batch, block, query, group, head, width].
template <TensorLike T>
Attended<T> attend(const T& q, const KeysAndValues<T>& kv, Mask mask) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.type().shape[5]));
  T scores = einsum("bsqgrw,bskgw->bsgrqk", q, kv.k) * scale;
  const Shape shape = scores.type().shape;
  if (mask == Mask::causal) {
    const T position = iota(scores, {DType::i32, {shape[5]}}, 0);
    const T seen = ge(broadcast(position, shape, {4}), broadcast(position, shape, {5}));
    scores = where(seen, scores, -1e30);
  }
  const T top = stop_gradient(reduce_max(scores, {5}));
  const T weights = exp(scores - broadcast(top, shape, {0, 1, 2, 3, 4}));
  return {top, sum(weights, {5}), einsum("bsgrqk,bskgw->bsgrqw", weights, kv.v)};
}

/// Attention over the keys of both (online softmax).
template <TensorLike T>
Attended<T> merged(const Attended<T>& a, const Attended<T>& b) {
  const T top = max(a.top, b.top);
  const T of_a = exp(a.top - top), of_b = exp(b.top - top);
  return {top, a.sum * of_a + b.sum * of_b,
          a.values * along_width(of_a, a.values) + b.values * along_width(of_b, b.values)};
}

/// `some` in the blocks that `has` has, and attention over no keys in the others.
template <TensorLike T>
Attended<T> attended_if(const T& has, const Attended<T>& some) {
  const T narrow = broadcast(has, some.sum.type().shape, {1});
  const T wide = broadcast(has, some.values.type().shape, {1});
  return {where(narrow, some.top, -1e30), where(narrow, some.sum, 0.0),
          where(wide, some.values, 0.0)};
}

/// [batch, query, head, width] again.
template <TensorLike T>
T attention_of(const std::vector<Attended<T>>& chunks, const Shape& shape) {
  std::vector<T> parts;
  for (const Attended<T>& chunk : chunks) {
    const T mean = chunk.values / along_width(chunk.sum, chunk.values);
    parts.push_back(transpose(mean, Dims{0, 1, 4, 2, 3, 5}));
  }
  return reshape(parts.size() == 1 ? parts[0] : concatenate(parts, 2), shape);
}

template <TensorLike T>
std::vector<T> tree(const Attended<T>& a) {
  return {a.top, a.sum, a.values};
}
template <TensorLike T>
Attended<T> attended(const std::vector<T>& tree) {
  return {tree[0], tree[1], tree[2]};
}

/// `state` after the trips of keys and values around the ring: step(state, kv, i) is called with i
/// from 1 on, and kv of block b - i at block b.
template <TensorLike T, class State, class Step>
State trips_around(const KeysAndValues<T>& own, const State& state, Step&& step) {
  const std::int64_t blocks = own.k.type().shape[1];
  if (blocks == 1) return state;
  using Carry = std::pair<State, std::pair<T, T>>;
  const auto trip = [&](const Carry& carry, const T& i) {
    const KeysAndValues<T> kv{to_next_block(carry.second.first),
                              to_next_block(carry.second.second)};
    return std::pair(Carry{step(carry.first, kv, i), {kv.k, kv.v}}, nullptr);
  };
  const T trips = iota(own.k, {DType::i32, {blocks - 1}}, 0) + 1.0;
  return scan(trip, Carry{state, {own.k, own.v}}, trips).first.first;
}

/// All queries see all keys.
template <TensorLike T>
std::vector<Attended<T>> ring(const T& q, const KeysAndValues<T>& own) {
  const auto step = [&](const std::vector<T>& state, const KeysAndValues<T>& kv, const T&) {
    return tree(merged(attended(state), attend(q, kv, Mask::none)));
  };
  return {attended(trips_around(own, tree(attend(q, own, Mask::none)), step))};
}

/// Positions are in the order of zigzag(); gives the result for each block's first chunk, then for
/// its last.
template <TensorLike T>
std::vector<Attended<T>> causal_ring(const T& q, const KeysAndValues<T>& own) {
  using State = std::pair<std::vector<T>, std::vector<T>>;
  const std::int64_t blocks = q.type().shape[1], rows = q.type().shape[2], half = rows / 2;
  const T q_first = elements(q, 2, 0, half), q_last = elements(q, 2, half, rows);
  const auto own_first = elements(own, 0, half), own_last = elements(own, half, rows);
  const State start(
      tree(attend(q_first, own_first, Mask::causal)),
      tree(merged(attend(q_last, own_first, Mask::none), attend(q_last, own_last, Mask::causal))));
  // The last chunk of a block's queries sees the first chunk of all keys. If the keys are of an
  // earlier block, its first chunk sees the first, else its last sees the last: two products each.
  const auto step = [&](const State& state, const KeysAndValues<T>& kv, const T& i) {
    const T earlier = ge(iota(i, {DType::i32, {blocks}}, 0), broadcast(i, {blocks}, {}));
    const auto chosen = [&](const T& a, const T& b) {
      return where(broadcast(earlier, a.type().shape, {1}), a, b);
    };
    const auto first = elements(kv, 0, half), last = elements(kv, half, rows);
    const auto sure = attend(q_last, first, Mask::none);
    const KeysAndValues<T> halves{chosen(first.k, last.k), chosen(first.v, last.v)};
    const auto other = attend(chosen(q_first, q_last), halves, Mask::none);
    return State(tree(merged(attended(state.first), attended_if(earlier, other))),
                 tree(merged(merged(attended(state.second), sure),
                             attended_if(logical_not(earlier), other))));
  };
  const State end = trips_around(own, start, step);
  return {attended(end.first), attended(end.second)};
}

}  // namespace detail

/// The elements of a dim in the order that causal ring_attention() takes positions in: the dim is
/// cut into 2 x `blocks` chunks, and block b has chunks b and 2 x blocks - 1 - b, so that all
/// blocks have the same work. Throws invalid_argument if 2 x `blocks` does not divide the extent.
template <TensorLike T>
T zigzag(const T& x, std::int64_t dim, std::int64_t blocks) {
  const std::size_t at = as_size(dim < 0 ? dim + last_dim(x) + 1 : dim);
  const Shape& shape = x.type().shape;
  if (at >= shape.size() || blocks < 1 || shape[at] % (2 * blocks) != 0) {
    refuse_all("zigzag", {x},
               "found dim " + std::to_string(dim) + " of " + to_string(x.type()) + " for " +
                   std::to_string(blocks) + " blocks, needed an extent that " +
                   std::to_string(2 * blocks) + " divides");
  }
  const std::int64_t chunk = shape[at] / (2 * blocks);
  std::vector<T> chunks;
  for (std::int64_t i = 0; i < 2 * blocks; ++i) {
    const std::int64_t begin = (i % 2 == 0 ? i / 2 : 2 * blocks - 1 - i / 2) * chunk;
    chunks.push_back(detail::elements(x, at, begin, begin + chunk));
  }
  return concatenate(chunks, static_cast<std::int64_t>(at));
}

/// attention(), for sequences whose positions are cut over `blocks` devices: each device keeps its
/// queries, and the keys and values go around the ring, one step in each trip of a scan. So a
/// device never has the scores of more than one block of keys. Positions are in the order of
/// zigzag() if the mask is causal, and any order if not. Shapes are those of attention().
///
/// (Source: Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context",
/// arXiv 2310.01889; the order: Brandon et al., "Striped Attention", arXiv 2311.09431, and
/// zigzag-ring attention, which followed.)
///
/// Throws invalid_argument if the heads do not divide, or `blocks`, twice of them if causal, do not
/// divide the positions.
template <TensorLike T>
T ring_attention(const T& q, const T& k, const T& v, std::int64_t blocks,
                 Mask mask = Mask::causal) {
  const Shape shape = q.type().shape, keys = k.type().shape;
  const std::int64_t chunks = mask == Mask::causal ? 2 : 1;
  if (shape.size() != 4 || keys.size() != 4 || keys[2] == 0 || shape[2] % keys[2] != 0 ||
      keys[1] != shape[1] || blocks < 1 || shape[1] % (chunks * blocks) != 0) {
    refuse_all(
        "ring_attention", {q, k, v},
        "found queries " + to_string(q.type()) + " and keys " + to_string(k.type()) +
            ", needed [batch, position, head, width] of as many positions, heads that divide, "
            "and " +
            std::to_string(chunks * blocks) + " that divides the positions");
  }
  const std::int64_t rows = shape[1] / blocks;
  const T queries = reshape(q, {shape[0], blocks, rows, keys[2], shape[2] / keys[2], shape[3]});
  const Shape by_block{keys[0], blocks, rows, keys[2], keys[3]};
  const detail::KeysAndValues<T> own{reshape(k, by_block), reshape(v, by_block)};
  return detail::attention_of(
      mask == Mask::none ? detail::ring(queries, own) : detail::causal_ring(queries, own), shape);
}

void scaled_dot_product_attention(  // attention(q, k, v)
    const TensorLike auto&, const auto&...) = delete;

}  // namespace shardwise
