#include "shardwise/runtime/kernels/detail/reduce_dims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "runtime/kernel_shards.h"
#include "testing/simd_targets.h"

namespace shardwise {
namespace {

/// Some of the dims, ascending.
Dims random_dims(std::size_t rank, RandomShardings& random) {
  Dims dims;
  for (std::size_t dim = 0; dim < rank; ++dim) {
    if (random.draw(0, 1) == 1) dims.push_back(static_cast<std::int64_t>(dim));
  }
  return dims;
}

bool is_among(std::size_t dim, const Dims& dims) {
  return std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(dim)) != dims.end();
}

Index without(const Index& at, const Dims& dims) {
  Index rest;
  for (std::size_t dim = 0; dim < at.size(); ++dim) {
    if (!is_among(dim, dims)) rest.push_back(at[dim]);
  }
  return rest;
}

Box without(const Box& box, const Dims& dims) {
  return Box(without(box.begin(), dims), without(box.end(), dims));
}

std::int64_t combine_numbers(Reduction reduction, DType dtype, std::int64_t a, std::int64_t b) {
  if (reduction == Reduction::min) return std::min(a, b);
  return reduction == Reduction::max || dtype == DType::boolean ? std::max(a, b) : a + b;
}

/// The bytes of an element before anything was combined.
void put_identity(Reduction reduction, DType dtype, std::byte* data, std::size_t element) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // Integers saturate.
  const double value = reduction == Reduction::sum   ? 0
                       : reduction == Reduction::max ? -kInfinity
                                                     : kInfinity;
  const bool no_bool = dtype == DType::boolean && reduction != Reduction::min;
  const double bound = no_bool ? 0 : value;
  convert(DType::f64, reinterpret_cast<const std::byte*>(&bound), dtype,
          data + element * size_bytes(dtype), 1);
}

void check_reduction(Reduction reduction, DType dtype, const Shape& shape, const Dims& dims,
                     RandomShardings& random) {
  const Box box = placed(shape, random);
  const Numbers whole = random_numbers_of(dtype, Shape(box.end()), random);
  const TestShard in(dtype, box, whole);
  std::vector<std::optional<std::int64_t>> results(as_size(without(box, dims).num_elements()));
  const Dims strides = row_major_strides(without(box, dims).shape());
  for_each_index(box, [&](const Index& at) {
    const Index rest = without(at, dims);
    std::int64_t offset = 0;
    for (std::size_t dim = 0; dim < rest.size(); ++dim) {
      offset += (rest[dim] - without(box, dims).begin(dim)) * strides[dim];
    }
    auto& result = results[as_size(offset)];
    result = result ? combine_numbers(reduction, dtype, *result, whole[at]) : whole[at];
  });
  TestShard out(dtype, without(box, dims)), right = out;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i]) put_number(dtype, right.target().data, i, *results[i]);
    if (!results[i]) put_identity(reduction, dtype, right.target().data, i);
  }
  reduce_dims(reduction, in, dims, out.target());
  ASSERT_EQ(out, right) << name(dtype) << to_string(box) << " over " << to_string(dims) << ", "
                        << static_cast<int>(reduction);
}

TEST(ReduceDims, AnyDimsOfAnyShapeAndTypeEqualTheElementwiseResult) {
  RandomShardings random(1);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t rank = as_size(random.draw(0, 5));
    const Shape shape = random_shape(rank, random.draw(0, 9) == 0 ? 0 : 1, 6, random);
    check_reduction(kReductions[random.draw(0, 2)], random_dtype(random), shape,
                    random_dims(rank, random), random);
    if (HasFatalFailure()) return;
  }
}

// Around the lengths of lanes and blocks.
void check_long_rows_and_columns(std::span<const std::int64_t> lengths) {
  RandomShardings random(2);
  const auto check_types = [&] {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i16, DType::boolean}) {
      for (const Reduction reduction : kReductions) {
        for (const std::int64_t length : lengths) {
          check_reduction(reduction, dtype, {length}, {0}, random);
          check_reduction(reduction, dtype, {2, length}, {1}, random);
          check_reduction(reduction, dtype, {5, length}, {0}, random);
          check_reduction(reduction, dtype, {length, 3}, {0}, random);
          check_reduction(reduction, dtype, {2, 3, length}, {0, 2}, random);
          check_reduction(reduction, dtype, {2, 6, length, 1}, {1, 3}, random);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  };
  on_each_target(check_types);
}

TEST(ReduceDims, LongRowsAndColumnsEqualTheElementwiseResult) {
  check_long_rows_and_columns(std::vector<std::int64_t>{7, 8, 31, 32, 33, 129, 1025});
}

// Half a minute.
TEST(ReduceDimsNightly, LongerRowsAndColumnsEqualTheElementwiseResult) {
  check_long_rows_and_columns(std::vector<std::int64_t>{8200});
}

// As on a mesh: each device reduces its part, and the parts of one element are combined.
TEST(ReduceDims, PartsCombineToTheWhole) {
  RandomShardings random(3);
  for (int round = 0; round < 200; ++round) {
    const std::size_t rank = as_size(random.draw(1, 4));
    const Shape shape = random_shape(rank, 1, 8, random);
    const Dims dims = random_dims(rank, random);
    const Numbers whole = random_numbers(shape, -9, 9, random);
    const Reduction reduction = kReductions[random.draw(0, 2)];
    const auto reduced = [&](const Box& part) {
      TestShard out(DType::f32, without(part, dims));
      reduce_dims(reduction, TestShard(DType::f32, part, whole), dims, out.target());
      return out;
    };
    Numbers result = zeros(without(Box::whole(shape), dims).shape());
    std::vector<bool> seen(result.values.size());
    for (const Box& part : random_tiling(Box::whole(shape), 6, random)) {
      if (part.empty()) continue;
      const TestShard out = reduced(part);
      std::size_t element = 0;
      for_each_index(out.box(), [&](const Index& at) {
        const std::size_t i = result.offset(at);
        const std::int64_t value = out[element++];
        result[at] = seen[i] ? combine_numbers(reduction, DType::f32, result[at], value) : value;
        seen[i] = true;
      });
    }
    const TestShard all = reduced(Box::whole(shape));
    for (std::size_t i = 0; i < result.values.size(); ++i) ASSERT_EQ(result.values[i], all[i]);
  }
}

TEST(ReduceDims, ANanAnywhereGivesNan) {
  const auto is_nan = [](float value) { return std::isnan(value); };
  on_each_target([&] {
    for (const Reduction reduction : kReductions) {
      for (std::int64_t at = 0; at < 80; ++at) {
        for (const Shape& shape : {Shape{1, 80}, Shape{80, 1}, Shape{40, 2}, Shape{2, 40}}) {
          TestShard in(DType::f32, Box::whole(shape));
          for (float& value : in.as<float>()) value = 1;
          in.as<float>()[as_size(at)] = std::numeric_limits<float>::quiet_NaN();
          for (const std::int64_t dim : {0, 1}) {
            TestShard out(DType::f32, without(Box::whole(shape), {dim}));
            reduce_dims(reduction, in, {dim}, out.target());
            const auto results = out.as<float>();
            EXPECT_EQ(std::count_if(results.begin(), results.end(), is_nan), 1) << at;
          }
        }
      }
    }
  });
}

TEST(ReduceDims, InfinitiesAreValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  TestShard in(DType::f32, Box({0}, {20})), out(DType::f32, Box());
  for (float& value : in.as<float>()) value = -kInfinity;
  reduce_dims(Reduction::max, in, {0}, out.target());
  EXPECT_EQ(out.as<float>()[0], -kInfinity);
  in.as<float>()[19] = kInfinity;
  reduce_dims(Reduction::max, in, {0}, out.target());
  EXPECT_EQ(out.as<float>()[0], kInfinity);
}

TEST(ReduceDims, LongSumsKeepTheirPrecision) {
  constexpr std::int64_t kCount = 1 << 22;
  TestShard in(DType::f32, Box({0}, {kCount})), out(DType::f32, Box());
  std::mt19937 random(4);
  double sum = 0;
  for (float& value : in.as<float>()) {
    value = static_cast<float>(random() % 1000) / 1000;
    sum += value;
  }
  reduce_dims(Reduction::sum, in, {0}, out.target());
  EXPECT_NEAR(out.as<float>()[0], sum, 1e-5 * sum);
}

// However a shard's memory is aligned, and on every kind of processor.
TEST(ReduceDims, TheOrderOfAdditionsDependsOnTheShapeAlone) {
  std::mt19937 random(5);
  constexpr std::size_t kReduced = 6, kKept = 300;
  const auto values = random_floats(DType::f32, kReduced * kKept, random);
  for (const std::int64_t dim : {0, 1}) {
    std::vector<std::vector<std::byte>> results;
    on_each_target([&] {
      for (const std::size_t shift : {0u, 1u}) {
        std::vector<std::byte> memory((kReduced * kKept + shift) * sizeof(float));
        std::copy(values.begin(), values.end(), memory.data() + shift * sizeof(float));
        const Box box = Box::whole({kReduced, kKept});
        TestShard out(DType::f32, without(box, {dim}));
        reduce_dims(Reduction::sum, {memory.data() + shift * sizeof(float), DType::f32, box}, {dim},
                    out.target());
        const auto bytes = out.as<std::byte>();
        results.emplace_back(bytes.begin(), bytes.end());
      }
    });
    for (const auto& result : results) EXPECT_EQ(result, results[0]);
  }
}

// Looks for present and absent values, in boxes that begin anywhere.
TEST(IndexOf, FindsTheFirstThatEquals) {
  RandomShardings random(6);
  for (int round = 0; round < 1000; ++round) {
    const std::size_t rank = as_size(random.draw(1, 4));
    const std::size_t dim = as_size(random.draw(0, static_cast<std::int64_t>(rank) - 1));
    const Dims dims{static_cast<std::int64_t>(dim)};
    Shape shape = random_shape(rank, 0, 5, random);
    shape[dim] = random.draw(0, rank == 1 ? 200 : 40);
    const Box box = placed(shape, random);
    const DType dtype = random_dtype(random);
    const Numbers whole = random_numbers_of(dtype, Shape(box.end()), random);
    const Box rows = without(box, dims);
    const Numbers wanted = random_numbers_of(dtype, Shape(rows.end()), random);
    TestShard out(DType::i32, rows);
    index_of(TestShard(dtype, box, whole), TestShard(dtype, rows, wanted), dim, out.target());
    std::size_t element = 0;
    for_each_index(rows, [&](const Index& rest) {
      Index at = box.begin();
      for (std::size_t d = 0, from = 0; d < rank; ++d) {
        if (d != dim) at[d] = rest[from++];
      }
      while (at[dim] < box.end(dim) && whole[at] != wanted[rest]) ++at[dim];
      const std::int64_t found = at[dim] < box.end(dim) ? at[dim] : 2147483647;
      ASSERT_EQ(out[element++], found) << to_string(box) << " along " << dim;
    });
    if (HasFatalFailure()) return;
  }
}

TEST(IndexOf, NanEqualsNanAndZerosAreOne) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (std::int64_t at = 0; at < 40; ++at) {
      for (const double value : {-0.0, std::nan("")}) {
        const double wanted = value == 0 ? 0.0 : -value;
        TestShard in(dtype, Box({2}, {42})), one(dtype, Box()), out(DType::i32, Box());
        std::vector<double> values(40, 1);
        values[as_size(at)] = values[39] = value;
        const auto fill = [&](TestShard& shard, const double* from, std::size_t count) {
          convert(DType::f64, reinterpret_cast<const std::byte*>(from), dtype,
                  shard.as<std::byte>().data(), count);
        };
        fill(in, values.data(), values.size());
        fill(one, &wanted, 1);
        index_of(in, one, 0, out.target());
        EXPECT_EQ(out[0], at + 2);
      }
    }
  }
}

TEST(Cumulate, SumsOfEveryTypeAndDimEqualTheElementwiseSums) {
  RandomShardings random(7);
  for (int round = 0; round < 1000; ++round) {
    const std::size_t rank = as_size(random.draw(1, 4));
    const std::size_t dim = as_size(random.draw(0, static_cast<std::int64_t>(rank) - 1));
    const Box box = placed(random_shape(rank, 0, 6, random), random);
    DType dtype = random_dtype(random);
    if (dtype == DType::boolean) dtype = DType::i8;
    const Numbers whole = random_numbers_of(dtype, Shape(box.end()), random);
    TestShard out(dtype, box);
    cumulate(Cumulation::sum, CumulationOrder::forward, TestShard(dtype, box, whole), dim,
             out.target());
    Numbers sums = whole;
    for_each_index(box, [&](const Index& at) {
      Index before = at;
      if (--before[dim] < box.begin(dim)) return;
      sums[at] = combine_numbers(Reduction::sum, dtype, sums[before], whole[at]);
    });
    ASSERT_EQ(out, TestShard(dtype, box, sums)) << to_string(box) << " along " << dim;
  }
}

}  // namespace
}  // namespace shardwise
