#include "shardwise/runtime/kernels/detail/layout.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "shardwise/runtime/kernels/detail/scratch.h"
#include "shardwise/runtime/kernels/detail/strided_copy.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise {
namespace {

using detail::Loops;
using detail::strided_copy;

/// Fills a shard. One step along a dim of the shard is a fixed step in the operand.
class LayoutWalk {
 public:
  LayoutWalk(const ConstShardView& in, const ShardView& out)
      : in_(in), out_(out), in_strides_(row_major_strides(in.box.shape())) {
    assert(in.dtype == out.dtype);
    steps_ = Dims::filled(out.box.rank(), 0);
  }

  /// The first element of out's dim is element `first` of an operand's dim, and the next ones are
  /// `step` apart.
  void follow(std::size_t out_dim, std::size_t in_dim, std::int64_t first, std::int64_t step) {
    in_offset_ += (first - in_.box.begin(in_dim)) * in_strides_[in_dim];
    // An unused step may be too large to be counted in elements.
    steps_[out_dim] = out_.box.extent(out_dim) > 1 ? step * in_strides_[in_dim] : 0;
  }

  void copy() const {
    if (out_.box.empty()) return;
    const Dims out_strides = row_major_strides(out_.box.shape());
    Loops<2> loops;
    for (std::size_t dim = 0; dim < out_.box.rank(); ++dim) {
      loops.add(out_.box.extent(dim), {steps_[dim], out_strides[dim]});
    }
    strided_copy(loops, {in_offset_, 0}, size_bytes(out_.dtype), in_.data, out_.data);
  }

 private:
  const ConstShardView& in_;
  const ShardView& out_;
  const Dims in_strides_;
  Dims steps_;
  std::int64_t in_offset_ = 0;
};

/// The box whose element 0 is element `by` of another tensor, counted there.
Box moved(const Box& box, const Dims& by) {
  Box result = box;
  for (std::size_t dim = 0; dim < box.rank(); ++dim) {
    result.set(dim, box.begin(dim) + by[dim], box.end(dim) + by[dim]);
  }
  return result;
}

/// Copies to out the elements that it shares with `in`, whose element 0 is element `by` of out.
void copy_moved(const ConstShardView& in, const Dims& by, const ShardView& out) {
  const Box in_box = moved(in.box, by);
  copy_box(intersect(in_box, out.box), size_bytes(out.dtype), {in.data, in_box},
           {out.data, out.box});
}

std::int64_t divide_rounding_up(std::int64_t a, std::int64_t positive) {
  return a > 0 ? (a - 1) / positive + 1 : -(-a / positive);
}

}  // namespace

void broadcast(const ConstShardView& in, const Dims& dims, const ShardView& out) {
  LayoutWalk walk(in, out);
  for (std::size_t dim = 0; dim < dims.size(); ++dim) {
    const std::size_t out_dim = as_size(dims[dim]);
    // An operand that holds all that out needs is [0:1] here only if it is of extent 1.
    const bool repeated = in.box.begin(dim) == 0 && in.box.end(dim) == 1;
    if (!repeated) walk.follow(out_dim, dim, out.box.begin(out_dim), 1);
  }
  walk.copy();
}

void transpose(const ConstShardView& in, const Dims& dims, const ShardView& out) {
  LayoutWalk walk(in, out);
  for (std::size_t dim = 0; dim < dims.size(); ++dim) {
    walk.follow(dim, as_size(dims[dim]), out.box.begin(dim), 1);
  }
  walk.copy();
}

void slice(const ConstShardView& in, const Dims& begin, const Dims& stride, const ShardView& out) {
  if (out.box.empty()) return;
  LayoutWalk walk(in, out);
  for (std::size_t dim = 0; dim < begin.size(); ++dim) {
    walk.follow(dim, dim, begin[dim] + out.box.begin(dim) * stride[dim], stride[dim]);
  }
  walk.copy();
}

void reverse(const ConstShardView& in, const Dims& dims, const Shape& shape, const ShardView& out) {
  LayoutWalk walk(in, out);
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const bool reversed =
        std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(dim)) != dims.end();
    const std::int64_t first = out.box.begin(dim);
    walk.follow(dim, dim, reversed ? shape[dim] - 1 - first : first, reversed ? -1 : 1);
  }
  walk.copy();
}

void pad(const ConstShardView& in, const Dims& low, const Dims& stride, const Scalar& number,
         const ShardView& out) {
  if (out.box.empty()) return;
  const Dims in_strides = row_major_strides(in.box.shape());
  const Dims out_strides = row_major_strides(out.box.shape());
  Loops<2> loops;
  Loops<2>::Offsets at{};
  bool all = true;
  for (std::size_t dim = 0; dim < low.size(); ++dim) {
    // The elements of the operand in out's box.
    const std::int64_t begin =
        std::max(in.box.begin(dim), divide_rounding_up(out.box.begin(dim) - low[dim], stride[dim]));
    const std::int64_t end =
        std::min(in.box.end(dim), divide_rounding_up(out.box.end(dim) - low[dim], stride[dim]));
    const std::int64_t count = std::max<std::int64_t>(end - begin, 0);
    loops.add(count, {in_strides[dim], count > 1 ? stride[dim] * out_strides[dim] : 0});
    at[0] += (begin - in.box.begin(dim)) * in_strides[dim];
    at[1] += (low[dim] + begin * stride[dim] - out.box.begin(dim)) * out_strides[dim];
    all &= count == out.box.extent(dim);
  }
  if (!all) fill(number, out);
  strided_copy(loops, at, size_bytes(out.dtype), in.data, out.data);
}

void concatenate(std::span<const ConstShardView> inputs, std::span<const std::int64_t> extents,
                 std::size_t dim, const ShardView& out) {
  Dims offset = Dims::filled(out.box.rank(), 0);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    copy_moved(inputs[i], offset, out);
    offset[dim] += extents[i];
  }
}

void dynamic_slice(const ConstShardView& in, const Dims& starts, const ShardView& out) {
  Dims back = starts;
  for (std::int64_t& start : back) start = -start;
  if (!moved(in.box, back).contains(out.box)) {
    std::memset(out.data, 0, num_bytes(out.box.shape(), size_bytes(out.dtype)));
  }
  copy_moved(in, back, out);
}

void dynamic_update_slice(const ConstShardView& in, const ConstShardView& update,
                          const Dims& starts, const ShardView& out) {
  if (in.data != out.data) copy_moved(in, Dims::filled(starts.size(), 0), out);
  copy_moved(update, starts, out);
}

void iota(std::size_t dim, const ShardView& out) {
  if (out.box.empty()) return;
  // The values along the dim, then copies of them.
  const std::size_t count = as_size(out.box.extent(dim)), bytes = size_bytes(out.dtype);
  const detail::Scratch integers(count * sizeof(std::int64_t)), values(count * bytes);
  for (std::size_t i = 0; i < count; ++i) {
    integers.as<std::int64_t>()[i] = out.box.begin(dim) + static_cast<std::int64_t>(i);
  }
  convert(DType::i64, integers.data(), out.dtype, values.data(), count);
  Box along;
  along.push_back(out.box.begin(dim), out.box.end(dim));
  const ConstShardView line{values.data(), out.dtype, along};
  LayoutWalk walk(line, out);
  walk.follow(dim, 0, out.box.begin(dim), 1);
  walk.copy();
}

void fill(const Scalar& number, const ShardView& out) {
  std::byte element[8];
  number.write(out.dtype, element);
  detail::fill_elements(element, size_bytes(out.dtype), out.data, as_size(out.box.num_elements()));
}

}  // namespace shardwise
