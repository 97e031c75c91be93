#include "shardwise/runtime/kernels/detail/convolution.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <type_traits>
#include <vector>

#include "shardwise/runtime/gemm.h"
#include "shardwise/runtime/kernels/detail/element_type.h"
#include "shardwise/runtime/kernels/detail/layout.h"
#include "shardwise/runtime/kernels/detail/scratch.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

// Elements of a tile of patches: with the kernel's part and the result's it stays in a core's
// cache.
constexpr std::int64_t kTile = std::int64_t{48} * 1024;

// Patches side by side: a product of fewer columns is slow.
constexpr std::int64_t kColumns = 256;

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

Range range_of(const Box& box, std::int64_t dim) {
  return {box.begin(as_size(dim)), box.end(as_size(dim))};
}

/// Spatial dims: where each index of a list, counted in a range of them, is.
std::vector<Range> spatial(const Box& box, const Dims& dims) {
  std::vector<Range> ranges;
  for (std::size_t i = 2; i < dims.size(); ++i) ranges.push_back(range_of(box, dims[i]));
  return ranges;
}

std::int64_t count(const std::vector<Range>& ranges) {
  std::int64_t all = 1;
  for (const Range& range : ranges) all *= range.size();
  return all;
}

/// The place of number `number`, row-major, in the ranges.
Index place(const std::vector<Range>& ranges, std::int64_t number) {
  Index at = Dims::filled(ranges.size(), 0);
  for (std::size_t i = ranges.size(); i-- > 0;) {
    at[i] = ranges[i].begin + number % ranges[i].size();
    number /= ranges[i].size();
  }
  return at;
}

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
        places_(spatial(out.box, a.out)),
        taps_(spatial(rhs.box, a.rhs)),
        features_(range_of(rhs.box, a.rhs[1])),
        images_(range_of(out.box, a.out[0])),
        positions_(count(places_)),
        num_taps_(count(taps_)) {}

  void run() {
    const std::int64_t groups = std::max(a_.feature_groups, a_.batch_groups);
    const std::int64_t of_group = shapes_.out[as_size(a_.out[1])] / groups;
    const Range features = range_of(out_.box, a_.out[1]);
    for (std::int64_t group = features.begin / of_group; group * of_group < features.end; ++group) {
      const Range of_it{std::max(features.begin, group * of_group),
                        std::min(features.end, (group + 1) * of_group)};
      run_group(group, of_it);
    }
  }

 private:
  /// A result's element: an image and a place in it.
  struct Column {
    std::int64_t image;
    Index place;
  };

  void run_group(std::int64_t group, const Range& features) {
    const std::int64_t rows = features.size(), sums = features_.size() * num_taps_;
    const detail::Scratch kernel(num_bytes({rows, sums}, sizeof(T)));
    pack_kernel(features, kernel.as<T>());
    const std::int64_t columns = images_.size() * positions_;
    const std::int64_t width = std::min(columns, kColumns);
    const std::int64_t depth = std::min(sums, std::max<std::int64_t>(kTile / width, 1));
    const detail::Scratch patches(num_bytes({depth, width}, sizeof(T)));
    const detail::Scratch made(num_bytes({rows, width}, sizeof(T)));
    std::vector<Column> tile;
    for (std::int64_t first = 0; first < columns; first += width) {
      tile.clear();
      for (std::int64_t c = first; c < std::min(first + width, columns); ++c) {
        tile.push_back({images_.begin + c / positions_, place(places_, c % positions_)});
      }
      for (std::int64_t sum = 0; sum < sums; sum += depth) {
        const std::int64_t deep = std::min(depth, sums - sum);
        fill_patches(group, tile, sum, deep, patches.as<T>());
        multiply({kernel.as<T>() + sum, rows, deep, sums, 1},
                 {patches.as<T>(), deep, std::ssize(tile), std::ssize(tile), 1},
                 {made.as<T>(), rows, std::ssize(tile), std::ssize(tile), 1}, sum == 0);
      }
      put(features, tile, made.as<T>());
    }
  }

  /// Row by row the features of the result; in a row its operand's features, and of each its taps.
  void pack_kernel(const Range& features, T* to) const {
    const T* const from = reinterpret_cast<const T*>(rhs_.data);
    std::vector<std::int64_t> offsets;
    for (std::int64_t tap = 0; tap < num_taps_; ++tap) {
      const Index at = place(taps_, tap);
      std::int64_t offset = 0;
      for (std::size_t i = 0; i < at.size(); ++i) {
        offset += (at[i] - taps_[i].begin) * step(rhs_steps_, a_.rhs, i + 2);
      }
      offsets.push_back(offset);
    }
    const std::int64_t begin = range_of(rhs_.box, a_.rhs[0]).begin;
    for (std::int64_t row = features.begin; row < features.end; ++row) {
      for (std::int64_t c = 0; c < features_.size(); ++c) {
        const T* const source =
            from + (row - begin) * step(rhs_steps_, a_.rhs, 0) + c * step(rhs_steps_, a_.rhs, 1);
        for (const std::int64_t offset : offsets) *to++ = source[offset];
      }
    }
  }

  /// Rows `first` to `first + deep` of the matrix of patches: a row for each feature and tap, a
  /// column for each element of the result.
  void fill_patches(std::int64_t group, const std::vector<Column>& tile, std::int64_t first,
                    std::int64_t deep, T* to) const {
    const std::int64_t feature =
        feature_of(group) + features_.begin - range_of(lhs_.box, a_.lhs[1]).begin;
    const T* const from =
        reinterpret_cast<const T*>(lhs_.data) + feature * step(lhs_steps_, a_.lhs, 1);
    const std::int64_t image = image_of(group) - range_of(lhs_.box, a_.lhs[0]).begin;
    std::vector<std::int64_t> offsets(tile.size());
    // The rows of a tap are num_taps_ apart, and read the same places of each feature.
    for (std::int64_t tap = 0; tap < num_taps_; ++tap) {
      std::int64_t row = first_row(first, tap);
      if (row >= first + deep) continue;
      find_offsets(tile, place(taps_, tap), image, offsets);
      const std::vector<Run> runs = runs_of(offsets);
      for (; row < first + deep; row += num_taps_) {
        const T* const source = from + row / num_taps_ * step(lhs_steps_, a_.lhs, 1);
        T* line = to + (row - first) * std::ssize(tile);
        for (const Run& run : runs) {
          if (run.offset == kPadding) {
            std::fill_n(line, run.count, T{0});
          } else if (run.step == 1) {
            std::memcpy(line, source + run.offset, as_size(run.count) * sizeof(T));
          } else {
            const T* const at = source + run.offset;
            for (std::int64_t c = 0; c < run.count; ++c) line[c] = at[c * run.step];
          }
          line += run.count;
        }
      }
    }
  }

  /// The first row from `first` on that is of this tap.
  std::int64_t first_row(std::int64_t first, std::int64_t tap) const {
    const std::int64_t past = first % num_taps_;
    return first + (tap >= past ? tap - past : tap - past + num_taps_);
  }

  static constexpr std::int64_t kPadding = -1;

  /// Columns next to each other whose elements are a fixed step apart.
  struct Run {
    std::int64_t offset, step, count;
  };

  static std::vector<Run> runs_of(const std::vector<std::int64_t>& offsets) {
    std::vector<Run> runs;
    for (const std::int64_t offset : offsets) {
      if (!runs.empty()) {
        Run& last = runs.back();
        const bool both_pad = last.offset == kPadding && offset == kPadding;
        const bool neither = last.offset != kPadding && offset != kPadding;
        if (neither && last.count == 1) last.step = offset - last.offset;
        if (both_pad || (neither && offset == last.offset + last.count * last.step)) {
          ++last.count;
          continue;
        }
      }
      runs.push_back({offset, 1, 1});
    }
    return runs;
  }

  /// Where the tap is of each column, of the first feature that is summed over.
  void find_offsets(const std::vector<Column>& tile, const Index& tap, std::int64_t image,
                    std::vector<std::int64_t>& offsets) const {
    std::vector<Range> held;
    for (std::size_t i = 0; i < tap.size(); ++i) held.push_back(range_of(lhs_.box, a_.lhs[i + 2]));
    for (std::size_t c = 0; c < tile.size(); ++c) {
      std::int64_t offset = (image + tile[c].image) * step(lhs_steps_, a_.lhs, 0);
      for (std::size_t i = 0; i < tap.size(); ++i) {
        const std::int64_t at =
            tile[c].place[i] * a_.stride[i] + tap[i] * a_.rhs_dilation[i] - a_.low[i];
        const std::int64_t element = a_.lhs_dilation[i] == 1 ? at : at / a_.lhs_dilation[i];
        const bool is_there = at >= 0 && element * a_.lhs_dilation[i] == at &&
                              element < shapes_.lhs[as_size(a_.lhs[i + 2])];
        if (!is_there) {
          offset = kPadding;
          break;
        }
        assert(held[i].begin <= element && element < held[i].end);
        offset += (element - held[i].begin) * step(lhs_steps_, a_.lhs, i + 2);
      }
      offsets[c] = offset;
    }
  }

  static void multiply(const StridedMatrix<const T>& a, const StridedMatrix<const T>& b,
                       const StridedMatrix<T>& out, bool first) {
    if constexpr (std::is_floating_point_v<T>) {
      gemm<T>(a, b, out, first ? 0 : 1);
    } else {
      for (std::int64_t r = 0; r < out.rows; ++r) {
        T* const line = out.data + r * out.row_step;
        if (first) std::fill(line, line + out.cols, T{0});
        for (std::int64_t k = 0; k < a.cols; ++k) {
          const T factor = a.data[r * a.row_step + k];
          const T* const terms = b.data + k * b.row_step;
          for (std::int64_t c = 0; c < out.cols; ++c) {
            line[c] = detail::add(line[c], detail::multiply(factor, terms[c]));
          }
        }
      }
    }
  }

  void put(const Range& features, const std::vector<Column>& tile, const T* made) const {
    T* const to = reinterpret_cast<T*>(out_.data);
    std::vector<std::int64_t> offsets;
    for (const Column& column : tile) {
      std::int64_t offset = (column.image - images_.begin) * step(out_steps_, a_.out, 0);
      for (std::size_t i = 0; i < places_.size(); ++i) {
        offset += (column.place[i] - places_[i].begin) * step(out_steps_, a_.out, i + 2);
      }
      offsets.push_back(offset);
    }
    const std::vector<Run> runs = runs_of(offsets);
    const std::int64_t begin = range_of(out_.box, a_.out[1]).begin;
    for (std::int64_t row = 0; row < features.size(); ++row) {
      T* const line = to + (features.begin + row - begin) * step(out_steps_, a_.out, 1);
      for (const Run& run : runs) {
        T* const at = line + run.offset;
        for (std::int64_t c = 0; c < run.count; ++c) at[c * run.step] = made[c];
        made += run.count;
      }
    }
  }

  static std::int64_t step(const Dims& steps, const Dims& dims, std::size_t i) {
    return steps[as_size(dims[i])];
  }

  /// The first feature and the first image of the operand that a group reads.
  std::int64_t feature_of(std::int64_t group) const {
    return a_.feature_groups > 1 ? group * shapes_.rhs[as_size(a_.rhs[1])] : 0;
  }
  std::int64_t image_of(std::int64_t group) const {
    return a_.batch_groups > 1 ? group * shapes_.out[as_size(a_.out[0])] : 0;
  }

  const ConvolutionAttributes& a_;
  const ConvolutionShapes shapes_;
  const ConstShardView &lhs_, &rhs_;
  const ShardView& out_;
  const Dims lhs_steps_, rhs_steps_, out_steps_;
  const std::vector<Range> places_;  ///< of the result
  const std::vector<Range> taps_;    ///< of the kernel
  const Range features_;             ///< of the kernel: what is summed over
  const Range images_;               ///< of the result
  const std::int64_t positions_, num_taps_;
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
