#pragma once

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
T exp2(const T& x) {
  return append_to(x, Op::exp2, {x});
}
template <TensorLike T>
T expm1(const T& x) {
  return append_to(x, Op::expm1, {x});
}
template <TensorLike T>
T log(const T& x) {
  return append_to(x, Op::log, {x});
}
template <TensorLike T>
T log1p(const T& x) {
  return append_to(x, Op::log1p, {x});
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
T erf_inv(const T& x) {
  return append_to(x, Op::erf_inv, {x});
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
T cbrt(const T& x) {
  return append_to(x, Op::cbrt, {x});
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
T population_count(const T& x) {
  return append_to(x, Op::population_count, {x});
}
/// x, for a mark of its own: identity(x) is cut as its mark says, and so is its gradient.
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
/// Reinterprets the bits of x as another dtype of the same width.
template <TensorLike T>
T bitcast(const T& x, DType dtype) {
  return append_to(x, Op::bitcast, {x}, {}, {dtype, x.type().shape});
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
auto atan2(const A& a, const B& b) {
  return binary(Op::atan2, a, b);
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
auto shift_left(const A& a, const B& b) {
  return binary(Op::shift_left, a, b);
}
template <class A, OperandWith<A> B>
auto shift_right_logical(const A& a, const B& b) {
  return binary(Op::shift_right_logical, a, b);
}
template <class A, OperandWith<A> B>
auto shift_right_arithmetic(const A& a, const B& b) {
  return binary(Op::shift_right_arithmetic, a, b);
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

/// a if `condition` holds, else b, by element; broadcast as numpy does, and a or b may be a number.
template <TensorLike T, class A, OperandWith<A> B>
T where(const T& condition, const A& a, const B& b) {
  if constexpr (!TensorLike<A>) {
    return where(condition, full_like(b, a), b);
  } else if constexpr (!TensorLike<B>) {
    return where(condition, a, full_like(a, b));
  } else {
    std::optional<Shape> shape = broadcast_shape(a.type().shape, b.type().shape);
    if (shape) shape = broadcast_shape(condition.type().shape, *shape);
    if (!shape) return select(condition, a, b);  // throws with the reason
    return select(broadcast_to(condition, *shape), broadcast_to(a, *shape),
                  broadcast_to(b, *shape));
  }
}

}  // namespace shardwise
