#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "random_program.h"
#include "shardwise/runtime/nn/images.h"
#include "shardwise/runtime/program/detail/layout.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"

// If an op reads other places than it writes, only elements that a device lacks move.

namespace shardwise {
namespace {

TEST(Window, RangeIsWhatPlainLoopsFind) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    const auto number = [&](std::int64_t from, std::int64_t to) {
      return from + static_cast<std::int64_t>(random()) % (to - from + 1);
    };
    Window window{.extent = number(0, 12), .scale = number(-3, 3), .divide = number(1, 3)};
    window.low = number(-6, 6);
    window.high = window.low + number(0, 4);
    const std::int64_t size = number(0, 12);
    const std::int64_t begin = number(0, window.extent), end = number(begin, window.extent);
    std::int64_t first = size, last = -1;
    for (std::int64_t element = 0; element < size; ++element) {
      // It goes with all from the first to the last of the frame, which are the extremes.
      std::int64_t least = INT64_MAX, most = INT64_MIN;
      for (const std::int64_t frame : {begin, end - 1}) {
        least = std::min(least, window.scale * frame + window.low);
        most = std::max(most, window.scale * frame + window.high);
      }
      if (begin == end || element * window.divide < least || element * window.divide > most)
        continue;
      first = std::min(first, element);
      last = std::max(last, element);
    }
    const auto [from, to] = window.range(begin, end, size);
    if (last < 0) {
      EXPECT_EQ(from, to);
    } else {
      EXPECT_EQ(from, first);
      EXPECT_EQ(to, last + 1);
    }
  }
}

TEST(Window, OfAWindowIsWhatGoesWithWhatGoesWithIt) {
  std::mt19937 random(2);
  const auto number = [&](std::int64_t from, std::int64_t to) {
    return from + static_cast<std::int64_t>(random()) % (to - from + 1);
  };
  const auto random_window = [&](std::int64_t extent) {
    Window window{.extent = extent, .scale = number(1, 2), .divide = number(1, 2)};
    if (number(0, 1) == 0) window.scale = -window.scale;
    window.low = number(-6, 6);
    window.high = window.low + number(0, 3);
    window.least = number(0, 3);
    if (number(0, 1) == 0) window.limit = window.least + number(0, 8);
    return window;
  };
  int composed = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    const std::int64_t size = number(0, 12), middle = number(0, 12);
    const Window window = random_window(middle), frame = random_window(number(0, 12));
    const std::optional<Window> both = compose(window, size, frame, middle);
    if (!both) continue;
    ++composed;
    const std::int64_t begin = number(0, frame.extent), end = number(begin, frame.extent);
    const auto [from, to] = frame.range(begin, end, middle);
    const auto needed = window.range(from, to, size), found = both->range(begin, end, size);
    if (from == to) continue;  // there may be elements that are not needed
    EXPECT_EQ(found.second - found.first, needed.second - needed.first);
    if (needed.first == needed.second) continue;
    EXPECT_EQ(found, needed) << to_string(window) << " of " << to_string(frame);
  }
  EXPECT_GT(composed, 2000);
}

TEST(Window, HoldsTheLargestExtents) {
  const std::int64_t most = INT64_MAX;
  const Window window{.extent = most, .scale = most, .low = -most, .high = most};
  EXPECT_EQ(window.range(0, most, most), std::pair(std::int64_t{0}, most));
}

/// One op of one operand, and which element of the operand goes to an element of the result, if one
/// does.
struct OneOp {
  std::string name;
  std::function<Tensor(const Tensor&)> op;
  std::function<std::optional<Index>(const Index&)> source;
};

OneOp random_op(RandomProgram& random, const Shape& shape) {
  const std::size_t rank = shape.size();
  Dims begin, end, stride;
  switch (random.below(3)) {
    case 0: {
      for (const std::int64_t extent : shape) {
        begin.push_back(random.below(extent));
        end.push_back(begin[begin.size() - 1] + 1 + random.below(extent - begin[begin.size() - 1]));
        stride.push_back(1 + random.below(2));
      }
      return {"slice", [=](const Tensor& x) { return slice(x, begin, end, stride); },
              [=](const Index& at) -> std::optional<Index> {
                Index from = at;
                for (std::size_t d = 0; d < rank; ++d) from[d] = begin[d] + at[d] * stride[d];
                return from;
              }};
    }
    case 1: {
      for (std::size_t d = 0; d < rank; ++d) {
        begin.push_back(random.below(4));
        end.push_back(random.below(4));
        stride.push_back(1 + random.below(2));
      }
      return {"pad", [=](const Tensor& x) { return pad(x, begin, end, stride, 0); },
              [=](const Index& at) -> std::optional<Index> {
                Index from = at;
                for (std::size_t d = 0; d < rank; ++d) {
                  const std::int64_t place = at[d] - begin[d];
                  if (place < 0 || place % stride[d] != 0 || place / stride[d] >= shape[d])
                    return {};
                  from[d] = place / stride[d];
                }
                return from;
              }};
    }
    default: {
      Dims dims;
      for (std::size_t d = 0; d < rank; ++d) {
        if (random.below(2) == 0) dims.push_back(static_cast<std::int64_t>(d));
      }
      return {"reverse", [=](const Tensor& x) { return reverse(x, dims); },
              [=](const Index& at) -> std::optional<Index> {
                Index from = at;
                for (const std::int64_t d : dims) {
                  const auto dim = static_cast<std::size_t>(d);
                  from[dim] = shape[dim] - 1 - at[dim];
                }
                return from;
              }};
    }
  }
}

/// Elements that a device lacks at most of the least box that has all that its part of the result
/// is made of.
std::int64_t most_lacking(const Sharding& operand, const Shape& shape, const Sharding& result,
                          const Shape& result_shape, const OneOp& op) {
  std::int64_t most = 0;
  for (std::int64_t position = 0; position < operand.mesh().size(); ++position) {
    std::optional<Box> needed;
    for_each_index(result.box_at(position, result_shape), [&](const Index& at) {
      const std::optional<Index> from = op.source(at);
      if (!from) return;
      Box hull = needed.value_or(Box(*from, *from));
      for (std::size_t d = 0; d < from->size(); ++d) {
        hull.set(d, std::min(hull.begin(d), (*from)[d]), std::max(hull.end(d), (*from)[d] + 1));
      }
      needed = hull;
    });
    if (!needed) continue;
    const Box held = intersect(*needed, operand.box_at(position, shape));
    most = std::max(most, needed->num_elements() - held.num_elements());
  }
  return most;
}

std::size_t received(const Executable& executable) {
  std::size_t bytes = 0;
  for (const CollectiveTotal& total : executable.collectives()) bytes += total.wire_bytes;
  return bytes;
}

// Operand and result are marked at random. A device gets elements it lacks: at most a quarter more,
// if a result that is made elsewhere and then moved was thought to be less.
TEST(Windows, MoveWhatADeviceLacksAndNothingElse) {
  int moved = 0;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomProgram random(seed);
    Shape shape;
    for (int dims = 1 + random.below(2); dims > 0; --dims) shape.push_back(30 + random.below(40));
    const Mesh mesh = random.random_mesh();
    const OneOp op = random_op(random, shape);
    Devices devices(16);
    Tracer tracer(devices, {.mesh = mesh});
    Tensor x = counting(tracer, shape);
    const PartitionSpec from = random.random_spec(mesh, shape);
    mark_sharding(x, from);
    Tensor y = op.op(x);
    const PartitionSpec to = random.random_spec(mesh, y.shape());
    mark_sharding(y, to);
    tracer.mark_step();
    const std::vector<float> in = floats(x), out = floats(y);
    std::size_t at = 0;
    const Dims strides = row_major_strides(shape);
    for_each_index(Box::whole(y.shape()), [&](const Index& index) {
      float expected = 0;
      if (const std::optional<Index> source = op.source(index)) {
        std::int64_t offset = 0;
        for (std::size_t d = 0; d < shape.size(); ++d) offset += (*source)[d] * strides[d];
        expected = in[as_size(offset)];
      }
      EXPECT_EQ(out[at++], expected);
    });
    const std::int64_t lacking =
        most_lacking(Sharding(mesh, from), shape, Sharding(mesh, to), y.shape(), op);
    EXPECT_LE(received(*tracer.last()), as_size(lacking) * 5) << op.name << '\n'
                                                              << dump_steps(*tracer.last());
    moved += lacking > 0;
  }
  EXPECT_GT(moved, 100);
}

/// The least range of a dim that the places [begin, end) of a convolution read.
std::pair<std::int64_t, std::int64_t> read_by(std::int64_t begin, std::int64_t end,
                                              std::int64_t extent, std::int64_t kernel,
                                              const ConvolutionAttributes& a, std::size_t d) {
  std::int64_t first = extent, last = -1;
  for (std::int64_t place = begin; place < end; ++place) {
    for (std::int64_t tap = 0; tap < kernel; ++tap) {
      const std::int64_t at = place * a.stride[d] - a.low[d] + tap * a.rhs_dilation[d];
      if (at < 0 || at % a.lhs_dilation[d] != 0 || at / a.lhs_dilation[d] >= extent) continue;
      first = std::min(first, at / a.lhs_dilation[d]);
      last = std::max(last, at / a.lhs_dilation[d]);
    }
  }
  return last < 0 ? std::pair(begin, begin) : std::pair(first, last + 1);
}

// Images that are cut in space at random, and perhaps by batch: kernels larger than a part,
// strides, dilations and paddings of any kind. A device gets the halo that its part of the result
// reads.
TEST(Windows, OfConvolutionsAreTheHalosThatTheResultReads) {
  int moved = 0, wide = 0;
  for (std::uint32_t seed = 0; seed < 200 || (seed < 1000 && (moved <= 80 || wide <= 20)); ++seed) {
    SCOPED_TRACE(seed);
    RandomProgram random(seed);
    const Shape shape{1 + random.below(8), 2, 30 + random.below(40), 30 + random.below(20)};
    const Shape kernel{3, 2, 1 + random.below(9), 1 + random.below(9)};
    ConvolutionAttributes a;
    a.lhs = a.rhs = a.out = {0, 1, 2, 3};
    for (int d = 0; d < 2; ++d) {
      a.stride.push_back(1 + random.below(3));
      a.low.push_back(random.below(9) - 1);
      a.high.push_back(random.below(9) - 1);
      // With both, elements between the needed ones would move as well.
      a.lhs_dilation.push_back(a.stride[a.stride.size() - 1] == 1 && random.below(4) == 0 ? 2 : 1);
      a.rhs_dilation.push_back(random.below(4) == 0 ? 2 : 1);
    }
    const Mesh mesh = random.random_mesh();
    Devices devices(16);
    Tracer tracer(devices, {.mesh = mesh});
    Tensor x = counting(tracer, shape);
    const Tensor w = counting(tracer, kernel, "w");
    Tensor y;
    try {
      y = convolution(x, w, a);
    } catch (const Error&) {
      continue;  // a kernel that is larger than what there is
    }
    const PartitionSpec drawn = random.random_spec(mesh, shape);
    const PartitionSpec spec({drawn[0], {}, drawn[2], drawn[3]});
    mark_sharding(x, spec);
    mark_sharding(y, spec);
    tracer.mark_step();
    std::int64_t most = 0;
    for (std::int64_t position = 0; position < mesh.size(); ++position) {
      const Box held = Sharding(mesh, spec).box_at(position, shape),
                made = Sharding(mesh, spec).box_at(position, y.shape());
      Box needed = held;
      needed.set(0, made.begin(0), made.end(0));
      for (const std::size_t d : {2U, 3U}) {
        const auto [from, to] = read_by(made.begin(d), made.end(d), shape[d], kernel[d], a, d - 2);
        needed.set(d, from, to);
        wide += made.extent(d) > 0 && to - from > 2 * std::max<std::int64_t>(held.extent(d), 1);
      }
      if (made.num_elements() == 0) continue;
      most = std::max(most, needed.num_elements() - intersect(needed, held).num_elements());
    }
    EXPECT_LE(received(*tracer.last()), as_size(most) * 5)
        << spec.to_string() << ' ' << mesh.to_string() << '\n'
        << dump(tracer.last()->graph()) << dump_steps(*tracer.last());
    moved += most > 0;
  }
  EXPECT_GT(moved, 80);
  EXPECT_GT(wide, 20);
}

// Pictures of 32 rows on 4 devices: twice as large, linearly, they need a row from either
// neighbour; by the nearest nothing moves, nor if they shrink by a number that divides the rows of
// a device.
TEST(Windows, OfResizedPicturesAreHalos) {
  struct Case {
    Dims extents;
    Interpolation how;
    std::size_t rows;
  };
  for (const Case& c :
       {Case{{64, 32}, Interpolation::linear, 2}, Case{{48, 24}, Interpolation::linear, 2},
        Case{{64, 32}, Interpolation::nearest, 0}, Case{{16, 8}, Interpolation::linear, 0},
        Case{{8, 8}, Interpolation::corner, 0}}) {
    SCOPED_TRACE(c.extents[0]);
    Devices devices(4);
    Tracer tracer(devices, {.mesh = Mesh::line(4)});
    Tensor x = counting(tracer, {2, 3, 32, 16});
    mark_sharding(x, {{}, {}, {"devices"}, {}});
    const Tensor y = resize(x, {2, 3}, c.extents, c.how);
    tracer.mark_step();
    EXPECT_LE(received(*tracer.last()), c.rows * 2 * 3 * 16 * 4) << dump_steps(*tracer.last());
    EXPECT_EQ(y.array().sharding().spec(), PartitionSpec::parse("-,-,devices,-"));
  }
}

}  // namespace
}  // namespace shardwise
