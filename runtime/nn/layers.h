#pragma once

#include <cmath>
#include <string>

#include "shardwise/runtime/nn/reduce.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// x w: [.., in], [in, out] -> [.., out]. The leading dims stay as they are, so marks on them pass
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

/// Over the last dim: x / sqrt(mean square + epsilon) * gain; gain: [width].
template <TensorLike T>
T rmsnorm(const T& x, const T& gain, double epsilon = 1e-6) {
  const Dims last{last_dim(x)};
  const T scale = rsqrt(mean(x * x, last) + epsilon);
  return x * spread(scale, x.type().shape, last) * gain;
}

/// Zero with probability `rate`, else x / (1 - rate). `key`: a u64 scalar; the same key gives the
/// same choice on every mesh. Requires 0 <= rate < 1.
template <TensorLike T>
T dropout(const T& x, const T& key, double rate) {
  const T bits = random_bits(key, x.type().shape);
  const T kept = ge(bits, full_like(bits, std::floor(rate * 0x1p32)));
  return select(kept, x * (1 / (1 - rate)), full_like(x, 0));
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

}  // namespace shardwise
