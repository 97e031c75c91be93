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
        num_taps_(count(taps_)),
        outer_(places_.begin(), places_.empty() ? places_.end() : places_.end() - 1),
        inner_(places_.empty() ? Range{0, 1} : places_.back()),
        is_by_column_(!places_.empty() && taps_.back().size() > inner_.size()) {}

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
  /// Columns next to each other: places of the result in one image, of which only the last spatial
  /// dim differs.
  struct Line {
    std::int64_t image;
    Index outer;
    Range inner;
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
    for (std::int64_t first = 0; first < columns; first += width) {
      const std::int64_t wide = std::min(width, columns - first);
      const std::vector<Line> tile = lines(first, first + wide);
      for (std::int64_t sum = 0; sum < sums; sum += depth) {
        const std::int64_t deep = std::min(depth, sums - sum);
        const StridedMatrix<T> patch{patches.as<T>(), deep, wide, is_by_column_ ? 1 : wide,
                                     is_by_column_ ? deep : 1};
        if (is_by_column_) {
          fill_columns(group, tile, sum, deep, patch.data);
        } else {
          fill_rows(group, tile, wide, sum, deep, patch.data);
        }
        multiply({kernel.as<T>() + sum, rows, deep, sums, 1},
                 {patch.data, deep, wide, patch.row_step, patch.col_step},
                 {made.as<T>(), rows, wide, wide, 1}, sum == 0);
      }
      put(features, tile, made.as<T>());
    }
  }

  std::vector<Line> lines(std::int64_t first, std::int64_t last) const {
    std::vector<Line> all;
    while (first < last) {
      const std::int64_t position = first % positions_, at = position % inner_.size();
      const std::int64_t count = std::min(inner_.size() - at, last - first);
      all.push_back({images_.begin + first / positions_,
                     place(outer_, position / inner_.size()),
                     {inner_.begin + at, inner_.begin + at + count}});
      first += count;
    }
    return all;
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
  /// column for each element of the result; `wide` of them.
  void fill_rows(std::int64_t group, const std::vector<Line>& tile, std::int64_t wide,
                 std::int64_t first, std::int64_t deep, T* to) const {
    const T* const from = first_feature(group);
    const std::int64_t image = first_image(group);
    std::vector<Run> runs;
    // The rows of a tap are num_taps_ apart, and read the same places of each feature.
    for (std::int64_t tap = 0; tap < num_taps_; ++tap) {
      std::int64_t row = first_row(first, tap);
      if (row >= first + deep) continue;
      find_runs(tile, place(taps_, tap), image, runs);
      for (; row < first + deep; row += num_taps_) {
        const T* const source = from + row / num_taps_ * step(lhs_steps_, a_.lhs, 1);
        T* line = to + (row - first) * wide;
        for (const Run& run : runs) line = copy(run, source, line);
      }
    }
  }

  /// The same matrix, column after column.
  void fill_columns(std::int64_t group, const std::vector<Line>& tile, std::int64_t first,
                    std::int64_t deep, T* to) const {
    const T* const from = first_feature(group);
    const std::int64_t image = first_image(group);
    const Range inner_taps = taps_.back();
    const std::vector<Range> outer_taps(taps_.begin(), taps_.end() - 1);
    std::vector<Run> runs;
    for (const Line& line : tile) {
      for (std::int64_t at = line.inner.begin; at < line.inner.end; ++at) {
        for (std::int64_t row = first; row < first + deep;) {
          const std::int64_t tap = row % num_taps_, begin = tap % inner_taps.size();
          const std::int64_t count = std::min(inner_taps.size() - begin, first + deep - row);
          std::int64_t offset = (image + line.image) * step(lhs_steps_, a_.lhs, 0) +
                                row / num_taps_ * step(lhs_steps_, a_.lhs, 1);
          offset = add_outer(line.outer, place(outer_taps, tap / inner_taps.size()), offset);
          runs.clear();
          if (offset == kPadding) {
            add(runs, {kPadding, 1, count});
          } else {
            const std::int64_t from_tap = inner_taps.begin + begin;
            add_taps(at, {from_tap, from_tap + count}, offset, runs);
          }
          for (const Run& run : runs) to = copy(run, from, to);
          row += count;
        }
      }
    }
  }

  /// Of the operand, where a group begins.
  const T* first_feature(std::int64_t group) const {
    const std::int64_t feature =
        feature_of(group) + features_.begin - range_of(lhs_.box, a_.lhs[1]).begin;
    return reinterpret_cast<const T*>(lhs_.data) + feature * step(lhs_steps_, a_.lhs, 1);
  }
  std::int64_t first_image(std::int64_t group) const {
    return image_of(group) - range_of(lhs_.box, a_.lhs[0]).begin;
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

  /// Gives the end of what it wrote.
  static T* copy(const Run& run, const T* from, T* to) {
    if (run.offset == kPadding) {
      std::fill_n(to, run.count, T{0});
    } else if (run.step == 1) {
      std::memcpy(to, from + run.offset, as_size(run.count) * sizeof(T));
    } else {
      const T* const at = from + run.offset;
      for (std::int64_t c = 0; c < run.count; ++c) to[c] = at[c * run.step];
    }
    return to + run.count;
  }

  /// One more run; together with the last one if it goes on as that does.
  static void add(std::vector<Run>& runs, const Run& run) {
    if (run.count == 0) return;
    if (!runs.empty()) {
      Run& last = runs.back();
      const bool pads = run.offset == kPadding;
      if (pads == (last.offset == kPadding)) {
        const std::int64_t step = pads || last.count > 1 ? last.step : run.offset - last.offset;
        const bool follows = run.offset == last.offset + last.count * step;
        if (pads || (follows && (run.count == 1 || run.step == step))) {
          last.step = step;
          last.count += run.count;
          return;
        }
      }
    }
    runs.push_back(run);
  }

  /// The operand's element in spatial dim i that a tap reads for a place, or -1: there is none.
  std::int64_t element(std::size_t i, std::int64_t at_place, std::int64_t tap) const {
    const std::int64_t at = at_place * a_.stride[i] + tap * a_.rhs_dilation[i] - a_.low[i];
    const std::int64_t dilation = a_.lhs_dilation[i];
    if (at < 0 || (dilation != 1 && at % dilation != 0)) return -1;
    const std::int64_t found = dilation == 1 ? at : at / dilation;
    if (found >= shapes_.lhs[as_size(a_.lhs[i + 2])]) return -1;
    assert(range_of(lhs_.box, a_.lhs[i + 2]).begin <= found &&
           found < range_of(lhs_.box, a_.lhs[i + 2]).end);
    return found;
  }

  /// Where the tap is of each column, of the first feature that is summed over.
  void find_runs(const std::vector<Line>& tile, const Index& tap, std::int64_t image,
                 std::vector<Run>& runs) const {
    runs.clear();
    for (const Line& line : tile) {
      const std::int64_t offset =
          add_outer(line.outer, tap, (image + line.image) * step(lhs_steps_, a_.lhs, 0));
      if (offset == kPadding) {
        add(runs, {kPadding, 1, line.inner.size()});
      } else if (tap.empty()) {
        add(runs, {offset, 1, 1});
      } else {
        add_inner(line.inner, tap[tap.size() - 1], offset, runs);
      }
    }
  }

  /// With the offset in all spatial dims but the last; kPadding if the operand has no such element.
  std::int64_t add_outer(const Index& at_place, const Index& tap, std::int64_t offset) const {
    for (std::size_t i = 0; i < outer_.size(); ++i) {
      const std::int64_t found = element(i, at_place[i], tap[i]);
      if (found < 0) return kPadding;
      offset += offset_of(i, found);
    }
    return offset;
  }

  /// The same along the last spatial dim: for places next to each other.
  void add_inner(const Range& inner, std::int64_t tap, std::int64_t offset,
                 std::vector<Run>& runs) const {
    const std::size_t i = outer_.size();
    add_each(inner, a_.stride[i], a_.low[i] - tap * a_.rhs_dilation[i], offset, runs,
             [&](std::int64_t at) { return element(i, at, tap); });
  }

  /// And for taps next to each other.
  void add_taps(std::int64_t at_place, const Range& taps, std::int64_t offset,
                std::vector<Run>& runs) const {
    const std::size_t i = outer_.size();
    add_each(taps, a_.rhs_dilation[i], a_.low[i] - at_place * a_.stride[i], offset, runs,
             [&](std::int64_t tap) { return element(i, at_place, tap); });
  }

  /// Number n of the range reads element n * by - before of the last spatial dim, if there is one.
  template <class Element>
  void add_each(const Range& range, std::int64_t by, std::int64_t before, std::int64_t offset,
                std::vector<Run>& runs, const Element& element_of) const {
    const std::size_t i = outer_.size();
    if (a_.lhs_dilation[i] != 1) {
      for (std::int64_t at = range.begin; at < range.end; ++at) {
        const std::int64_t found = element_of(at);
        add(runs, {found < 0 ? kPadding : offset + offset_of(i, found), 1, 1});
      }
      return;
    }
    const auto first_from = [&](std::int64_t least) {
      const std::int64_t number = least + before <= 0 ? 0 : (least + before - 1) / by + 1;
      return std::clamp(number, range.begin, range.end);
    };
    const std::int64_t begin = first_from(0);
    const std::int64_t end = std::max(begin, first_from(shapes_.lhs[as_size(a_.lhs[i + 2])]));
    add(runs, {kPadding, 1, begin - range.begin});
    if (begin < end) {
      add(runs, {offset + offset_of(i, element_of(begin)), by * step(lhs_steps_, a_.lhs, i + 2),
                 end - begin});
    }
    add(runs, {kPadding, 1, range.end - end});
  }

  /// Of an element in spatial dim i, from the begin of what the device has.
  std::int64_t offset_of(std::size_t i, std::int64_t found) const {
    return (found - range_of(lhs_.box, a_.lhs[i + 2]).begin) * step(lhs_steps_, a_.lhs, i + 2);
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
            line[c] = detail::add(line[c], detail::multiply(factor, terms[c * b.col_step]));
          }
        }
      }
    }
  }

  void put(const Range& features, const std::vector<Line>& tile, const T* made) const {
    T* const to = reinterpret_cast<T*>(out_.data);
    std::vector<Run> runs;
    for (const Line& line : tile) {
      std::int64_t offset = (line.image - images_.begin) * step(out_steps_, a_.out, 0);
      for (std::size_t i = 0; i < line.outer.size(); ++i) {
        offset += (line.outer[i] - outer_[i].begin) * step(out_steps_, a_.out, i + 2);
      }
      const std::int64_t inner_step =
          places_.empty() ? 1 : step(out_steps_, a_.out, places_.size() + 1);
      offset += (line.inner.begin - inner_.begin) * inner_step;
      add(runs, {offset, inner_step, line.inner.size()});
    }
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
  const std::vector<Range> outer_;  ///< all of places_ but the last
  const Range inner_;               ///< that one

  /// Patches are filled column by column: a kernel that is wider than its result, as in the
  /// gradient of a kernel, reads more elements in a row for one column than for one tap.
  const bool is_by_column_;
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
