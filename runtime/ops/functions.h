#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "shardwise/runtime/ops/elementwise_functions.h"
#include "shardwise/shard/error.h"

namespace shardwise {

// The other ops as functions: reductions, products, what goes by index. With those that are
// included (leaves and layout in build.h), all there are.

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
    if (!shape) return select(condition, a, b);  // says what is wrong
    return select(broadcast_to(condition, *shape), broadcast_to(a, *shape),
                  broadcast_to(b, *shape));
  }
}

/// x, but no less than `least` and no more than `most`, which are numbers or tensors that broadcast
/// to x's shape. The gradient goes to what the result is; at a tie it is not x's, as in
/// jax.lax.clamp.
template <TensorLike T, OperandWith<T> Least, OperandWith<T> Most>
T clamp(const Least& least, const T& x, const Most& most) {
  const auto tensor = [&x](const auto& bound) {
    if constexpr (TensorLike<std::remove_cvref_t<decltype(bound)>>) {
      return bound;
    } else {
      return full_like(x, bound);
    }
  };
  const T low = tensor(least), high = tensor(most);
  return where(le(x, low), low, where(ge(x, high), high, x));
}

// Dims of these may be counted from the end: -1 is the last.
template <TensorLike T>
T reduce_sum(const T& x, const Dims& dims) {
  return append_to(x, Op::reduce_sum, {x}, DimsAttributes{dims_of(x, dims)});
}
template <TensorLike T>
T reduce_max(const T& x, const Dims& dims) {
  return append_to(x, Op::reduce_max, {x}, DimsAttributes{dims_of(x, dims)});
}
template <TensorLike T>
T reduce_min(const T& x, const Dims& dims) {
  return append_to(x, Op::reduce_min, {x}, DimsAttributes{dims_of(x, dims)});
}
template <TensorLike T>
T argmax(const T& x, std::int64_t dim) {
  return append_to(x, Op::argmax, {x}, DimAttributes{dim_of(x, dim)});
}
template <TensorLike T>
T argmin(const T& x, std::int64_t dim) {
  return append_to(x, Op::argmin, {x}, DimAttributes{dim_of(x, dim)});
}
template <TensorLike T>
T reduce_prod(const T& x, const Dims& dims) {
  return append_to(x, Op::reduce_prod, {x}, DimsAttributes{dims_of(x, dims)});
}

/// Along a dim, from its first element on, or in reverse from its last.
template <TensorLike T>
T cumulative(Op op, const T& x, std::int64_t dim, bool reverse) {
  return append_to(x, op, {x}, CumulativeAttributes{dim_of(x, dim), reverse});
}
template <TensorLike T>
T cumsum(const T& x, std::int64_t dim, bool reverse = false) {
  return cumulative(Op::cumsum, x, dim, reverse);
}
template <TensorLike T>
T cumprod(const T& x, std::int64_t dim, bool reverse = false) {
  return cumulative(Op::cumprod, x, dim, reverse);
}
template <TensorLike T>
T cummax(const T& x, std::int64_t dim, bool reverse = false) {
  return cumulative(Op::cummax, x, dim, reverse);
}
template <TensorLike T>
T cummin(const T& x, std::int64_t dim, bool reverse = false) {
  return cumulative(Op::cummin, x, dim, reverse);
}
template <TensorLike T>
T cumlogsumexp(const T& x, std::int64_t dim, bool reverse = false) {
  return cumulative(Op::cumlogsumexp, x, dim, reverse);
}

/// Of all elements, a scalar; or over one dim or several.
template <TensorLike T>
T sum(const T& x) {
  return reduce_sum(x, all_dims(x.type().shape.size()));
}
template <TensorLike T>
T sum(const T& x, const Dims& dims) {
  return reduce_sum(x, dims);
}
template <TensorLike T, std::integral Dim>
T sum(const T& x, Dim dim) {
  return reduce_sum(x, {static_cast<std::int64_t>(dim)});
}

/// The last dim of a tensor. Requires a dim.
template <TensorLike T>
std::int64_t last_dim(const T& x) {
  return static_cast<std::int64_t>(x.type().shape.size()) - 1;
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
  const T sums = reduce_sum(x, dims);  // throws if there is no such dim
  double count = 1;
  for (const std::int64_t dim : dims_of(x, dims)) {
    count *= static_cast<double>(x.type().shape[as_size(dim)]);
  }
  return sums / count;
}
template <TensorLike T, std::integral Dim>
T mean(const T& x, Dim dim) {
  return mean(x, {static_cast<std::int64_t>(dim)});
}

/// Of all elements: a scalar.
template <TensorLike T>
T mean(const T& x) {
  return mean(x, all_dims(x.type().shape.size()));
}

/// The mean square of the distance from the mean, over `dims`, which go.
template <TensorLike T>
T variance(const T& x, const Dims& given) {
  const Dims dims = dims_of(x, given);
  const Shape shape = x.type().shape;  // the graph grows, its nodes move
  const T centred = x - spread(mean(x, dims), shape, dims);
  return mean(centred * centred, dims);
}

/// "btd,df->btf": see Equation. The result may be of a wider dtype than the operands, in which it
/// is summed up: f32 of bf16, i32 of i8.
template <TensorLike T>
T einsum(const Equation& equation, const T& a, const T& b, std::optional<DType> result = {}) {
  return append_to(a, Op::dot_general, {a, b}, DotAttributes{equation, result});
}
template <TensorLike T>
T einsum(std::string_view equation, const T& a, const T& b, std::optional<DType> result = {}) {
  std::optional<Equation> parsed;
  std::string problem;
  try {
    parsed = Equation::parse(equation);
  } catch (const Error& error) {
    problem = error.what();
  }
  if (!parsed) refuse_all(name(Op::dot_general), {a, b}, problem);
  return einsum(*parsed, a, b, result);
}

/// jax.lax.conv_general_dilated.
template <TensorLike T>
T convolution(const T& x, const T& kernel, ConvolutionAttributes attributes) {
  return append_to(x, Op::convolution, {x, kernel}, std::move(attributes));
}

/// jax.lax.reduce_window with the sum (zero if a window holds nothing) or the maximum (the least
/// number of the dtype, then).
template <TensorLike T>
T reduce_window_sum(const T& x, WindowAttributes attributes) {
  return append_to(x, Op::reduce_window_sum, {x}, std::move(attributes));
}
template <TensorLike T>
T reduce_window_max(const T& x, WindowAttributes attributes) {
  return append_to(x, Op::reduce_window_max, {x}, std::move(attributes));
}
/// The gradient of reduce_window_max: in the shape of x the sum of the elements of `source`, one
/// for each window, each at the first largest of its window (the first NaN, if there is one).
template <TensorLike T>
T select_and_scatter_add(const T& x, const T& source, WindowAttributes attributes) {
  return append_to(x, Op::select_and_scatter_add, {x, source}, std::move(attributes));
}

template <TensorLike T>
T take(const T& x, const T& ids, std::int64_t dim) {
  return append_to(x, Op::take, {x, ids}, DimAttributes{dim});
}
/// The same, of ids outside the table those nearest to them, or `number`.
template <TensorLike T>
T take_clipped(const T& x, const T& ids, std::int64_t dim) {
  return take(x, clamp(0, ids, x.type().shape[as_size(dim)] - 1), dim);
}
template <TensorLike T>
T take_or(const T& x, const T& ids, std::int64_t dim, Scalar number) {
  const T inside = clamp(0, ids, x.type().shape[as_size(dim)] - 1);
  const T taken = take(x, inside, dim);
  Dims dims = Dims::filled(ids.type().shape.size(), dim);
  for (std::size_t i = 0; i < dims.size(); ++i) dims[i] += static_cast<std::int64_t>(i);
  return where(broadcast(eq(inside, ids), taken.type().shape, dims), taken, number);
}
/// x, of which the rows along a dim that ids name are combined with `updates`, which has the shape
/// of take(x, ids, dim). In the order of the ids.
template <TensorLike T>
T scatter(const T& x, const T& ids, const T& updates, std::int64_t dim,
          Combination combination = Combination::set, OutOfRange mode = OutOfRange::error) {
  return append_to(x, Op::scatter, {x, ids, updates},
                   ScatterIntoAttributes{dim, combination, mode});
}
template <TensorLike T>
T scatter_add(const T& ids, const T& updates, std::int64_t dim, std::int64_t extent) {
  return append_to(ids, Op::scatter_add, {ids, updates}, ScatterAttributes{dim, extent});
}
template <TensorLike T>
T take_along(const T& x, const T& ids, std::int64_t dim) {
  return append_to(x, Op::take_along, {x, ids}, DimAttributes{dim});
}
/// As take_clipped and take_or.
template <TensorLike T>
T take_along_clipped(const T& x, const T& ids, std::int64_t dim) {
  return take_along(x, clamp(0, ids, x.type().shape[as_size(dim)] - 1), dim);
}
template <TensorLike T>
T take_along_or(const T& x, const T& ids, std::int64_t dim, Scalar number) {
  const T inside = clamp(0, ids, x.type().shape[as_size(dim)] - 1);
  return where(eq(inside, ids), take_along(x, inside, dim), number);
}
template <TensorLike T>
T scatter_add_along(const T& ids, const T& updates, std::int64_t dim, std::int64_t extent) {
  return append_to(ids, Op::scatter_add_along, {ids, updates}, ScatterAttributes{dim, extent});
}
/// `starts`: an integer scalar for each dim.
template <TensorLike T>
T dynamic_slice(const T& x, const std::vector<T>& starts, const Shape& shape) {
  std::vector<T> operands{x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return append(x, Op::dynamic_slice, std::span<const T>(operands), ShapeAttributes{shape});
}
template <TensorLike T>
T dynamic_update_slice(const T& x, const T& update, const std::vector<T>& starts) {
  std::vector<T> operands{x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return append(x, Op::dynamic_update_slice, std::span<const T>(operands));
}
template <TensorLike T>
T argsort(const T& x, std::int64_t dim, bool descending = false) {
  return append_to(x, Op::argsort, {x}, SortAttributes{dim, descending});
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
/// Throws invalid_argument if there is no such dim, k is negative or the dim has fewer elements.
template <TensorLike T>
Sorted<T> top_k(const T& x, std::int64_t dim, std::int64_t k) {
  Dims end = x.type().shape;
  if (dim < 0 || dim >= static_cast<std::int64_t>(end.size()) || k < 0 || k > end[as_size(dim)]) {
    refuse_all("top_k", {x},
               "found k " + std::to_string(k) + " and dim " + std::to_string(dim) +
                   ", needed one of its dims and at most as many as that has elements");
  }
  end[as_size(dim)] = k;
  const T order = argsort(x, dim, true);
  const T first = slice(order, Dims::filled(end.size(), 0), end);
  return {take_along(x, first, dim), first};
}

}  // namespace shardwise
