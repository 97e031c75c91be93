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

// The other ops as functions: reductions, products, ops by index. Together with the included ones
// (leaves and layout in build.h), these are all ops.

/// x, but no less than `least` and no more than `most`, which are numbers or tensors that broadcast
/// to x's shape. The gradient goes to the operand that the result equals; at a tie it does not go
/// to x, as in jax.lax.clamp.
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

/// The last dim of a tensor. Requires a dim.
template <TensorLike T>
std::int64_t last_dim(const T& x) {
  return static_cast<std::int64_t>(x.type().shape.size()) - 1;
}

// Dims of these functions may be counted from the end: -1 is the last.
template <TensorLike T>
T reduce_sum(const T& x, const Dims& dims) {
  return append_to(x, Op::reduce_sum, {x}, DimsAttributes{dims_in_order(x, dims)});
}
template <TensorLike T>
T reduce_max(const T& x, const Dims& dims) {
  return append_to(x, Op::reduce_max, {x}, DimsAttributes{dims_in_order(x, dims)});
}
template <TensorLike T>
T reduce_min(const T& x, const Dims& dims) {
  return append_to(x, Op::reduce_min, {x}, DimsAttributes{dims_in_order(x, dims)});
}
template <TensorLike T>
T reduce_prod(const T& x, const Dims& dims) {
  return append_to(x, Op::reduce_prod, {x}, DimsAttributes{dims_in_order(x, dims)});
}

/// For each row along `dim` of x, the first index where it equals y's element, i32; 2147483647 if
/// no element does. y has x's shape without the dim. A NaN equals any other, and -0 equals 0.
template <TensorLike T>
T index_of(const T& x, const T& y, std::int64_t dim) {
  return append_to(x, Op::index_of, {x, y}, DimAttributes{dim_of(x, dim)});
}
template <TensorLike T>
void need_element_along(std::string_view operation, const T& x, std::int64_t dim) {
  const std::int64_t along = dim_of(x, dim);
  if (along < 0 || along > last_dim(x) || x.type().shape[as_size(along)] == 0) {
    refuse_all(operation, {x},
               "found dim " + std::to_string(dim) + ", needed one of its dims that has an element");
  }
}
/// The index of the first largest or least element along a dim, i32. NaN counts as both. Throws
/// invalid_argument if the dim does not exist or is empty.
template <TensorLike T>
T argmax(const T& x, std::int64_t dim) {
  need_element_along("argmax", x, dim);
  return index_of(x, reduce_max(x, {dim}), dim);
}
template <TensorLike T>
T argmin(const T& x, std::int64_t dim) {
  need_element_along("argmin", x, dim);
  return index_of(x, reduce_min(x, {dim}), dim);
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

/// Over all elements, to a scalar; or over one dim or several.
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

/// The result of a reduction over `dims` of a tensor of `shape`, repeated along these dims.
template <TensorLike T>
T spread(const T& reduced, const Shape& shape, const Dims& dims) {
  Dims kept;
  for (const std::int64_t dim : all_dims(shape.size())) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) kept.push_back(dim);
  }
  return broadcast(reduced, shape, kept);
}

/// Over dims, which are removed, or over all elements, to a scalar.
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
template <TensorLike T>
T mean(const T& x) {
  return mean(x, all_dims(x.type().shape.size()));
}

/// The mean square of the distance from the mean, over `dims`, which are removed.
template <TensorLike T>
T variance(const T& x, const Dims& given) {
  const Dims dims = dims_of(x, given);
  const Shape shape = x.type().shape;  // the graph grows, its nodes move
  const T centred = x - spread(mean(x, dims), shape, dims);
  return mean(centred * centred, dims);
}
template <TensorLike T, std::integral Dim>
T variance(const T& x, Dim dim) {
  return variance(x, Dims{static_cast<std::int64_t>(dim)});
}

/// "btd,df->btf": see Equation. The result is summed in its dtype, which may be wider than the
/// operands': f32 for bf16, i32 for i8.
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

template <TensorLike T>
T take(const T& x, const T& ids, std::int64_t dim) {
  return append_to(x, Op::take, {x, ids}, DimAttributes{dim_of(x, dim)});
}
/// `ids`, with those outside the dim replaced by the nearest inside.
template <TensorLike T>
T nearest_ids(const T& x, const T& ids, std::int64_t dim) {
  const std::int64_t along = dim_of(x, dim);
  // If the dim does not exist, the op that takes the ids refuses it.
  if (along < 0 || along > last_dim(x)) return ids;
  return clamp(0, ids, x.type().shape[as_size(along)] - 1);
}
/// As take(), but ids outside the table give the nearest row, or `number`.
template <TensorLike T>
T take_clipped(const T& x, const T& ids, std::int64_t dim) {
  return take(x, nearest_ids(x, ids, dim), dim);
}
template <TensorLike T>
T take_or(const T& x, const T& ids, std::int64_t dim, Scalar number) {
  const T inside = nearest_ids(x, ids, dim);
  const T taken = take(x, inside, dim);
  Dims dims = Dims::filled(ids.type().shape.size(), dim_of(x, dim));
  for (std::size_t i = 0; i < dims.size(); ++i) dims[i] += static_cast<std::int64_t>(i);
  return where(broadcast(eq(inside, ids), taken.type().shape, dims), taken, number);
}
/// x, with the rows along a dim that ids name combined with `updates`, which has the shape of
/// take(x, ids, dim). In the order of the ids.
template <TensorLike T>
T scatter(const T& x, const T& ids, const T& updates, std::int64_t dim,
          Combination combination = Combination::set, OutOfRange mode = OutOfRange::error) {
  return append_to(x, Op::scatter, {x, ids, updates},
                   ScatterIntoAttributes{dim_of(x, dim), combination, mode});
}
template <TensorLike T>
T scatter_add(const T& ids, const T& updates, std::int64_t dim, std::int64_t extent) {
  return append_to(ids, Op::scatter_add, {ids, updates}, ScatterAttributes{dim, extent});
}
template <TensorLike T>
T take_along(const T& x, const T& ids, std::int64_t dim) {
  return append_to(x, Op::take_along, {x, ids}, DimAttributes{dim_of(x, dim)});
}
/// As take_clipped and take_or.
template <TensorLike T>
T take_along_clipped(const T& x, const T& ids, std::int64_t dim) {
  return take_along(x, nearest_ids(x, ids, dim), dim);
}
template <TensorLike T>
T take_along_or(const T& x, const T& ids, std::int64_t dim, Scalar number) {
  const T inside = nearest_ids(x, ids, dim);
  return where(eq(inside, ids), take_along(x, inside, dim), number);
}
template <TensorLike T>
T scatter_add_along(const T& ids, const T& updates, std::int64_t dim, std::int64_t extent) {
  return append_to(ids, Op::scatter_add_along, {ids, updates},
                   ScatterAttributes{dim_of(ids, dim), extent});
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
  return append_to(x, Op::argsort, {x}, SortAttributes{dim_of(x, dim), descending});
}
/// The elements along a dim in order, and the k largest, each with their indices (i32). They use
/// take_along of argsort, so they have gradients.
template <TensorLike T>
struct Sorted {
  T values, indices;
};
template <TensorLike T>
Sorted<T> sort(const T& x, std::int64_t dim, bool descending = false) {
  const T order = argsort(x, dim, descending);
  return {take_along(x, order, dim), order};
}
/// Throws invalid_argument if the dim does not exist, k is negative or the dim has fewer elements.
template <TensorLike T>
Sorted<T> top_k(const T& x, std::int64_t dim, std::int64_t k) {
  Dims end = x.type().shape;
  const std::int64_t along = dim_of(x, dim), rank = last_dim(x) + 1;
  if (along < 0 || along >= rank || k < 0 || k > end[as_size(along)]) {
    refuse_all("top_k", {x},
               "found k " + std::to_string(k) + " and dim " + std::to_string(dim) +
                   ", needed one of its dims and at most as many as that has elements");
  }
  end[as_size(along)] = k;
  const T order = argsort(x, along, true);
  const T first = slice(order, Dims::filled(end.size(), 0), end);
  return {take_along(x, first, along), first};
}

}  // namespace shardwise
