#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/ops/functions.h"
#include "shardwise/shard/error.h"

namespace shardwise {

struct Conv2dOptions {
  std::int64_t stride = 1, padding = 0, dilation = 1;  ///< of both spatial dims alike
  std::int64_t groups = 1;
};

namespace detail {

/// Throws invalid_argument if a window is larger than its padded dim. The op refuses numbers that
/// are impossible for a window.
template <TensorLike T>
void need_room(std::string_view operation, std::initializer_list<T> operands, std::int64_t dim,
               std::int64_t window, std::int64_t low, std::int64_t high, std::int64_t dilation) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  const std::int64_t extent = operands.begin()->type().shape[as_size(dim)];
  if (window < 1 || dilation < 1 || std::max({extent, low, high}) > kMost) return;
  const std::int64_t room = extent + low + high;
  if (room > 0 && (window - 1) <= (room - 1) / dilation) return;
  refuse_all(operation, operands,
             "found a window of " + std::to_string(window) + " elements, " +
                 std::to_string(dilation) + " apart, along dim " + std::to_string(dim) + " of " +
                 std::to_string(extent) + " with padding " + std::to_string(low) + " and " +
                 std::to_string(high) + ", needed room for one");
}

}  // namespace detail

/// As torch's: x [images, features, height, width], kernel [features of the result, features of a
/// group, height, width]. convolution() handles everything else, also windows that do not fit.
/// Throws invalid_argument if the kernel is larger than the images.
template <TensorLike T>
T conv2d(const T& x, const T& kernel, const Conv2dOptions& options = {}) {
  const Dims order{0, 1, 2, 3}, stride{options.stride, options.stride};
  const Dims padding{options.padding, options.padding};
  if (x.type().shape.size() == 4 && kernel.type().shape.size() == 4) {
    for (const std::int64_t dim : {2, 3}) {
      detail::need_room<T>("conv2d", {x, kernel}, dim, kernel.type().shape[as_size(dim)],
                           options.padding, options.padding, options.dilation);
    }
  }
  return convolution(x, kernel,
                     ConvolutionAttributes{.lhs = order,
                                           .rhs = order,
                                           .out = order,
                                           .stride = stride,
                                           .low = padding,
                                           .high = padding,
                                           .lhs_dilation = {1, 1},
                                           .rhs_dilation = {options.dilation, options.dilation},
                                           .feature_groups = options.groups});
}

/// Lists go by dim of the window. An empty list means adjacent windows, no padding, no dilation.
struct PoolOptions {
  Dims stride = {}, low = {}, high = {}, dilation = {};

  /// For avg_pool: a mean divides by all elements of its window, including padding; else by those
  /// of x.
  bool count_include_pad = true;
};

namespace detail {

/// A window of these extents over `dims` of a tensor of a rank.
inline WindowAttributes pool_windows(std::size_t rank, const Dims& dims, const Dims& window,
                                     const PoolOptions& options) {
  const Dims ones = Dims::filled(rank, 1), zeros = Dims::filled(rank, 0);
  WindowAttributes a{ones, ones, zeros, zeros, ones};
  const auto put = [&](Dims& all, const Dims& given) {
    for (std::size_t i = 0; i < given.size(); ++i) all[as_size(dims[i])] = given[i];
  };
  put(a.window, window);
  put(a.stride, options.stride.empty() ? window : options.stride);
  put(a.low, options.low);
  put(a.high, options.high);
  put(a.dilation, options.dilation);
  return a;
}

/// Throws invalid_argument if a list is neither empty nor one number per dim, and if a window is
/// larger than its padded dim.
template <TensorLike T>
Dims pool_dims(const T& x, const Dims& given, const Dims& window, const PoolOptions& options) {
  const Dims dims = dims_of(x, given);
  const auto rank = static_cast<std::int64_t>(x.type().shape.size());
  bool fits = window.size() == dims.size();
  for (const std::int64_t dim : dims) fits = fits && dim >= 0 && dim < rank;
  for (const Dims* list : {&options.stride, &options.low, &options.high, &options.dilation}) {
    fits = fits && (list->empty() || list->size() == dims.size());
  }
  if (!fits) {
    refuse_all("pool", {x},
               "found a window " + to_string(window) + " over dims " + to_string(given) +
                   ", needed dims of the operand and one number for each in every list");
  }
  const auto at = [](const Dims& list, std::size_t i, std::int64_t usual) {
    return list.empty() ? usual : list[i];
  };
  for (std::size_t i = 0; i < dims.size(); ++i) {
    need_room<T>("pool", {x}, dims[i], window[i], at(options.low, i, 0), at(options.high, i, 0),
                 at(options.dilation, i, 1));
  }
  return dims;
}

}  // namespace detail

/// The maximum of each window over `dims`, which may be counted from the end. Padding is less than
/// any number.
///
///   max_pool(x, {2, 3}, {3, 3}, {.stride = {2, 2}, .low = {1, 1}, .high = {1, 1}})
template <TensorLike T>
T max_pool(const T& x, const Dims& dims, const Dims& window, const PoolOptions& options = {}) {
  const Dims over = detail::pool_dims(x, dims, window, options);
  return reduce_window_max(x, detail::pool_windows(x.type().shape.size(), over, window, options));
}

/// The mean of each window over `dims`. Over whole dims it is mean().
template <TensorLike T>
T avg_pool(const T& x, const Dims& dims, const Dims& window, const PoolOptions& options = {}) {
  const Dims over = detail::pool_dims(x, dims, window, options);
  const T sums =
      reduce_window_sum(x, detail::pool_windows(x.type().shape.size(), over, window, options));
  if (options.count_include_pad) return sums / num_elements(window);
  // The number of elements of x in a window is the same for all dims that are not pooled.
  Shape pooled;
  for (const std::int64_t dim : over) pooled.push_back(x.type().shape[as_size(dim)]);
  const T ones = constant(x, {x.type().dtype, pooled}, 1);
  const T counts = reduce_window_sum(
      ones, detail::pool_windows(pooled.size(), all_dims(pooled.size()), window, options));
  return sums / broadcast(counts, sums.type().shape, over);
}

enum class Interpolation {
  nearest,  ///< to the middle, as jax.image.resize and torch's "nearest-exact"
  corner,   ///< nearest to the corner, as torch's "nearest"
  linear,   ///< as torch's "linear", "bilinear", .. without align_corners and antialiasing
};

namespace detail {

/// The sources of an element of a resized dim: an element of the original dim, and a share of the
/// next one.
struct Sample {
  std::int64_t first;
  double of_next;
};
inline Sample sample(std::int64_t element, std::int64_t from, std::int64_t extent,
                     Interpolation how) {
  // In halves of elements: 2 * extent * (element + 1/2) * from / extent.
  const std::int64_t middle = (2 * element + 1) * from;
  if (how == Interpolation::nearest) return {middle / (2 * extent), 0};
  if (how == Interpolation::corner) return {element * from / extent, 0};
  const std::int64_t at = middle - extent + 2 * extent;  // one element on: not negative
  return {at / (2 * extent) - 1,
          static_cast<double>(at % (2 * extent)) / static_cast<double>(2 * extent)};
}

/// The elements first, first + step, .. of dim d; one of them may be just outside: it is zero.
template <TensorLike T>
T every(const T& x, std::size_t d, std::int64_t first, std::int64_t count, std::int64_t step) {
  Dims end = x.type().shape;
  const Dims none = Dims::filled(end.size(), 0);
  Dims low = none, high = none, begin = none, stride = Dims::filled(end.size(), 1);
  const std::int64_t last = first + (count - 1) * step;
  low[d] = first < 0 ? 1 : 0;
  high[d] = last == x.type().shape[d] ? 1 : 0;
  begin[d] = first + low[d];
  end[d] = last + low[d] + 1;
  stride[d] = step;
  return slice(low[d] + high[d] == 0 ? x : pad(x, low, high, 0), begin, end, stride);
}

/// Resizes one dim. Elements at equal distances, with the same place between elements of x, are a
/// slice of x with strides.
template <TensorLike T>
T resize_dim(const T& x, std::size_t d, std::int64_t extent, Interpolation how) {
  const std::int64_t from = x.type().shape[d];
  const auto dim = static_cast<std::int64_t>(d);
  const std::int64_t count = std::gcd(from, extent), phases = extent / count;
  const std::int64_t step = from / count;
  std::vector<T> parts;
  for (std::int64_t phase = 0; phase < phases; ++phase) {
    const Sample at = sample(phase, from, extent, how);
    const T one = every(x, d, at.first, count, step);
    if (at.of_next == 0) {
      parts.push_back(one);
      continue;
    }
    const T next = every(x, d, at.first + 1, count, step);
    T part = one * (1 - at.of_next) + next * at.of_next;
    // Outside the middles of the first and the last element the result is these elements.
    const T place = iota(x, {DType::i32, part.type().shape}, dim);
    if (at.first < 0) part = select(eq(place, 0), next, part);
    const bool is_past = at.first + (count - 1) * step + 1 == from;
    if (is_past) part = select(eq(place, count - 1), one, part);
    parts.push_back(part);
  }
  if (phases == 1) return parts[0];
  // Interleaves the slices, one of each in turn.
  Shape column, whole = x.type().shape;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    column.push_back(i == d ? count : whole[i]);
    if (i == d) column.push_back(1);
  }
  for (T& part : parts) part = reshape(part, column);
  whole[d] = extent;
  return reshape(concatenate(parts, dim + 1), whole);
}

}  // namespace detail

/// Resizes `dims` to these extents; a dim that is cut exchanges halos. A dim takes extent /
/// gcd(extent, its old extent) slices: 2 if it becomes twice as large. Throws invalid_argument if
/// the dim does not exist or is empty.
///
///   resize(x, {2, 3}, {64, 64}, Interpolation::linear)
template <TensorLike T>
T resize(const T& x, const Dims& dims, const Dims& extents, Interpolation how) {
  const Dims over = dims_of(x, dims);
  const Shape shape = x.type().shape;
  bool fits = dims.size() == extents.size();
  for (std::size_t i = 0; fits && i < dims.size(); ++i) {
    fits = over[i] >= 0 && as_size(over[i]) < shape.size() && shape[as_size(over[i])] > 0 &&
           extents[i] > 0;
  }
  if (!fits) {
    refuse_all("resize", {x},
               "found dims " + to_string(dims) + " to be of " + to_string(extents) +
                   ", needed dims of the operand that are not empty, and for each an extent of at "
                   "least 1");
  }
  T resized = x;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::size_t dim = as_size(over[i]);
    if (shape[dim] != extents[i]) resized = detail::resize_dim(resized, dim, extents[i], how);
  }
  return resized;
}

// Other names that people try; each comment has the code to write.
void conv(const TensorLike auto&, const auto&...) = delete;        // conv2d(x, kernel, options)
void max_pool2d(const TensorLike auto&, const auto&...) = delete;  // max_pool(x, dims, window)
void avg_pool2d(const TensorLike auto&, const auto&...) = delete;  // avg_pool(x, dims, window)
void global_avg_pool(const TensorLike auto&, const auto&...) = delete;  // mean(x, {2, 3})
void interpolate(const TensorLike auto&, const auto&...) = delete;  // resize(x, dims, extents, how)

}  // namespace shardwise
