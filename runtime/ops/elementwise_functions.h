#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/ops/build.h"
#include "shardwise/shard/error.h"

namespace shardwise {

// Ops as functions; the others are in functions.h. Each appends the node of op.h of the same name
// and throws as append().

template <TensorLike T>
T neg(const T& x) {
  return append_to(x, Op::neg, {x});
}
template <TensorLike T>
T abs(const T& x) {
  return append_to(x, Op::abs, {x});
}
template <TensorLike T>
T sign(const T& x) {
  return append_to(x, Op::sign, {x});
}
template <TensorLike T>
T exp(const T& x) {
  return append_to(x, Op::exp, {x});
}
template <TensorLike T>
T log(const T& x) {
  return append_to(x, Op::log, {x});
}
template <TensorLike T>
T tanh(const T& x) {
  return append_to(x, Op::tanh, {x});
}
template <TensorLike T>
T logistic(const T& x) {
  return append_to(x, Op::logistic, {x});
}
template <TensorLike T>
T erf(const T& x) {
  return append_to(x, Op::erf, {x});
}
template <TensorLike T>
T sqrt(const T& x) {
  return append_to(x, Op::sqrt, {x});
}
template <TensorLike T>
T rsqrt(const T& x) {
  return append_to(x, Op::rsqrt, {x});
}
template <TensorLike T>
T sin(const T& x) {
  return append_to(x, Op::sin, {x});
}
template <TensorLike T>
T cos(const T& x) {
  return append_to(x, Op::cos, {x});
}
template <TensorLike T>
T floor(const T& x) {
  return append_to(x, Op::floor, {x});
}
template <TensorLike T>
T ceil(const T& x) {
  return append_to(x, Op::ceil, {x});
}
template <TensorLike T>
T round(const T& x) {
  return append_to(x, Op::round, {x});
}
template <TensorLike T>
T is_finite(const T& x) {
  return append_to(x, Op::is_finite, {x});
}
template <TensorLike T>
T logical_not(const T& x) {
  return append_to(x, Op::logical_not, {x});
}
template <TensorLike T>
T identity(const T& x) {
  return append_to(x, Op::identity, {x});
}
template <TensorLike T>
T stop_gradient(const T& x) {
  return append_to(x, Op::stop_gradient, {x});
}
template <TensorLike T>
T optimization_barrier(const T& x) {
  return append_to(x, Op::optimization_barrier, {x});
}
template <TensorLike T>
T convert(const T& x, DType dtype) {
  return x.type().dtype == dtype ? x : append_to(x, Op::convert, {x}, {}, {dtype, x.type().shape});
}

/// `number` everywhere, in the graph of `context`: rounded to a floating dtype; an integer dtype
/// must have it exactly, so that 0.5 and 300 are refused for i8. Integers are kept as they are, up
/// to 64 bits.
template <TensorLike T>
T constant(const T& context, const TensorType& type, Scalar number) {
  return append(context, Op::constant, std::span<const T>(), Attributes{.number = number}, type);
}
/// `number` in the shape and dtype of x.
template <TensorLike T>
T full_like(const T& x, Scalar number) {
  return constant(x, x.type(), number);
}
template <TensorLike T>
T iota(const T& context, const TensorType& type, std::int64_t dim) {
  return append(context, Op::iota, std::span<const T>(), Attributes{.dims = {dim}}, type);
}
/// `key`: a u64 scalar. Gives u32.
template <TensorLike T>
T random_bits(const T& key, const Shape& shape) {
  return append_to(key, Op::random_bits, {key}, {}, {DType::u32, shape});
}

/// Dim i of x is dim dims[i] of the result.
template <TensorLike T>
T broadcast(const T& x, const Shape& shape, const Dims& dims) {
  return append_to(x, Op::broadcast, {x}, {.dims = dims}, {x.type().dtype, shape});
}
/// As numpy broadcasts: x's dims are the last of `shape`.
template <TensorLike T>
T broadcast_to(const T& x, const Shape& shape) {
  const TensorType& type = x.type();
  if (type.shape == shape) return x;
  Dims dims;
  const std::size_t rank = type.shape.size(), wider = shape.size();
  for (std::size_t i = 0; i < rank; ++i)
    dims.push_back(static_cast<std::int64_t>(wider - rank + i));
  return broadcast(x, shape, dims);
}

/// Two operands of one dtype, broadcast as numpy does.
template <TensorLike T>
T binary(Op op, const T& a, const T& b) {
  if (a.type().shape == b.type().shape) return append_to(a, op, {a, b});
  const std::optional<Shape> shape = broadcast_shape(a.type().shape, b.type().shape);
  if (!shape) return append_to(a, op, {a, b});  // says what is wrong
  return append_to(a, op, {broadcast_to(a, *shape), broadcast_to(b, *shape)});
}
template <TensorLike T>
T add(const T& a, const T& b) {
  return binary(Op::add, a, b);
}
template <TensorLike T>
T sub(const T& a, const T& b) {
  return binary(Op::sub, a, b);
}
template <TensorLike T>
T mul(const T& a, const T& b) {
  return binary(Op::mul, a, b);
}
template <TensorLike T>
T div(const T& a, const T& b) {
  return binary(Op::div, a, b);
}
template <TensorLike T>
T rem(const T& a, const T& b) {
  return binary(Op::rem, a, b);
}
template <TensorLike T>
T max(const T& a, const T& b) {
  return binary(Op::max, a, b);
}
template <TensorLike T>
T min(const T& a, const T& b) {
  return binary(Op::min, a, b);
}
template <TensorLike T>
T pow(const T& a, const T& b) {
  return binary(Op::pow, a, b);
}
template <TensorLike T>
T eq(const T& a, const T& b) {
  return binary(Op::eq, a, b);
}
template <TensorLike T>
T ne(const T& a, const T& b) {
  return binary(Op::ne, a, b);
}
template <TensorLike T>
T lt(const T& a, const T& b) {
  return binary(Op::lt, a, b);
}
template <TensorLike T>
T le(const T& a, const T& b) {
  return binary(Op::le, a, b);
}
template <TensorLike T>
T gt(const T& a, const T& b) {
  return binary(Op::gt, a, b);
}
template <TensorLike T>
T ge(const T& a, const T& b) {
  return binary(Op::ge, a, b);
}
template <TensorLike T>
T logical_and(const T& a, const T& b) {
  return binary(Op::logical_and, a, b);
}
template <TensorLike T>
T logical_or(const T& a, const T& b) {
  return binary(Op::logical_or, a, b);
}
template <TensorLike T>
T logical_xor(const T& a, const T& b) {
  return binary(Op::logical_xor, a, b);
}

template <TensorLike T>
T operator+(const T& a, const T& b) {
  return add(a, b);
}
template <TensorLike T>
T operator+(const T& a, Scalar b) {
  return add(a, full_like(a, b));
}
template <TensorLike T>
T operator+(Scalar a, const T& b) {
  return add(full_like(b, a), b);
}
template <TensorLike T>
T operator-(const T& a, const T& b) {
  return sub(a, b);
}
template <TensorLike T>
T operator-(const T& a, Scalar b) {
  return sub(a, full_like(a, b));
}
template <TensorLike T>
T operator-(Scalar a, const T& b) {
  return sub(full_like(b, a), b);
}
template <TensorLike T>
T operator*(const T& a, const T& b) {
  return mul(a, b);
}
template <TensorLike T>
T operator*(const T& a, Scalar b) {
  return mul(a, full_like(a, b));
}
template <TensorLike T>
T operator*(Scalar a, const T& b) {
  return mul(full_like(b, a), b);
}
template <TensorLike T>
T operator/(const T& a, const T& b) {
  return div(a, b);
}
template <TensorLike T>
T operator/(const T& a, Scalar b) {
  return div(a, full_like(a, b));
}
template <TensorLike T>
T operator/(Scalar a, const T& b) {
  return div(full_like(b, a), b);
}
template <TensorLike T>
T operator-(const T& x) {
  return neg(x);
}

/// a if `condition` holds, else b, by element; broadcast as numpy does.
template <TensorLike T>
T select(const T& condition, const T& a, const T& b) {
  std::optional<Shape> shape = broadcast_shape(a.type().shape, b.type().shape);
  if (shape) shape = broadcast_shape(condition.type().shape, *shape);
  if (!shape) return append_to(a, Op::select, {condition, a, b});  // says what is wrong
  return append_to(
      a, Op::select,
      {broadcast_to(condition, *shape), broadcast_to(a, *shape), broadcast_to(b, *shape)});
}

}  // namespace shardwise
