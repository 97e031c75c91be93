#include "shardwise/runtime/kernels/detail/reduce_window.h"

#include <algorithm>
#include <cassert>
#include <concepts>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "shardwise/runtime/kernels/detail/element_type.h"
#include "shardwise/runtime/kernels/detail/scratch.h"
#include "shardwise/runtime/program/detail/extremes.h"

namespace shardwise {
namespace {

/// Rounded down, for any sign.
std::int64_t floor_of(std::int64_t a, std::int64_t positive) {
  return a >= 0 ? a / positive : -((-a - 1) / positive) - 1;
}

/// Begin and end of the places, among those of `box`, whose window has an element `tap` in
/// [begin, end) of the operand.
std::pair<std::int64_t, std::int64_t> places_of(const WindowAttributes& a, std::size_t dim,
                                                std::int64_t tap, const Box& in, const Box& out) {
  const std::int64_t back = a.low[dim] - tap * a.dilation[dim], stride = a.stride[dim];
  return {std::max(out.begin(dim), floor_of(in.begin(dim) + back - 1, stride) + 1),
          std::min(out.end(dim), floor_of(in.end(dim) - 1 + back, stride) + 1)};
}

/// Combines windows along one dim: `out` has the shape of `in` except in that dim.
template <class T, class Combine>
void reduce_along(const WindowAttributes& a, std::size_t dim, const Box& in_box, const T* in,
                  const Box& out_box, T* out, T none, const Combine& combine) {
  std::int64_t outer = 1, inner = 1;
  for (std::size_t d = 0; d < in_box.rank(); ++d) {
    if (d != dim) (d < dim ? outer : inner) *= in_box.extent(d);
  }
  std::fill_n(out, out_box.num_elements(), none);
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t tap = 0; tap < a.window[dim]; ++tap) {
      const auto [begin, end] = places_of(a, dim, tap, in_box, out_box);
      const std::int64_t shift = tap * a.dilation[dim] - a.low[dim] - in_box.begin(dim);
      T* to = out + (begin - out_box.begin(dim)) * inner;
      for (std::int64_t place = begin; place < end; ++place) {
        const T* const from = in + (place * a.stride[dim] + shift) * inner;
        for (std::int64_t i = 0; i < inner; ++i, ++to) *to = combine(*to, from[i]);
      }
    }
    in += in_box.extent(dim) * inner;
    out += out_box.extent(dim) * inner;
  }
}

/// Sums and maxima of windows are computed dim by dim: fewer operations than elements of a window.
template <class T, class Combine>
void reduce_all(const WindowAttributes& a, const ConstShardView& in, const ShardView& out, T none,
                const Combine& combine) {
  const T* from = reinterpret_cast<const T*>(in.data);
  T* const result = reinterpret_cast<T*>(out.data);
  std::vector<std::size_t> dims;
  Box box = in.box;
  std::int64_t largest = 0;  // of the tensors between the first pass and the last
  for (std::size_t dim = 0; dim < in.box.rank(); ++dim) {
    const bool is_same = a.window[dim] == 1 && a.stride[dim] == 1 && a.low[dim] == 0 &&
                         in.box.begin(dim) == out.box.begin(dim) &&
                         in.box.end(dim) == out.box.end(dim);
    if (is_same) continue;
    dims.push_back(dim);
    box.set(dim, out.box.begin(dim), out.box.end(dim));
    largest = std::max(largest, box.num_elements());
  }
  if (dims.empty()) {
    std::transform(from, from + out.box.num_elements(), result,
                   [&](T element) { return combine(none, element); });
    return;
  }
  const std::size_t bytes = dims.size() == 1 ? 0 : as_size(largest) * sizeof(T);
  const detail::Scratch first(bytes), second(bytes);
  box = in.box;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    Box next = box;
    next.set(dims[i], out.box.begin(dims[i]), out.box.end(dims[i]));
    T* const to = i + 1 == dims.size() ? result : (i % 2 == 0 ? first : second).template as<T>();
    reduce_along(a, dims[i], box, from, next, to, none, combine);
    box = next;
    from = to;
  }
}

/// The part of a window of x that is in the operand.
struct Tap {
  Index at;             ///< counted from the window's start
  std::int64_t offset;  ///< in x
};

template <class T>
class Scatterer {
 public:
  Scatterer(const WindowAttributes& a, const ConstShardView& x, const ShardView& out)
      : a_(a),
        x_(x),
        out_(out),
        x_steps_(row_major_strides(x.box.shape())),
        out_steps_(row_major_strides(out.box.shape())) {
    Box window;
    for (const std::int64_t extent : a.window) window.push_back(0, extent);
    for_each_index(window, [&](Index at) {
      std::int64_t offset = 0;
      for (std::size_t d = 0; d < at.size(); ++d) {
        at[d] *= a.dilation[d];
        offset += at[d] * x_steps_[d];
      }
      taps_.push_back({at, offset});
    });
  }

  void run(const ConstShardView& source) {
    const Dims steps = row_major_strides(source.box.shape());
    // The places whose windows have elements of out; x has all of these windows.
    Box places;
    for (std::size_t d = 0; d < source.box.rank(); ++d) {
      const std::int64_t begin = places_of(a_, d, a_.window[d] - 1, out_.box, source.box).first;
      const std::int64_t end = places_of(a_, d, 0, out_.box, source.box).second;
      places.push_back(begin, std::max(begin, end));
    }
    for_each_index(places, [&](const Index& place) {
      std::int64_t offset = 0;
      for (std::size_t d = 0; d < place.size(); ++d) {
        offset += (place[d] - source.box.begin(d)) * steps[d];
      }
      scatter(place, reinterpret_cast<const T*>(source.data)[offset]);
    });
  }

 private:
  void scatter(const Index& place, T value) {
    Index first = place;
    std::int64_t base = 0;
    bool is_inside = true;
    for (std::size_t d = 0; d < first.size(); ++d) {
      first[d] = place[d] * a_.stride[d] - a_.low[d];
      base += (first[d] - x_.box.begin(d)) * x_steps_[d];
      is_inside &= first[d] >= x_.box.begin(d) &&
                   first[d] + (a_.window[d] - 1) * a_.dilation[d] < x_.box.end(d);
    }
    const T* const elements = reinterpret_cast<const T*>(x_.data);
    const Tap* best = nullptr;
    T largest{};
    for (const Tap& tap : taps_) {
      if (!is_inside && !holds(x_.box, first, tap)) continue;
      const T element = elements[base + tap.offset];
      // NOLINTNEXTLINE(misc-redundant-expression): NaN is the largest
      const bool is_larger = element > largest || (element != element && largest == largest);
      if (best != nullptr && !is_larger) continue;
      best = &tap;
      largest = element;
    }
    if (best == nullptr || !holds(out_.box, first, *best)) return;
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < first.size(); ++d) {
      offset += (first[d] + best->at[d] - out_.box.begin(d)) * out_steps_[d];
    }
    T& sum = reinterpret_cast<T*>(out_.data)[offset];
    if constexpr (std::integral<T>) {
      using Number = std::make_unsigned_t<T>;
      sum = static_cast<T>(detail::add(static_cast<Number>(sum), static_cast<Number>(value)));
    } else {
      sum += value;
    }
  }

  static bool holds(const Box& box, const Index& first, const Tap& tap) {
    for (std::size_t d = 0; d < first.size(); ++d) {
      const std::int64_t at = first[d] + tap.at[d];
      if (at < box.begin(d) || at >= box.end(d)) return false;
    }
    return true;
  }

  const WindowAttributes& a_;
  const ConstShardView& x_;
  const ShardView& out_;
  const Dims x_steps_, out_steps_;
  std::vector<Tap> taps_;
};

template <class Function>
bool in_f32(const ConstShardView& in, const ShardView& out, const Function& function) {
  if (!detail::is_half(in.dtype)) return false;
  const detail::Widened wide(in);
  const detail::Unrounded result(out);
  function(wide.view(), result.view());
  result.round();
  return true;
}

}  // namespace

void reduce_window_sum(const WindowAttributes& a, const ConstShardView& in, const ShardView& out) {
  assert(in.dtype == out.dtype);
  if (out.box.empty()) return;
  if (in_f32(in, out, [&](const auto& x, const auto& y) { reduce_window_sum(a, x, y); })) return;
  detail::with_arithmetic_type(out.dtype, [&](auto zero) {
    reduce_all(a, in, out, zero, [](auto p, auto q) { return detail::add(p, q); });
  });
}

void reduce_window_max(const WindowAttributes& a, const ConstShardView& in, const ShardView& out) {
  assert(in.dtype == out.dtype);
  if (out.box.empty()) return;
  if (in_f32(in, out, [&](const auto& x, const auto& y) { reduce_window_max(a, x, y); })) return;
  detail::with_ordered_type(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    using Limits = std::numeric_limits<T>;
    constexpr T kLeast = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    reduce_all(a, in, out, kLeast, [](T p, T q) { return detail::larger(p, q); });
  });
}

void select_and_scatter_add(const WindowAttributes& a, const ConstShardView& x,
                            const ConstShardView& source, const ShardView& out) {
  assert(x.dtype == out.dtype && source.dtype == out.dtype);
  if (out.box.empty()) return;
  if (detail::is_half(out.dtype)) {
    const detail::Widened wide_x(x), wide_source(source);
    const detail::Unrounded result(out);
    select_and_scatter_add(a, wide_x.view(), wide_source.view(), result.view());
    return result.round();
  }
  std::memset(out.data, 0, num_bytes(out.box.shape(), size_bytes(out.dtype)));
  if (x.box.empty() || source.box.empty()) return;
  detail::with_ordered_type(out.dtype,
                            [&](auto zero) { Scatterer<decltype(zero)>(a, x, out).run(source); });
}

}  // namespace shardwise
