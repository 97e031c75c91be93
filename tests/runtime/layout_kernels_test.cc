#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "runtime/kernel_shards.h"
#include "shardwise/runtime/kernels/detail/layout.h"

namespace shardwise {
namespace {

/// Some dims' numbers, shuffled.
Dims random_permutation(std::size_t rank, RandomShardings& random) {
  Dims dims;
  for (std::size_t dim = 0; dim < rank; ++dim) dims.push_back(static_cast<std::int64_t>(dim));
  std::shuffle(dims.begin(), dims.end(), random.engine());
  return dims;
}

std::size_t random_rank(std::int64_t least, RandomShardings& random) {
  return as_size(random.draw(least, 4));
}

/// Now and then long enough for tiles and runs.
Shape random_extents(std::size_t rank, RandomShardings& random) {
  if (rank == 2 && random.draw(0, 3) == 0) return random_shape(rank, 1, 200, random);
  if (rank > 0 && rank <= 3 && random.draw(0, 3) == 0) return random_shape(rank, 1, 40, random);
  return random_shape(rank, random.draw(0, 9) == 0 ? 0 : 1, 6, random);
}

using Element = std::function<std::int64_t(const Index&)>;

/// The shard that holds element(index) at each index of its box.
TestShard shard_of(DType dtype, const Box& box, const Element& element) {
  TestShard shard(dtype, box);
  std::size_t i = 0;
  for_each_index(
      box, [&](const Index& at) { put_number(dtype, shard.target().data, i++, element(at)); });
  return shard;
}

/// The least box that holds in_index(o) for every o of `out`.
Box needed_box(const Box& out, std::size_t rank,
               const std::function<Index(const Index&)>& in_index) {
  Box needed;
  for (std::size_t dim = 0; dim < rank; ++dim) needed.push_back(0, 0);
  bool first = true;
  for_each_index(out, [&](const Index& o) {
    const Index at = in_index(o);
    for (std::size_t dim = 0; dim < rank; ++dim) {
      if (first) needed.set(dim, at[dim], at[dim] + 1);
      needed.set(dim, std::min(needed.begin(dim), at[dim]), std::max(needed.end(dim), at[dim] + 1));
    }
    first = false;
  });
  return needed;
}

/// A box of the whole that holds `least`.
Box grown(const Box& least, const Shape& whole, RandomShardings& random) {
  Box box = least;
  for (std::size_t dim = 0; dim < box.rank(); ++dim) {
    box.set(dim, random.draw(0, box.begin(dim)), random.draw(box.end(dim), whole[dim]));
  }
  return box;
}

/// Carries a kernel out for a random part of its result, from an operand that holds what that part
/// needs, exactly or more, where element o of the result is element in_index(o) of the operand.
void check_move(const Shape& in_shape, const Shape& out_shape,
                const std::function<Index(const Index&)>& in_index,
                const std::function<void(const ConstShardView&, const ShardView&)>& kernel,
                RandomShardings& random) {
  const DType dtype = any_dtype(random);
  const Numbers whole = random_numbers_of(dtype, in_shape, random);
  const Box out_box = random_part(Box::whole(out_shape), random);
  Box in_box = needed_box(out_box, in_shape.size(), in_index);
  if (random.draw(0, 1) == 1) in_box = grown(in_box, in_shape, random);
  TestShard out(dtype, out_box);
  kernel(TestShard(dtype, in_box, whole), out.target());
  ASSERT_EQ(out, shard_of(dtype, out_box, [&](const Index& o) { return whole[in_index(o)]; }))
      << name(dtype) << to_string(in_shape) << " " << to_string(in_box) << " -> "
      << to_string(out_shape) << " " << to_string(out_box);
}

TEST(Layout, BroadcastRepeatsAlongNewDimsAndDimsOfExtentOne) {
  RandomShardings random(1);
  for (int round = 0; round < 4000; ++round) {
    const Shape out_shape = random_extents(random_rank(0, random), random);
    Dims dims = random_permutation(out_shape.size(), random);
    Dims chosen;
    Shape in_shape;
    for (const std::int64_t dim : dims) {
      if (random.draw(0, 2) == 0) continue;
      chosen.push_back(dim);
      in_shape.push_back(random.draw(0, 2) == 0 ? 1 : out_shape[as_size(dim)]);
    }
    check_move(
        in_shape, out_shape,
        [&](const Index& o) {
          Index at;
          for (std::size_t i = 0; i < chosen.size(); ++i) {
            at.push_back(in_shape[i] == 1 ? 0 : o[as_size(chosen[i])]);
          }
          return at;
        },
        [&](const ConstShardView& in, const ShardView& out) { broadcast(in, chosen, out); },
        random);
    if (HasFatalFailure()) return;
  }
}

TEST(Layout, TransposePermutesDims) {
  RandomShardings random(2);
  for (int round = 0; round < 4000; ++round) {
    const Shape in_shape = random_extents(random_rank(0, random), random);
    const Dims dims = random_permutation(in_shape.size(), random);
    Shape out_shape;
    for (const std::int64_t dim : dims) out_shape.push_back(in_shape[as_size(dim)]);
    check_move(
        in_shape, out_shape,
        [&](const Index& o) {
          Index at = in_shape;
          for (std::size_t i = 0; i < dims.size(); ++i) at[as_size(dims[i])] = o[i];
          return at;
        },
        [&](const ConstShardView& in, const ShardView& out) { transpose(in, dims, out); }, random);
    if (HasFatalFailure()) return;
  }
}

TEST(Layout, SliceTakesEachStridethElement) {
  RandomShardings random(3);
  for (int round = 0; round < 4000; ++round) {
    const Shape out_shape = random_extents(random_rank(0, random), random);
    Dims begin, stride;
    Shape in_shape;
    for (const std::int64_t extent : out_shape) {
      begin.push_back(random.draw(0, 3));
      stride.push_back(std::max<std::int64_t>(1, random.draw(-2, 3)));
      in_shape.push_back(begin[in_shape.size()] + extent * stride[in_shape.size()] +
                         random.draw(0, 2));
    }
    check_move(
        in_shape, out_shape,
        [&](const Index& o) {
          Index at = o;
          for (std::size_t d = 0; d < o.size(); ++d) at[d] = begin[d] + o[d] * stride[d];
          return at;
        },
        [&](const ConstShardView& in, const ShardView& out) { slice(in, begin, stride, out); },
        random);
    if (HasFatalFailure()) return;
  }
}

TEST(Layout, ReverseCountsFromTheWholeShapesEnd) {
  RandomShardings random(4);
  for (int round = 0; round < 4000; ++round) {
    const Shape shape = random_extents(random_rank(0, random), random);
    Dims dims;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (random.draw(0, 1) == 1) dims.push_back(static_cast<std::int64_t>(d));
    }
    check_move(
        shape, shape,
        [&](const Index& o) {
          Index at = o;
          for (const std::int64_t d : dims) at[as_size(d)] = shape[as_size(d)] - 1 - o[as_size(d)];
          return at;
        },
        [&](const ConstShardView& in, const ShardView& out) { reverse(in, dims, shape, out); },
        random);
    if (HasFatalFailure()) return;
  }
}

TEST(Layout, DynamicSliceBeginsAtItsStarts) {
  RandomShardings random(5);
  for (int round = 0; round < 1000; ++round) {
    const Shape in_shape = random_extents(random_rank(0, random), random);
    Dims starts;
    Shape out_shape;
    for (const std::int64_t extent : in_shape) {
      out_shape.push_back(random.draw(0, extent));
      starts.push_back(random.draw(0, extent - out_shape[starts.size()]));
    }
    check_move(
        in_shape, out_shape,
        [&](const Index& o) {
          Index at = o;
          for (std::size_t d = 0; d < o.size(); ++d) at[d] += starts[d];
          return at;
        },
        [&](const ConstShardView& in, const ShardView& out) { dynamic_slice(in, starts, out); },
        random);
    if (HasFatalFailure()) return;
  }
}

TEST(Layout, PadPutsElementsApartAndNumbersBetween) {
  RandomShardings random(6);
  for (int round = 0; round < 3000; ++round) {
    const DType dtype = random_dtype(random);
    const Shape in_shape = random_extents(random_rank(0, random), random);
    const std::int64_t number = random.draw(0, 1);
    Dims low, stride;
    Shape out_shape;
    for (const std::int64_t extent : in_shape) {
      low.push_back(random.draw(-2, 3));  // negative: elements are cut off
      stride.push_back(std::max<std::int64_t>(1, random.draw(-2, 3)));
      const std::size_t d = out_shape.size();
      out_shape.push_back(
          std::max<std::int64_t>(0, low[d] + extent * stride[d] + random.draw(-2, 3)));
    }
    const Numbers whole = random_numbers_of(dtype, in_shape, random);
    const Box out_box = random_part(Box::whole(out_shape), random);
    // The part of the operand that out needs, or all of it.
    const auto in_index = [&](const Index& o) -> std::optional<Index> {
      Index at = o;
      for (std::size_t d = 0; d < o.size(); ++d) {
        const std::int64_t from_low = o[d] - low[d];
        if (from_low < 0 || from_low % stride[d] != 0) return std::nullopt;
        at[d] = from_low / stride[d];
        if (at[d] >= in_shape[d]) return std::nullopt;
      }
      return at;
    };
    Box needed = Box::whole(in_shape);
    if (random.draw(0, 1) == 1) {
      for (std::size_t d = 0; d < in_shape.size(); ++d) {
        std::int64_t begin = in_shape[d], end = 0;
        for (std::int64_t i = 0; i < in_shape[d]; ++i) {
          const std::int64_t o = low[d] + i * stride[d];
          if (o < out_box.begin(d) || o >= out_box.end(d)) continue;
          begin = std::min(begin, i);
          end = i + 1;
        }
        needed.set(d, std::min(begin, end), end);
      }
    }
    TestShard out(dtype, out_box);
    pad(TestShard(dtype, needed, whole), low, stride, static_cast<double>(number), out.target());
    ASSERT_EQ(out, shard_of(dtype, out_box,
                            [&](const Index& o) {
                              const auto at = in_index(o);
                              return at ? whole[*at] : number;
                            }))
        << to_string(in_shape) << to_string(needed) << " low " << to_string(low) << " stride "
        << to_string(stride) << " out " << to_string(out_box);
  }
}

TEST(Layout, ConcatenatePutsInputsOneAfterAnother) {
  RandomShardings random(7);
  for (int round = 0; round < 1000; ++round) {
    const DType dtype = any_dtype(random);
    Shape shape = random_extents(random_rank(1, random), random);
    const std::size_t dim = as_size(random.draw(0, static_cast<std::int64_t>(shape.size()) - 1));
    std::vector<std::int64_t> extents(as_size(random.draw(1, 4)));
    for (std::int64_t& extent : extents) extent = random.draw(0, 5);
    shape[dim] = std::accumulate(extents.begin(), extents.end(), std::int64_t{0});
    const Numbers whole = random_numbers_of(dtype, shape, random);
    const Box out_box = random_part(Box::whole(shape), random);
    // Each input is cut out of the whole, and is one device's part: what out needs of it.
    std::vector<TestShard> inputs;
    std::int64_t begin = 0;
    for (const std::int64_t extent : extents) {
      const bool exact = random.draw(0, 1) == 1;
      Box part = exact ? out_box : Box::whole(shape);
      const std::int64_t first = std::clamp(part.begin(dim), begin, begin + extent);
      part.set(dim, first - begin, std::clamp(part.end(dim), first, begin + extent) - begin);
      inputs.push_back(shard_of(dtype, part, [&](Index at) {
        at[dim] += begin;
        return whole[at];
      }));
      begin += extent;
    }
    const std::vector<ConstShardView> views(inputs.begin(), inputs.end());
    TestShard out(dtype, out_box);
    concatenate(views, extents, dim, out.target());
    ASSERT_EQ(out, TestShard(dtype, out_box, whole)) << to_string(out_box) << " along " << dim;
  }
}

TEST(Layout, DynamicUpdateSliceReplacesFromItsStarts) {
  RandomShardings random(8);
  for (int round = 0; round < 1000; ++round) {
    const DType dtype = any_dtype(random);
    const Shape shape = random_extents(random_rank(0, random), random);
    Dims starts;
    Shape update_shape;
    for (const std::int64_t extent : shape) {
      update_shape.push_back(random.draw(0, extent));
      starts.push_back(random.draw(0, extent - update_shape[starts.size()]));
    }
    const Numbers whole = random_numbers_of(dtype, shape, random);
    const Numbers update = random_numbers_of(dtype, update_shape, random);
    const Box out_box = random_part(Box::whole(shape), random);
    Numbers result = whole;
    for_each_index(Box::whole(update_shape), [&](const Index& at) {
      Index to = at;
      for (std::size_t d = 0; d < at.size(); ++d) to[d] += starts[d];
      result[to] = update[at];
    });
    TestShard out(dtype, out_box);
    dynamic_update_slice(TestShard(dtype, grown(out_box, shape, random), whole),
                         TestShard(dtype, Box::whole(update_shape), update), starts, out.target());
    ASSERT_EQ(out, TestShard(dtype, out_box, result)) << to_string(out_box);
  }
}

TEST(Layout, IotaIsTheGlobalIndex) {
  RandomShardings random(9);
  for (int round = 0; round < 500; ++round) {
    const DType dtype = random_dtype(random);
    const Box box = placed(random_extents(random_rank(1, random), random), random);
    const std::size_t dim = as_size(random.draw(0, static_cast<std::int64_t>(box.rank()) - 1));
    TestShard out(dtype, box);
    iota(dim, out.target());
    ASSERT_EQ(out, shard_of(dtype, box,
                            [&](const Index& at) {
                              return dtype == DType::i8 ? static_cast<std::int8_t>(at[dim])
                                                        : at[dim];
                            }))
        << to_string(box) << " along " << dim;
  }
}

TEST(Layout, FillConvertsItsNumber) {
  RandomShardings random(10);
  for (const DType dtype : compute_dtypes()) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{33}, Shape{3, 7}}) {
      const Box box = placed(shape, random);
      TestShard out(dtype, box);
      fill(1, out.target());
      EXPECT_EQ(out, shard_of(dtype, box, [](const Index&) { return 1; }));
    }
  }
  TestShard out(DType::u8, Box({0}, {3}));
  fill(1000, out.target());  // wraps around, as convert does
  EXPECT_EQ(out[2], 1000 - 3 * 256);
  fill(1000.0, out.target());  // saturates, likewise
  EXPECT_EQ(out[2], 255);
}

}  // namespace
}  // namespace shardwise
