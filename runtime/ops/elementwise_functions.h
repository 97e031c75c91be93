#pragma once

#include <concepts>
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
  return append(context, Op::constant, std::span<const T>(), NumberAttributes{number}, type);
}
/// `number` in the shape and dtype of x.
template <TensorLike T>
T full_like(const T& x, Scalar number) {
  return constant(x, x.type(), number);
}
template <TensorLike T>
T iota(const T& context, const TensorType& type, std::int64_t dim) {
  return append(context, Op::iota, std::span<const T>(), DimAttributes{dim}, type);
}
/// `key`: a u64 scalar. Gives u32.
template <TensorLike T>
T random_bits(const T& key, const Shape& shape) {
  return append_to(key, Op::random_bits, {key}, {}, {DType::u32, shape});
}

/// Dim i of x is dim dims[i] of the result.
template <TensorLike T>
T broadcast(const T& x, const Shape& shape, const Dims& dims) {
  return append_to(x, Op::broadcast, {x}, DimsAttributes{dims}, {x.type().dtype, shape});
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

/// Two tensors, or a tensor and a number, which is then of the shape and dtype of the tensor.
template <class B, class A>
concept OperandWith = (TensorLike<A> && (std::same_as<A, B> || std::convertible_to<B, Scalar>)) ||
                      (TensorLike<B> && std::convertible_to<A, Scalar>);

/// Two operands of one dtype, broadcast as numpy does.
template <class A, OperandWith<A> B>
auto binary(Op op, const A& a, const B& b) {
  if constexpr (!TensorLike<A>) {
    return binary(op, full_like(b, a), b);
  } else if constexpr (!TensorLike<B>) {
    return binary(op, a, full_like(a, b));
  } else {
    if (a.type().shape == b.type().shape) return append_to(a, op, {a, b});
    const std::optional<Shape> shape = broadcast_shape(a.type().shape, b.type().shape);
    if (!shape) return append_to(a, op, {a, b});  // says what is wrong
    return append_to(a, op, {broadcast_to(a, *shape), broadcast_to(b, *shape)});
  }
}
template <class A, OperandWith<A> B>
auto add(const A& a, const B& b) {
  return binary(Op::add, a, b);
}
template <class A, OperandWith<A> B>
auto sub(const A& a, const B& b) {
  return binary(Op::sub, a, b);
}
template <class A, OperandWith<A> B>
auto mul(const A& a, const B& b) {
  return binary(Op::mul, a, b);
}
template <class A, OperandWith<A> B>
auto div(const A& a, const B& b) {
  return binary(Op::div, a, b);
}
template <class A, OperandWith<A> B>
auto rem(const A& a, const B& b) {
  return binary(Op::rem, a, b);
}
template <class A, OperandWith<A> B>
auto max(const A& a, const B& b) {
  return binary(Op::max, a, b);
}
template <class A, OperandWith<A> B>
auto min(const A& a, const B& b) {
  return binary(Op::min, a, b);
}
template <class A, OperandWith<A> B>
auto pow(const A& a, const B& b) {
  return binary(Op::pow, a, b);
}
template <class A, OperandWith<A> B>
auto eq(const A& a, const B& b) {
  return binary(Op::eq, a, b);
}
template <class A, OperandWith<A> B>
auto ne(const A& a, const B& b) {
  return binary(Op::ne, a, b);
}
template <class A, OperandWith<A> B>
auto lt(const A& a, const B& b) {
  return binary(Op::lt, a, b);
}
template <class A, OperandWith<A> B>
auto le(const A& a, const B& b) {
  return binary(Op::le, a, b);
}
template <class A, OperandWith<A> B>
auto gt(const A& a, const B& b) {
  return binary(Op::gt, a, b);
}
template <class A, OperandWith<A> B>
auto ge(const A& a, const B& b) {
  return binary(Op::ge, a, b);
}
template <class A, OperandWith<A> B>
auto logical_and(const A& a, const B& b) {
  return binary(Op::logical_and, a, b);
}
template <class A, OperandWith<A> B>
auto logical_or(const A& a, const B& b) {
  return binary(Op::logical_or, a, b);
}
template <class A, OperandWith<A> B>
auto logical_xor(const A& a, const B& b) {
  return binary(Op::logical_xor, a, b);
}

template <class A, OperandWith<A> B>
auto operator+(const A& a, const B& b) {
  return binary(Op::add, a, b);
}
template <class A, OperandWith<A> B>
auto operator-(const A& a, const B& b) {
  return binary(Op::sub, a, b);
}
template <class A, OperandWith<A> B>
auto operator*(const A& a, const B& b) {
  return binary(Op::mul, a, b);
}
template <class A, OperandWith<A> B>
auto operator/(const A& a, const B& b) {
  return binary(Op::div, a, b);
}
template <class A, OperandWith<A> B>
auto operator<(const A& a, const B& b) {
  return binary(Op::lt, a, b);
}
template <class A, OperandWith<A> B>
auto operator<=(const A& a, const B& b) {
  return binary(Op::le, a, b);
}
template <class A, OperandWith<A> B>
auto operator>(const A& a, const B& b) {
  return binary(Op::gt, a, b);
}
template <class A, OperandWith<A> B>
auto operator>=(const A& a, const B& b) {
  return binary(Op::ge, a, b);
}
template <TensorLike T>
T operator-(const T& x) {
  return neg(x);
}

/// `w -= g * 0.1` makes `w` the new tensor: other handles keep the old one.
template <TensorLike T, OperandWith<T> B>
T& operator+=(T& a, const B& b) {
  return a = a + b;
}
template <TensorLike T, OperandWith<T> B>
T& operator-=(T& a, const B& b) {
  return a = a - b;
}
template <TensorLike T, OperandWith<T> B>
T& operator*=(T& a, const B& b) {
  return a = a * b;
}
template <TensorLike T, OperandWith<T> B>
T& operator/=(T& a, const B& b) {
  return a = a / b;
}

/// a if `condition` holds, else b, by element. All three are of one shape.
template <TensorLike T>
T select(const T& condition, const T& a, const T& b) {
  return append_to(a, Op::select, {condition, a, b});
}

}  // namespace shardwise
