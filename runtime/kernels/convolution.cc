#include "shardwise/runtime/kernels/detail/convolution.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <functional>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/kernels/detail/element_type.h"
#include "shardwise/runtime/kernels/detail/layout.h"
#include "shardwise/runtime/kernels/detail/scratch.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

// Elements of a tile of patches: with its parts of the kernel and the result it stays in a core's
// cache.
constexpr std::int64_t kTile = std::int64_t{64} * 1024;

// Neighbouring elements in a tile: a product of fewer columns is slow.
constexpr std::int64_t kSide = 256;

constexpr std::int64_t kPadding = -1;

using Numbers = std::vector<std::int64_t>;

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

/// Ranges of columns (images, then places by spatial dim) or of summed elements (features, then
/// taps).
using Ranges = std::vector<Range>;

Range range_of(const Box& box, std::int64_t dim) {
  return {box.begin(as_size(dim)), box.end(as_size(dim))};
}

std::int64_t product(const Numbers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t count(const Ranges& ranges) {
  std::int64_t all = 1;
  for (const Range& range : ranges) all *= range.size();
  return all;
}

/// a / positive, rounded up.
std::int64_t ceiling(std::int64_t a, std::int64_t positive) {
  return a <= 0 ? a / positive : (a - 1) / positive + 1;
}

/// Extents of blocks of at most `limit` elements, and at most `most` by dim: as even as possible,
/// with the last dims whole before the first.
Numbers block_of(const Numbers& extents, std::int64_t limit, const Numbers& most) {
  Numbers block(extents.size());
  for (std::size_t i = extents.size(); i-- > 0;) {
    const std::int64_t largest = std::max<std::int64_t>(std::min(limit, most[i]), 1);
    block[i] = ceiling(extents[i], ceiling(extents[i], largest));
    limit /= block[i];
  }
  return block;
}

template <class Body>
void for_each_block(const Numbers& extents, const Numbers& block, const Body& body) {
  Ranges ranges;
  for (const std::int64_t extent : block) ranges.push_back({0, extent});
  for (;;) {
    body(ranges);
    std::size_t i = extents.size();
    for (; i > 0; --i) {
      Range& range = ranges[i - 1];
      const bool is_last = range.end == extents[i - 1];
      range.begin = is_last ? 0 : range.end;
      range.end = std::min(range.begin + block[i - 1], extents[i - 1]);
      if (!is_last) break;
    }
    if (i == 0) return;
  }
}

/// Replaces each offset by one offset for each of `by`; padding stays padding.
void spread(Numbers& offsets, const Numbers& by) {
  Numbers all;
  all.reserve(offsets.size() * by.size());
  for (const std::int64_t offset : offsets) {
    for (const std::int64_t one : by) {
      all.push_back(offset == kPadding || one == kPadding ? kPadding : offset + one);
    }
  }
  offsets = std::move(all);
}

/// The elements of a box in memory, row-major: in lines as long as possible.
struct Lines {
  Lines(const Ranges& ranges, const Numbers& steps)
      : begins{0}, count(ranges.back().size()), step(steps.back()) {
    std::size_t last = ranges.size() - 1;
    std::int64_t first = ranges[last].begin * step;
    for (; last > 0 && steps[last - 1] == step * count; --last) {
      first += ranges[last - 1].begin * steps[last - 1];
      count *= ranges[last - 1].size();
    }
    for (std::size_t i = 0; i < last; ++i) {
      Numbers of_dim;
      for (std::int64_t at = ranges[i].begin; at < ranges[i].end; ++at) {
        of_dim.push_back(at * steps[i]);
      }
      spread(begins, of_dim);
    }
    for (std::int64_t& begin : begins) begin += first;
  }

  Numbers begins;
  std::int64_t count, step;
};

/// Elements that a loop over few elements copies at once: calls of memcpy would take longer.
template <class T>
constexpr std::int64_t kAtOnce = 32 / sizeof(T);

/// Copies up to kAtOnce - 1 elements too many; these are overwritten later.
template <class T>
T* copy_and_more(const T* from, std::int64_t count, T* to) {
  for (std::int64_t i = 0; i < count; i += kAtOnce<T>) {
    std::memcpy(to + i, from + i, kAtOnce<T> * sizeof(T));
  }
  return to + count;
}

template <class T>
T* zeros_and_more(std::int64_t count, T* to) {
  static constexpr T kZeros[kAtOnce<T>] = {};
  for (std::int64_t i = 0; i < count; i += kAtOnce<T>) std::memcpy(to + i, kZeros, sizeof(kZeros));
  return to + count;
}

template <class T>
void copy(const T* from, std::int64_t from_step, std::int64_t count, T* to, std::int64_t to_step) {
  constexpr std::int64_t kFew = kAtOnce<T> / 2;
  if (from_step != 1 || to_step != 1 || count < kFew) {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = from[i * from_step];
    return;
  }
  for (std::int64_t i = 0; i < count - kFew; i += kFew) {
    std::memcpy(to + i, from + i, kFew * sizeof(T));
  }
  std::memcpy(to + count - kFew, from + count - kFew, kFew * sizeof(T));
}

/// Fills tiles of the matrix of patches. `near` is the side, rows or columns, with neighbouring
/// elements, and `far` is the other. The elements for a tile are first copied, with their padding;
/// the tile's lines are lines of that copy.
///
/// If neighbouring elements read every n-th element of the operand, the copy has first its elements
/// 0, n, 2 n, .., then 1, n + 1, .., as far as they are read.
template <class T>
class Patches {
 public:
  /// In a spatial dim, near element i and far element j read element first + i * near + j * far of
  /// the operand, if that exists.
  struct Dim {
    std::int64_t near, far, first;
    std::int64_t extent, step;  ///< of the operand
  };

  /// Steps: from image to image or from feature to feature.
  Patches(std::vector<Dim> dims, std::int64_t near_step, std::int64_t far_step)
      : dims_(std::move(dims)), near_step_(near_step), far_step_(far_step) {}

  /// `to` has room for kAtOnce elements more.
  void fill(const T* from, const Ranges& near, const Ranges& far, T* to) const {
    std::vector<Copied> dims;
    for (std::size_t i = 0; i < dims_.size(); ++i) {
      dims.push_back(copied(dims_[i], near[i + 1], far[i + 1]));
    }
    Ranges lines{{0, near[0].size()}};
    Numbers steps(dims.size() + 1);
    std::int64_t size = 1;
    for (std::size_t i = dims.size(); i-- > 0; size *= dims[i].extent()) steps[i + 1] = size;
    steps[0] = size;
    Numbers begins{0};  // of far elements
    for (std::size_t i = 0; i < dims.size(); ++i) {
      lines.push_back({0, near[i + 1].size()});
      Numbers of_dim = dims[i].begins;
      for (std::int64_t& begin : of_dim) begin *= steps[i + 1];
      spread(begins, of_dim);
    }
    size *= near[0].size();
    const detail::Scratch memory(as_size(far[0].size() * size + kAtOnce<T>) * sizeof(T));
    read(from, near, far, dims, memory.as<T>());
    const Lines line(lines, steps);
    const T* of_copy = memory.as<T>();
    for (std::int64_t channel = 0; channel < far[0].size(); ++channel, of_copy += size) {
      for (const std::int64_t first : begins) {
        for (const std::int64_t begin : line.begins) {
          to = copy_and_more(of_copy + first + begin, line.count, to);
        }
      }
    }
  }

 private:
  /// The copied part of a spatial dim.
  struct Copied {
    struct Run {
      std::int64_t from, before, count, after;  ///< elements of the operand, amid padding
    };
    std::int64_t extent() const { return std::ssize(runs) * length; }

    std::int64_t length = 0;
    std::vector<Run> runs;  ///< each of `length` elements
    Numbers begins;         ///< where, by far element, the near elements begin
  };

  static Copied copied(const Dim& dim, const Range& near, const Range& far) {
    Copied made;
    Numbers phases, run_of, shift_of;
    for (std::int64_t j = 0; j < far.size(); ++j) {
      const std::int64_t phase = j * dim.far % dim.near, shift = j * dim.far / dim.near;
      const auto found = std::find(phases.begin(), phases.end(), phase);
      run_of.push_back(found - phases.begin());
      if (found == phases.end()) phases.push_back(phase);
      shift_of.push_back(shift);
      made.length = std::max(made.length, near.size() + shift);
    }
    for (std::int64_t j = 0; j < far.size(); ++j) {
      made.begins.push_back(run_of[as_size(j)] * made.length + shift_of[as_size(j)]);
    }
    for (const std::int64_t phase : phases) {
      const std::int64_t first = dim.first + near.begin * dim.near + far.begin * dim.far + phase;
      const std::int64_t begin =
          std::clamp<std::int64_t>(ceiling(-first, dim.near), 0, made.length);
      const std::int64_t end =
          std::clamp(ceiling(dim.extent - first, dim.near), begin, made.length);
      made.runs.push_back(
          {(first + begin * dim.near) * dim.step, begin, end - begin, made.length - end});
    }
    return made;
  }

  void read(const T* from, const Ranges& near, const Ranges& far, const std::vector<Copied>& dims,
            T* to) const {
    Numbers rows{0};
    for (std::size_t i = 0; i + 1 < dims.size(); ++i) {
      Numbers of_dim;
      for (const auto& run : dims[i].runs) {
        of_dim.insert(of_dim.end(), as_size(run.before), kPadding);
        for (std::int64_t k = 0; k < run.count; ++k) {
          of_dim.push_back(run.from + k * dims_[i].near * dims_[i].step);
        }
        of_dim.insert(of_dim.end(), as_size(run.after), kPadding);
      }
      spread(rows, of_dim);
    }
    const std::int64_t step = dims_.back().near * dims_.back().step;
    for (std::int64_t j = far[0].begin; j < far[0].end; ++j) {
      for (std::int64_t i = near[0].begin; i < near[0].end; ++i) {
        const T* const channel = from + i * near_step_ + j * far_step_;
        for (const std::int64_t row : rows) {
          if (row == kPadding) {
            to = zeros_and_more(dims.back().extent(), to);
            continue;
          }
          for (const auto& run : dims.back().runs) {
            to = zeros_and_more(run.before, to);
            copy(channel + row + run.from, step, run.count, to, 1);
            to = zeros_and_more(run.after, to + run.count);
          }
        }
      }
    }
  }

  const std::vector<Dim> dims_;
  const std::int64_t near_step_, far_step_;
};

/// A spatial dim. Place p and tap t, counted from 0, read element first + p * stride + t * dilation
/// of the device's part of the operand.
struct SpatialDim {
  std::int64_t places, taps, stride, dilation, first;
  std::int64_t extent, step;        ///< of the operand
  std::int64_t out_step, tap_step;  ///< in the memory of the result and of the kernel
};

/// Places of the result that use the same taps: all, unless the operand is dilated. With dilation
/// 2, every second place uses every second tap, since the other elements lie between the operand's.
struct Part {
  std::vector<SpatialDim> axes;
  std::int64_t out = 0, tap = 0;  ///< where the first ones are in memory
};

template <class T>
class Convolver {
 public:
  Convolver(const ConvolutionAttributes& a, const ConvolutionShapes& shapes,
            const ConstShardView& lhs, const ConstShardView& rhs, const ShardView& out)
      : a_(a),
        shapes_(shapes),
        lhs_(lhs),
        rhs_(rhs),
        out_(out),
        lhs_steps_(row_major_strides(lhs.box.shape())),
        rhs_steps_(row_major_strides(rhs.box.shape())),
        out_steps_(row_major_strides(out.box.shape())),
        images_(range_of(out.box, a.out[0])),
        features_(range_of(rhs.box, a.rhs[1])) {}

  void run() {
    const std::vector<Part> all = parts();
    const bool is_dilated = std::any_of(a_.lhs_dilation.begin(), a_.lhs_dilation.end(),
                                        [](std::int64_t by) { return by != 1; });
    if (is_dilated) shardwise::fill(0, out_);  // places that use no tap are in no part
    const std::int64_t groups = std::max(a_.feature_groups, a_.batch_groups);
    const std::int64_t of_group = shapes_.out[as_size(a_.out[1])] / groups;
    const Range features = range_of(out_.box, a_.out[1]);
    for (std::int64_t group = features.begin / of_group; group * of_group < features.end; ++group) {
      const Range of_it{std::max(features.begin, group * of_group),
                        std::min(features.end, (group + 1) * of_group)};
      for (const Part& part : all) run_part(part, group, of_it);
    }
  }

 private:
  std::vector<Part> parts() const {
    std::vector<Part> all(1);
    for (std::size_t i = 0; i < a_.stride.size(); ++i) {
      std::vector<Part> longer;
      for (const Part& part : all) add_axis(part, i, longer);
      all = std::move(longer);
    }
    for (Part& part : all) {
      if (part.axes.empty()) part.axes.push_back({1, 1, 1, 1, 0, 1, 1, 1, 1});
    }
    return all;
  }

  /// Adds the part with spatial dim i, once for each way that places use taps.
  void add_axis(const Part& part, std::size_t i, std::vector<Part>& to) const {
    const Range places = range_of(out_.box, a_.out[i + 2]),
                taps = range_of(rhs_.box, a_.rhs[i + 2]),
                elements = range_of(lhs_.box, a_.lhs[i + 2]);
    const std::int64_t apart = a_.lhs_dilation[i], dilation = a_.rhs_dilation[i];
    const std::int64_t out_step = step(out_steps_, a_.out, i + 2),
                       tap_step = step(rhs_steps_, a_.rhs, i + 2);
    const std::int64_t each = apart / std::gcd(apart, dilation);  // tap that a place uses
    for (std::int64_t place = 0; place < std::min(apart, places.size()); ++place) {
      for (std::int64_t tap = 0; tap < std::min(each, taps.size()); ++tap) {
        const std::int64_t at =
            (places.begin + place) * a_.stride[i] + (taps.begin + tap) * dilation - a_.low[i];
        if (at % apart != 0) continue;
        to.push_back(part);
        to.back().out += place * out_step;
        to.back().tap += tap * tap_step;
        to.back().axes.push_back({.places = ceiling(places.size() - place, apart),
                                  .taps = ceiling(taps.size() - tap, each),
                                  .stride = a_.stride[i],
                                  .dilation = each * dilation / apart,
                                  .first = at / apart - elements.begin,
                                  .extent = elements.size(),
                                  .step = step(lhs_steps_, a_.lhs, i + 2),
                                  .out_step = apart * out_step,
                                  .tap_step = each * tap_step});
      }
    }
  }

  void run_part(const Part& part, std::int64_t group, const Range& features) {
    // A kernel that is wider than its result, as in the gradient of a kernel, reads more elements
    // in a row for one column than for one tap.
    const bool is_by_column = part.axes.back().taps > part.axes.back().places;
    const std::int64_t image_step = step(lhs_steps_, a_.lhs, 0),
                       feature_step = step(lhs_steps_, a_.lhs, 1);
    Numbers columns{images_.size()}, sums{features_.size()};
    std::vector<typename Patches<T>::Dim> dims;
    for (const SpatialDim& axis : part.axes) {
      columns.push_back(axis.places);
      sums.push_back(axis.taps);
      dims.push_back({.near = is_by_column ? axis.dilation : axis.stride,
                      .far = is_by_column ? axis.stride : axis.dilation,
                      .first = axis.first,
                      .extent = axis.extent,
                      .step = axis.step});
    }
    const Numbers &near = is_by_column ? sums : columns, &far = is_by_column ? columns : sums;
    const Numbers near_block = block_of(near, kSide, near);
    // Lines that have nothing in common are read one by one, without the elements between them.
    Numbers most = far;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (dims[i].far > dims[i].near * near_block[i + 1]) most[i + 1] = 1;
    }
    const Numbers far_block = block_of(far, kTile / product(near_block), most);
    const Numbers &column_block = is_by_column ? far_block : near_block,
                  &sum_block = is_by_column ? near_block : far_block;
    const Patches<T> patches(std::move(dims), is_by_column ? feature_step : image_step,
                             is_by_column ? image_step : feature_step);
    const T* const from = reinterpret_cast<const T*>(lhs_.data) + first_image(group) * image_step +
                          first_feature(group) * feature_step;

    const std::int64_t rows = features.size();
    const detail::Scratch kernel(num_bytes({rows, product(sums)}, sizeof(T)));
    pack_kernel(part, features, sums, sum_block, kernel.as<T>());
    const detail::Scratch tile(as_size(product(near_block) * product(far_block) + kAtOnce<T>) *
                               sizeof(T));
    const detail::Scratch made(num_bytes({rows, product(column_block)}, sizeof(T)));
    for_each_block(columns, column_block, [&](const Ranges& of_columns) {
      const std::int64_t wide = count(of_columns);
      const T* packed = kernel.as<T>();
      for_each_block(sums, sum_block, [&](const Ranges& of_sums) {
        const std::int64_t deep = count(of_sums);
        patches.fill(from, is_by_column ? of_sums : of_columns, is_by_column ? of_columns : of_sums,
                     tile.as<T>());
        multiply(
            {packed, rows, deep, deep, 1},
            {tile.as<T>(), deep, wide, is_by_column ? 1 : wide, is_by_column ? deep : 1},
            {made.as<T>(), rows, wide, is_feature_last() ? 1 : wide, is_feature_last() ? rows : 1},
            packed == kernel.as<T>());
        packed += rows * deep;
      });
      put(part, features, of_columns, made.as<T>());
    });
  }

  /// Packs blocks of the summed elements one by one, each with a row per feature of the result.
  void pack_kernel(const Part& part, const Range& features, const Numbers& sums,
                   const Numbers& block, T* to) const {
    Numbers steps{step(rhs_steps_, a_.rhs, 1)};
    for (const SpatialDim& axis : part.axes) steps.push_back(axis.tap_step);
    const std::int64_t begin = range_of(rhs_.box, a_.rhs[0]).begin;
    for_each_block(sums, block, [&](const Ranges& ranges) {
      const Lines lines(ranges, steps);
      for (std::int64_t row = features.begin; row < features.end; ++row) {
        const T* const from = reinterpret_cast<const T*>(rhs_.data) + part.tap +
                              (row - begin) * step(rhs_steps_, a_.rhs, 0);
        for (const std::int64_t line : lines.begins) {
          copy(from + line, lines.step, lines.count, to, 1);
          to += lines.count;
        }
      }
    });
  }

  void put(const Part& part, const Range& features, const Ranges& columns, const T* made) const {
    Numbers steps{step(out_steps_, a_.out, 0)};
    for (const SpatialDim& axis : part.axes) steps.push_back(axis.out_step);
    const Lines lines(columns, steps);
    const std::int64_t feature_step = step(out_steps_, a_.out, 1);
    T* const to = reinterpret_cast<T*>(out_.data) + part.out +
                  (features.begin - range_of(out_.box, a_.out[1]).begin) * feature_step;
    if (is_feature_last()) {
      for (const std::int64_t line : lines.begins) {
        for (std::int64_t c = 0; c < lines.count; ++c, made += features.size()) {
          copy(made, 1, features.size(), to + line + c * lines.step, 1);
        }
      }
      return;
    }
    for (std::int64_t row = 0; row < features.size(); ++row) {
      for (const std::int64_t line : lines.begins) {
        copy(made, 1, lines.count, to + row * feature_step + line, lines.step);
        made += lines.count;
      }
    }
  }

  /// Features of the result are next to each other in memory.
  bool is_feature_last() const { return a_.out[1] + 1 == std::ssize(a_.out); }

  static void multiply(const StridedMatrix<const T>& a, const StridedMatrix<const T>& b,
                       const StridedMatrix<T>& out, bool first) {
    if constexpr (std::is_floating_point_v<T>) {
      gemm<T>(a, b, out, first ? 0 : 1);
    } else {
      for (std::int64_t r = 0; r < out.rows; ++r) {
        for (std::int64_t c = 0; first && c < out.cols; ++c) {
          out.data[r * out.row_step + c * out.col_step] = T{0};
        }
        for (std::int64_t k = 0; k < a.cols; ++k) {
          const T factor = a.data[r * a.row_step + k];
          const T* const terms = b.data + k * b.row_step;
          for (std::int64_t c = 0; c < out.cols; ++c) {
            T& sum = out.data[r * out.row_step + c * out.col_step];
            sum = detail::add(sum, detail::multiply(factor, terms[c * b.col_step]));
          }
        }
      }
    }
  }

  static std::int64_t step(const Dims& steps, const Dims& dims, std::size_t i) {
    return steps[as_size(dims[i])];
  }

  /// The first feature and the first image of the operand that a group reads.
  std::int64_t first_feature(std::int64_t group) const {
    const std::int64_t of_group =
        a_.feature_groups > 1 ? group * shapes_.rhs[as_size(a_.rhs[1])] : 0;
    return of_group + features_.begin - range_of(lhs_.box, a_.lhs[1]).begin;
  }
  std::int64_t first_image(std::int64_t group) const {
    const std::int64_t of_group = a_.batch_groups > 1 ? group * shapes_.out[as_size(a_.out[0])] : 0;
    return of_group + images_.begin - range_of(lhs_.box, a_.lhs[0]).begin;
  }

  const ConvolutionAttributes& a_;
  const ConvolutionShapes shapes_;
  const ConstShardView &lhs_, &rhs_;
  const ShardView& out_;
  const Dims lhs_steps_, rhs_steps_, out_steps_;
  const Range images_;    ///< of the result
  const Range features_;  ///< of the kernel, to sum over
};

}  // namespace

void convolution(const ConvolutionAttributes& a, const ConvolutionShapes& shapes,
                 const ConstShardView& lhs, const ConstShardView& rhs, const ShardView& out) {
  assert(lhs.dtype == out.dtype && rhs.dtype == out.dtype);
  if (out.dtype == DType::boolean) {
    throw Error(ErrorCode::unsupported, "convolution: found bool, needed numbers");
  }
  if (out.box.empty()) return;
  if (lhs.box.empty() || rhs.box.empty()) return fill(0, out);
  if (detail::is_half(out.dtype)) {
    const detail::Widened x(lhs), y(rhs);
    const detail::Unrounded z(out);
    convolution(a, shapes, x.view(), y.view(), z.view());
    return z.round();
  }
  detail::with_arithmetic_type(
      out.dtype, [&](auto zero) { Convolver<decltype(zero)>(a, shapes, lhs, rhs, out).run(); });
}

}  // namespace shardwise
