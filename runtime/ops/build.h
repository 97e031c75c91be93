#pragma once

#include <concepts>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/runtime/graph/graph.h"

namespace shardwise {

/// A node of a graph that is being built. Valid as long as the graph.
struct NodeRef {
  Graph* graph;
  NodeId id;

  const TensorType& type() const { return graph->node(id).type; }
};

/// Appends a node whose operands are nodes of one graph; `context` is any node of it. What the
/// operands do not give of the result's type is taken from `wanted`. Throws invalid_argument where
/// operands and attributes do not fit, unsupported where the op is not defined for a dtype: with
/// op, scope, found and needed.
NodeRef append(const NodeRef& context, Op op, std::span<const NodeRef> operands,
               Attributes attributes = {}, const TensorType& wanted = {});

/// Appends a leaf. In the scope of the last node.
NodeId append_input(Graph& graph, const TensorType& type, std::string_view label,
                    MemoryKind kind = MemoryKind::array);

/// What the functions below work on: a NodeRef, or a Tensor (tensor.h).
template <class T>
concept TensorLike = requires(const T& t, std::span<const T> operands) {
  { t.type() } -> std::convertible_to<TensorType>;
  { append(t, Op::add, operands) } -> std::same_as<T>;
};

template <TensorLike T>
T append_to(const T& first, Op op, std::initializer_list<T> operands, Attributes attributes = {},
            const TensorType& wanted = {}) {
  return append(first, op, std::span<const T>(operands.begin(), operands.size()),
                std::move(attributes), wanted);
}

// Every op as a function. Each appends the node of op.h of the same name and throws as append().

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

/// `number` everywhere, in the graph of `context`.
template <TensorLike T>
T constant(const T& context, const TensorType& type, double number) {
  return append(context, Op::constant, std::span<const T>(), Attributes{.number = number}, type);
}
/// `number` in the shape and dtype of x.
template <TensorLike T>
T full_like(const T& x, double number) {
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
/// The shape that numpy gives two operands; nothing where they do not fit.
std::optional<Shape> broadcast_shape(const Shape& a, const Shape& b);

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
T operator+(const T& a, double b) {
  return add(a, full_like(a, b));
}
template <TensorLike T>
T operator+(double a, const T& b) {
  return add(full_like(b, a), b);
}
template <TensorLike T>
T operator-(const T& a, const T& b) {
  return sub(a, b);
}
template <TensorLike T>
T operator-(const T& a, double b) {
  return sub(a, full_like(a, b));
}
template <TensorLike T>
T operator-(double a, const T& b) {
  return sub(full_like(b, a), b);
}
template <TensorLike T>
T operator*(const T& a, const T& b) {
  return mul(a, b);
}
template <TensorLike T>
T operator*(const T& a, double b) {
  return mul(a, full_like(a, b));
}
template <TensorLike T>
T operator*(double a, const T& b) {
  return mul(full_like(b, a), b);
}
template <TensorLike T>
T operator/(const T& a, const T& b) {
  return div(a, b);
}
template <TensorLike T>
T operator/(const T& a, double b) {
  return div(a, full_like(a, b));
}
template <TensorLike T>
T operator/(double a, const T& b) {
  return div(full_like(b, a), b);
}
template <TensorLike T>
T operator-(const T& x) {
  return neg(x);
}

/// Where `condition` holds a, else b; broadcast as numpy does.
template <TensorLike T>
T select(const T& condition, const T& a, const T& b) {
  std::optional<Shape> shape = broadcast_shape(a.type().shape, b.type().shape);
  if (shape) shape = broadcast_shape(condition.type().shape, *shape);
  if (!shape) return append_to(a, Op::select, {condition, a, b});  // says what is wrong
  return append_to(
      a, Op::select,
      {broadcast_to(condition, *shape), broadcast_to(a, *shape), broadcast_to(b, *shape)});
}

/// Dim i of the result is dim dims[i] of x.
template <TensorLike T>
T transpose(const T& x, const Dims& dims) {
  return append_to(x, Op::transpose, {x}, {.dims = dims});
}
template <TensorLike T>
T reshape(const T& x, const Shape& shape) {
  return x.type().shape == shape ? x : append_to(x, Op::reshape, {x}, {}, {x.type().dtype, shape});
}
template <TensorLike T>
T slice(const T& x, const Dims& begin, const Dims& end, const Dims& stride) {
  return append_to(x, Op::slice, {x}, {.begin = begin, .end = end, .stride = stride});
}
template <TensorLike T>
T slice(const T& x, const Dims& begin, const Dims& end) {
  return slice(x, begin, end, Dims::filled(begin.size(), 1));
}
/// `stride` - 1 elements come between those of x.
template <TensorLike T>
T pad(const T& x, const Dims& low, const Dims& high, const Dims& stride, double number) {
  return append_to(x, Op::pad, {x},
                   {.begin = low, .end = high, .stride = stride, .number = number});
}
template <TensorLike T>
T pad(const T& x, const Dims& low, const Dims& high, double number = 0) {
  return pad(x, low, high, Dims::filled(low.size(), 1), number);
}
/// Requires a part.
template <TensorLike T>
T concatenate(const std::vector<T>& parts, std::int64_t dim) {
  return append(parts.front(), Op::concatenate, std::span<const T>(parts),
                Attributes{.dims = {dim}});
}
template <TensorLike T>
T reverse(const T& x, const Dims& dims) {
  return append_to(x, Op::reverse, {x}, {.dims = dims});
}

template <TensorLike T>
T reduce_sum(const T& x, const Dims& dims) {
  return append_to(x, Op::reduce_sum, {x}, {.dims = dims});
}
template <TensorLike T>
T reduce_max(const T& x, const Dims& dims) {
  return append_to(x, Op::reduce_max, {x}, {.dims = dims});
}
template <TensorLike T>
T reduce_min(const T& x, const Dims& dims) {
  return append_to(x, Op::reduce_min, {x}, {.dims = dims});
}
template <TensorLike T>
T argmax(const T& x, std::int64_t dim) {
  return append_to(x, Op::argmax, {x}, {.dims = {dim}});
}
template <TensorLike T>
T cumsum(const T& x, std::int64_t dim) {
  return append_to(x, Op::cumsum, {x}, {.dims = {dim}});
}

/// "btd,df->btf"; see einsum.h.
template <TensorLike T>
T einsum(std::string_view equation, const T& a, const T& b) {
  return append_to(a, Op::dot_general, {a, b}, {.text = std::string(equation)});
}

template <TensorLike T>
T take(const T& x, const T& ids, std::int64_t dim) {
  return append_to(x, Op::take, {x, ids}, {.dims = {dim}});
}
template <TensorLike T>
T scatter_add(const T& ids, const T& updates, std::int64_t dim, std::int64_t extent) {
  return append_to(ids, Op::scatter_add, {ids, updates}, {.dims = {dim, extent}});
}
template <TensorLike T>
T take_along(const T& x, const T& ids, std::int64_t dim) {
  return append_to(x, Op::take_along, {x, ids}, {.dims = {dim}});
}
template <TensorLike T>
T scatter_add_along(const T& ids, const T& updates, std::int64_t dim, std::int64_t extent) {
  return append_to(ids, Op::scatter_add_along, {ids, updates}, {.dims = {dim, extent}});
}
/// `starts`: an integer scalar for each dim.
template <TensorLike T>
T dynamic_slice(const T& x, const std::vector<T>& starts, const Shape& shape) {
  std::vector<T> operands{x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return append(x, Op::dynamic_slice, std::span<const T>(operands), Attributes{.end = shape});
}
template <TensorLike T>
T dynamic_update_slice(const T& x, const T& update, const std::vector<T>& starts) {
  std::vector<T> operands{x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return append(x, Op::dynamic_update_slice, std::span<const T>(operands));
}
template <TensorLike T>
T argsort(const T& x, std::int64_t dim, bool descending = false) {
  return append_to(x, Op::argsort, {x}, {.dims = {dim}, .number = descending ? 1.0 : 0.0});
}
/// The elements along a dim in order, and the k largest, each with their indices (i32). They are
/// take_along of argsort, so that they have gradients.
template <TensorLike T>
struct Sorted {
  T values, indices;
};
template <TensorLike T>
Sorted<T> sort(const T& x, std::int64_t dim, bool descending = false) {
  const T order = argsort(x, dim, descending);
  return {take_along(x, order, dim), order};
}
/// Throws invalid_argument where the dim has fewer than k elements.
template <TensorLike T>
Sorted<T> top_k(const T& x, std::int64_t dim, std::int64_t k) {
  const T order = argsort(x, dim, true);
  Dims end = order.type().shape;
  end[static_cast<std::size_t>(dim)] = k;
  const T first = slice(order, Dims::filled(end.size(), 0), end);
  return {take_along(x, first, dim), first};
}

}  // namespace shardwise
