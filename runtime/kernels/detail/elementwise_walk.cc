#include "shardwise/runtime/kernels/detail/elementwise_walk.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "shardwise/runtime/kernels/detail/loops.h"
#include "shardwise/runtime/kernels/detail/scratch.h"
#include "shardwise/runtime/kernels/detail/strided_copy.h"

namespace shardwise::detail {
namespace {

// One scratch tile. With half that size, a gelu takes 8% longer, as it makes more calls; with twice
// the size 5% less, but kernels with more operands would leave a first-level cache of 32 KiB.
constexpr std::size_t kTileBytes = 4096;

/// An input in the dims that remain after joining.
struct WalkedInput {
  Block block;  // of equal elements
  Dims strides;
  const std::byte* data;
  std::size_t element_bytes;
  const std::byte* in_block;  // the element that fills it
  std::byte* tile;            // a tile of elements gathered from several rows
  bool in_tile;               // it is filled with rows that repeat
  bool contiguous;            // row-major throughout
  bool constant;              // one element for all
  bool repeats;               // the same in each row
};

/// Each thread keeps these from run to run.
struct WalkLists {
  std::vector<WalkedInput> inputs;
  std::vector<Source> places;
  std::vector<std::byte*> targets;
};

/// Some rows, or a part of one.
struct WalkTile {
  std::int64_t row, rows, begin, count;
};

void convert_tile(const ElementwiseStep& step, const Source& source, std::byte* out,
                  std::size_t count) {
  if (source.step == 1) {
    shardwise::convert(step.from, source.data, step.to, out, count);
    return;
  }
  std::byte element[sizeof(double)];
  shardwise::convert(step.from, source.data, step.to, element, 1);
  fill_elements(element, size_bytes(step.to), out, count);
}

/// One run of a kernel: the elements in row-major order, tile by tile.
class ElementwiseWalk {
 public:
  ElementwiseWalk(const ElementwiseProgram& program, const Shape& shape,
                  std::span<const ElementwiseKernel::Operand> inputs,
                  std::span<std::byte* const> outputs, WalkLists& lists)
      : program_(program), outputs_(outputs), lists_(lists) {
    join_dims(shape, inputs);
    choose_plan(inputs);
    choose_tile();
    place();
  }

  void run() {
    for (std::int64_t row = 0; row < rows_; row += tile_rows_) {
      const std::int64_t rows = std::min(tile_rows_, rows_ - row);
      for (std::int64_t begin = 0; begin < row_; begin += tile_row_) {
        run({row, rows, begin, std::min(tile_row_, row_ - begin)});
      }
    }
  }

 private:
  /// Joins dims that all inputs traverse as one, so that the fewest are left.
  void join_dims(const Shape& shape, std::span<const ElementwiseKernel::Operand> inputs) {
    lists_.inputs.assign(inputs.size(), {});
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (shape[dim] == 1) continue;
      bool joined = !extents_.empty();
      for (std::size_t i = 0; joined && i < inputs.size(); ++i) {
        const Dims& strides = lists_.inputs[i].strides;
        joined = strides[strides.size() - 1] == inputs[i].strides[dim] * shape[dim];
      }
      if (joined) {
        extents_[extents_.size() - 1] *= shape[dim];
      } else {
        extents_.push_back(shape[dim]);
      }
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        Dims& strides = lists_.inputs[i].strides;
        if (!joined) strides.push_back(0);
        strides[strides.size() - 1] = inputs[i].strides[dim];
      }
    }
    if (extents_.empty()) {
      extents_.push_back(1);
      for (WalkedInput& input : lists_.inputs) input.strides.push_back(1);
    }
    const Dims row_major = row_major_strides(extents_);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      WalkedInput& input = lists_.inputs[i];
      input.data = inputs[i].data;
      input.element_bytes = program_.input_bytes[i];
      input.contiguous = input.strides == row_major;
      input.repeats = std::all_of(input.strides.begin(), input.strides.end() - 1,
                                  [](std::int64_t stride) { return stride == 0; });
      input.constant = input.repeats && inner_stride(input) == 0;
    }
  }

  void choose_plan(std::span<const ElementwiseKernel::Operand> inputs) {
    const auto together = [&](const ElementwisePlan::Clash& clash) {
      return outputs_[clash.output] == inputs[clash.input].data;
    };
    const auto& clashes = program_.plan.clashes;
    const bool clash = std::any_of(clashes.begin(), clashes.end(), together);
    plan_ = clash ? &program_.at_end : &program_.plan;
  }

  static std::int64_t inner_stride(const WalkedInput& input) {
    return input.strides[input.strides.size() - 1];
  }

  static bool in_place_by_row(const WalkedInput& input) {
    return inner_stride(input) == 0 || inner_stride(input) == 1;
  }

  void choose_tile() {
    const auto tile = static_cast<std::int64_t>(kTileBytes / program_.widest_bytes);
    row_ = extents_[extents_.size() - 1];
    rows_ = num_elements(extents_) / row_;
    // Rows of half a tile are worth calls of their own: most inputs are then read in place.
    if (rows_ > 1 && row_ < tile / 2) {
      tile_rows_ = tile / row_;
      tile_row_ = row_;
      return;
    }
    tile_rows_ = 1;
    // A single step needs no tiles: nothing is read twice.
    if (plan_->steps.size() == 1 &&
        std::all_of(lists_.inputs.begin(), lists_.inputs.end(), in_place_by_row)) {
      tile_row_ = row_;
      return;
    }
    // Parts of about one size, of whole vectors.
    constexpr std::int64_t kVector = kBlockBytes;
    const std::int64_t parts = (row_ + tile - 1) / tile;
    const std::int64_t part = (row_ + parts - 1) / parts;
    tile_row_ = std::min(tile, (part + kVector - 1) / kVector * kVector);
  }

  bool needs_tile(const WalkedInput& input) const {
    return !input.contiguous && !input.constant && (tile_rows_ > 1 || !in_place_by_row(input));
  }

  void place() {
    std::size_t tiles = plan_->scratch_tiles;
    for (const WalkedInput& input : lists_.inputs) tiles += needs_tile(input) ? 1 : 0;
    memory_.emplace(tiles * kTileBytes);
    std::byte* free = memory_->data();
    const auto take = [&free] { return std::exchange(free, free + kTileBytes); };
    lists_.places.assign(lists_.inputs.size(), {});
    for (WalkedInput& input : lists_.inputs) {
      if (needs_tile(input)) input.tile = take();
    }
    for (const Block& constant : program_.constants) {
      lists_.places.push_back({constant.bytes.data(), 0});
    }
    lists_.targets.assign(outputs_.begin(), outputs_.end());
    for (std::size_t i = 0; i < plan_->scratch_tiles; ++i) lists_.targets.push_back(take());
    for (std::byte* const target : lists_.targets) lists_.places.push_back({target, 1});
  }

  void run(const WalkTile& tile) {
    Source* const places = lists_.places.data();
    for (std::size_t i = 0; i < lists_.inputs.size(); ++i) {
      places[i] = locate(lists_.inputs[i], tile);
    }
    Source* const targets = places + lists_.inputs.size() + program_.constants.size();
    const std::int64_t first = tile.row * row_ + tile.begin;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      lists_.targets[i] = outputs_[i] + as_size(first) * program_.output_bytes[i];
      targets[i].data = lists_.targets[i];
    }
    const std::size_t count = as_size(tile.rows * tile.count);
    for (const ElementwiseStep& step : plan_->steps) {
      const Source sources[] = {places[step.sources[0]], places[step.sources[1]],
                                places[step.sources[2]]};
      std::byte* const out = lists_.targets[step.target];
      if (step.function != nullptr) {
        step.function(sources, out, count);
      } else {
        convert_tile(step, sources[0], out, count);
      }
    }
  }

  /// Finds a tile's elements of an input.
  Source locate(WalkedInput& input, const WalkTile& tile) const {
    const auto bytes = static_cast<std::int64_t>(input.element_bytes);
    if (input.contiguous) return {input.data + (tile.row * row_ + tile.begin) * bytes, 1};
    if (input.constant) return equal_elements(input, input.data);
    const std::int64_t stride = inner_stride(input);
    if (tile.rows == 1 && in_place_by_row(input)) {
      const std::byte* const data = row_data(input, tile.row) + tile.begin * stride * bytes;
      return stride == 1 ? Source{data, 1} : equal_elements(input, data);
    }
    const bool whole_rows_repeat = input.repeats && tile_row_ == row_;
    if (!whole_rows_repeat || !input.in_tile) fill_tile(input, tile);
    input.in_tile = true;
    return {input.tile, 1};
  }

  static Source equal_elements(WalkedInput& input, const std::byte* element) {
    if (input.in_block != element) {
      fill_elements(element, input.element_bytes, input.block.bytes.data(),
                    kBlockBytes / input.element_bytes);
      input.in_block = element;
    }
    return {input.block.bytes.data(), 0};
  }

  const std::byte* row_data(const WalkedInput& input, std::int64_t row) const {
    std::int64_t offset = 0;
    for (std::size_t dim = extents_.size() - 1; dim-- > 0;) {
      offset += dim == 0 ? row * input.strides[dim] : row % extents_[dim] * input.strides[dim];
      row /= extents_[dim];
    }
    return input.data + offset * static_cast<std::int64_t>(input.element_bytes);
  }

  void fill_tile(const WalkedInput& input, const WalkTile& tile) const {
    const std::size_t rank = extents_.size();
    // Rows that follow each other along the next dim are copied in one go.
    const std::int64_t in_dim = rank > 1 ? extents_[rank - 2] : 1;
    const std::int64_t row_stride = rank > 1 ? input.strides[rank - 2] : 0;
    const std::int64_t stride = inner_stride(input);
    const std::int64_t end = tile.row + tile.rows;
    for (std::int64_t row = tile.row; row < end;) {
      const std::int64_t rows = std::min(end - row, in_dim - row % in_dim);
      Loops<2> loops;
      loops.add(rows, {row_stride, tile.count});
      loops.add(tile.count, {stride, 1});
      strided_copy(loops, {tile.begin * stride, (row - tile.row) * tile.count}, input.element_bytes,
                   row_data(input, row), input.tile);
      row += rows;
    }
  }

  const ElementwiseProgram& program_;
  const ElementwisePlan* plan_ = nullptr;
  std::span<std::byte* const> outputs_;
  WalkLists& lists_;
  std::optional<Scratch> memory_;
  Dims extents_;
  std::int64_t row_ = 0, rows_ = 0;            // elements of a row; rows
  std::int64_t tile_row_ = 0, tile_rows_ = 0;  // of a whole tile
};

}  // namespace

void run_elementwise(const ElementwiseProgram& program, const Shape& shape,
                     std::span<const ElementwiseKernel::Operand> inputs,
                     std::span<std::byte* const> outputs) {
  thread_local WalkLists lists;
  ElementwiseWalk(program, shape, inputs, outputs, lists).run();
}

}  // namespace shardwise::detail
