#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "runtime/kernel_shards.h"
#include "shardwise/runtime/kernels/detail/index.h"
#include "shardwise/shard/host/random.h"
#include "testing/errors.h"
#include "testing/simd_targets.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;

DType random_id_type(RandomShardings& random) {
  return random.draw(0, 1) == 0 ? DType::i32 : DType::i64;
}

std::int64_t added(DType dtype, std::int64_t a, std::int64_t b) {
  return dtype == DType::boolean ? std::max(a, b) : a + b;
}

/// A table and the rows that ids take from it: the table's dims with those of the ids instead of
/// `dim`.
struct TakeCase {
  explicit TakeCase(RandomShardings& random) {
    const std::int64_t rank = random.draw(1, 3);
    table = random_shape(as_size(rank), 1, 5, random);
    dim = as_size(random.draw(0, rank - 1));
    if (random.draw(0, 3) == 0) table[table.size() - 1] = random.draw(1, 40);
    ids = random_numbers(
        random_shape(as_size(random.draw(0, 3)), random.draw(0, 9) == 0 ? 0 : 1, 4, random), 0,
        table[dim] - 1, random);
    for (std::size_t d = 0; d < dim; ++d) rows.push_back(table[d]);
    for (const std::int64_t extent : ids.shape) rows.push_back(extent);
    for (std::size_t d = dim + 1; d < table.size(); ++d) rows.push_back(table[d]);
  }

  /// Where row index `at` is in the table.
  Index in_table(const Index& at) const {
    Index id_index, index;
    for (std::size_t d = 0; d < ids.shape.size(); ++d) id_index.push_back(at[dim + d]);
    for (std::size_t d = 0; d < dim; ++d) index.push_back(at[d]);
    index.push_back(ids[id_index]);
    for (std::size_t d = dim + ids.shape.size(); d < at.size(); ++d) index.push_back(at[d]);
    return index;
  }

  /// The ids that a part of the rows needs.
  Box ids_box(const Box& rows_box) const {
    Box box;
    for (std::size_t d = dim; d < dim + ids.shape.size(); ++d) {
      box.push_back(rows_box.begin(d), rows_box.end(d));
    }
    return box;
  }

  Shape table;
  std::size_t dim;
  Numbers ids;
  Shape rows;
};

// As on a mesh that cuts the table along the taken dim: each device gives its rows and zeros, and
// the sum is the whole.
TEST(Take, PartsOfTheTableAddUpToTheWhole) {
  RandomShardings random(1);
  for (int round = 0; round < 4000; ++round) {
    const TakeCase c(random);
    const DType dtype = any_dtype(random), id_type = random_id_type(random);
    const Numbers x = random_numbers_of(dtype, c.table, random);
    const Box rows = random_part(Box::whole(c.rows), random);
    const TestShard ids(id_type, random.draw(0, 1) == 0 ? c.ids_box(rows) : Box::whole(c.ids.shape),
                        c.ids);
    Numbers sum = zeros(c.rows);
    const std::int64_t cut = random.draw(0, c.table[c.dim]);
    for (const bool upper : {false, true}) {
      const std::int64_t begin = upper ? cut : 0, end = upper ? c.table[c.dim] : cut;
      Box part = Box::whole(c.table);
      if (random.draw(0, 1) == 0) {  // no more than the rows need
        for (std::size_t d = 0; d < part.rank(); ++d) {
          const std::size_t row_dim = d < c.dim ? d : d + c.ids.shape.size() - 1;
          if (d != c.dim) part.set(d, rows.begin(row_dim), rows.end(row_dim));
        }
      }
      part.set(c.dim, begin, end);
      TestShard out(dtype, rows);
      take(TestShard(dtype, part, x), ids, c.dim, c.table[c.dim], out.target());
      std::size_t element = 0;
      for_each_index(rows, [&](const Index& at) {
        const bool here = c.in_table(at)[c.dim] >= begin && c.in_table(at)[c.dim] < end;
        const std::int64_t found = out[element++];
        ASSERT_EQ(found, here ? x[c.in_table(at)] : 0) << to_string(part) << to_string(rows);
        sum[at] += found;
      });
      if (HasFatalFailure()) return;
    }
    for_each_index(rows, [&](const Index& at) { ASSERT_EQ(sum[at], x[c.in_table(at)]); });
  }
}

TEST(ScatterAdd, AnyCutOfUpdatesAndResultAddsUpToTheWhole) {
  RandomShardings random(2);
  for (int round = 0; round < 4000; ++round) {
    const TakeCase c(random);
    const DType dtype = random_dtype(random), id_type = random_id_type(random);
    const Numbers updates = random_numbers_of(dtype, c.rows, random);
    const Box rows = random_part(Box::whole(c.rows), random);
    const Box part = random_part(Box::whole(c.table), random);
    Numbers sums = zeros(c.table);
    for_each_index(rows, [&](const Index& at) {
      std::int64_t& sum = sums[c.in_table(at)];
      sum = added(dtype, sum, updates[at]);
    });
    TestShard out(dtype, part);
    scatter_add(
        TestShard(id_type, random.draw(0, 1) == 0 ? c.ids_box(rows) : Box::whole(c.ids.shape),
                  c.ids),
        TestShard(dtype, rows, updates), c.dim, c.table[c.dim], out.target());
    ASSERT_EQ(out, TestShard(dtype, part, sums))
        << to_string(c.table) << to_string(part) << " along " << c.dim << " " << to_string(rows);
  }
}

TEST(ScatterAdd, AddsInTheOrderOfTheIds) {
  TestShard ids(DType::i32, Box({0}, {3}), {{3}, {1, 1, 1}});
  TestShard updates(DType::f32, Box({0}, {3})), out(DType::f32, Box({0}, {2}));
  std::ranges::copy(std::vector<float>{1e8f, -1e8f, 1}, updates.as<float>().begin());
  scatter_add(ids, updates, 0, 2, out.target());
  EXPECT_EQ(out.as<float>()[0], 0);
  EXPECT_EQ(out.as<float>()[1], 1);
  std::ranges::copy(std::vector<float>{1e8f, 1, -1e8f}, updates.as<float>().begin());
  scatter_add(ids, updates, 0, 2, out.target());
  EXPECT_EQ(out.as<float>()[1], 0);
}

TEST(ScatterAdd, HalvesAreRoundedOnce) {
  // 2048 + 1 is not an f16, so rounding at every step would stay at 2048.
  const Numbers zero_ids{{5}, {0, 0, 0, 0, 0}}, terms{{5}, {2048, 1, 1, 1, 1}};
  const TestShard ids(DType::i64, Box({0}, {5}), zero_ids),
      updates(DType::f16, Box({0}, {5}), terms);
  TestShard out(DType::f16, Box({0}, {1}));
  scatter_add(ids, updates, 0, 1, out.target());
  EXPECT_EQ(out[0], 2052);
  scatter_add_along(ids, updates, 0, 1, out.target());
  EXPECT_EQ(out[0], 2052);
}

struct AlongCase {
  explicit AlongCase(RandomShardings& random) {
    const std::int64_t rank = random.draw(1, 4);
    dim = as_size(random.draw(0, rank - 1));
    rows = random_shape(as_size(rank), random.draw(0, 9) == 0 ? 0 : 1, 5, random);
    table = rows;
    table[dim] = random.draw(1, 6);
    ids = random_numbers(rows, 0, table[dim] - 1, random);
    // A device's boxes: one in all dims but `dim`.
    rows_box = ids_box = random_part(Box::whole(rows), random);
    if (random.draw(0, 1) == 0) ids_box.set(dim, 0, rows[dim]);
    table_box = rows_box;
    const std::int64_t a = random.draw(0, table[dim]), b = random.draw(0, table[dim]);
    table_box.set(dim, std::min(a, b), std::max(a, b));
  }

  Index in_table(const Index& at) const {
    Index index = at;
    index[dim] = ids[at];
    return index;
  }

  std::size_t dim;
  Shape rows, table;
  Numbers ids;
  Box rows_box, ids_box, table_box;
};

TEST(TakeAlong, GivesWhatTheTablesPartHolds) {
  RandomShardings random(3);
  for (int round = 0; round < 4000; ++round) {
    const AlongCase c(random);
    const DType dtype = any_dtype(random);
    const Numbers x = random_numbers_of(dtype, c.table, random);
    Numbers result = zeros(c.rows);
    for_each_index(c.rows_box, [&](const Index& at) {
      const std::int64_t id = c.ids[at];
      const bool here = id >= c.table_box.begin(c.dim) && id < c.table_box.end(c.dim);
      result[at] = here ? x[c.in_table(at)] : 0;
    });
    TestShard out(dtype, c.rows_box);
    take_along(TestShard(dtype, c.table_box, x),
               TestShard(random_id_type(random), c.ids_box, c.ids), c.dim, c.table[c.dim],
               out.target());
    ASSERT_EQ(out, TestShard(dtype, c.rows_box, result))
        << to_string(c.table_box) << " along " << c.dim;
  }
}

TEST(ScatterAddAlong, AddsWhatTheResultsPartHolds) {
  RandomShardings random(4);
  for (int round = 0; round < 4000; ++round) {
    const AlongCase c(random);
    const DType dtype = random_dtype(random);
    const Numbers updates = random_numbers_of(dtype, c.rows, random);
    Numbers sums = zeros(c.table);
    for_each_index(c.rows_box, [&](const Index& at) {
      std::int64_t& sum = sums[c.in_table(at)];
      sum = added(dtype, sum, updates[at]);
    });
    TestShard out(dtype, c.table_box);
    scatter_add_along(TestShard(random_id_type(random), c.ids_box, c.ids),
                      TestShard(dtype, c.rows_box, updates), c.dim, c.table[c.dim], out.target());
    ASSERT_EQ(out, TestShard(dtype, c.table_box, sums))
        << to_string(c.table_box) << " along " << c.dim;
  }
}

TEST(Ids, OutsideOfTheExtentAreErrors) {
  const Numbers numbers{{4, 2}, {0, 1, 2, 3, 7, 4, -1, 0}};
  const TestShard table(DType::f32, Box({0, 0}, {5, 2})), row(DType::f32, Box({0, 1}, {4, 2}));
  TestShard rows(DType::f32, Box({2, 0, 0}, {3, 2, 2})), out(DType::f32, Box({0, 0}, {5, 2}));
  const auto message = [](const std::function<void()>& body) {
    return message_of(ErrorCode::invalid_argument, body);
  };
  for (const DType dtype : {DType::i32, DType::i64}) {
    const TestShard ids(dtype, Box({1, 0}, {4, 2}), numbers);
    EXPECT_EQ(message([&] { take(table, ids, 0, 5, rows.target()); }),
              "take: found id 7 at [2, 0], needed one in [0, 5)");
    EXPECT_EQ(message([&] { scatter_add(ids, rows, 0, 5, out.target()); }),
              "scatter_add: found id 7 at [2, 0], needed one in [0, 5)");
    const TestShard last(dtype, Box({3, 0}, {4, 2}), numbers);
    const TestShard values(DType::f32, Box({3, 0}, {4, 2}));
    TestShard result(DType::f32, Box({3, 0}, {4, 2}));
    EXPECT_EQ(message([&] { take_along(values, last, 0, 5, result.target()); }),
              "take_along: found id -1 at [3, 0], needed one in [0, 5)");
    EXPECT_EQ(message([&] { scatter_add_along(last, values, 0, 5, result.target()); }),
              "scatter_add_along: found id -1 at [3, 0], needed one in [0, 5)");
    // Inside the extent but outside of this table's part: another device's.
    const TestShard good(dtype, Box({1, 0}, {2, 2}), numbers);
    TestShard zero(DType::f32, Box({1, 0, 0}, {2, 2, 2}));
    const TestShard other(DType::f32, Box({0, 0}, {2, 2}));
    take(other, good, 0, 5, zero.target());
    EXPECT_EQ(zero, TestShard(DType::f32, zero.box(), zeros({2, 2, 2})));
  }
}

TEST(Argsort, IsTheStableOrderOfEveryType) {
  RandomShardings random(5);
  for (int round = 0; round < 1000; ++round) {
    const std::size_t rank = as_size(random.draw(1, 4));
    const std::size_t dim = as_size(random.draw(0, static_cast<std::int64_t>(rank) - 1));
    Box box = placed(random_shape(rank, 0, 5, random), random);
    box.set(dim, 0, random.draw(0, 30));
    const DType dtype = random_dtype(random);
    const Numbers whole = random_numbers_of(dtype, Shape(box.end()), random);
    const SortOrder order = random.draw(0, 1) == 0 ? SortOrder::ascending : SortOrder::descending;
    TestShard out(DType::i32, box);
    argsort(TestShard(dtype, box, whole), dim, order, out.target());
    Box lines = box;
    lines.set(dim, 0, 1);
    Numbers result = zeros(Shape(box.end()));
    if (!box.empty()) {
      for_each_index(lines, [&](Index at) {
        std::vector<std::int64_t> indices(as_size(box.extent(dim)));
        std::iota(indices.begin(), indices.end(), 0);
        const auto value = [&](std::int64_t i) {
          at[dim] = i;
          return whole[at];
        };
        std::stable_sort(indices.begin(), indices.end(), [&](std::int64_t a, std::int64_t b) {
          return order == SortOrder::ascending ? value(a) < value(b) : value(a) > value(b);
        });
        for (std::int64_t i = 0; i < box.extent(dim); ++i) {
          at[dim] = i;
          result[at] = indices[as_size(i)];
        }
      });
    }
    ASSERT_EQ(out, TestShard(DType::i32, box, result))
        << name(dtype) << to_string(box) << " " << dim;
  }
}

template <class T>
void check_order_of_special_numbers(DType dtype) {
  using Limits = std::numeric_limits<T>;
  const T values[] = {0,
                      Limits::quiet_NaN(),
                      -Limits::infinity(),
                      T{-0.0},
                      3,
                      -3,
                      Limits::infinity(),
                      -Limits::quiet_NaN(),
                      Limits::denorm_min(),
                      -1};
  TestShard in(dtype, Box({0}, {10})), out(DType::i32, Box({0}, {10}));
  std::ranges::copy(values, in.as<T>().begin());
  const auto order = [&](SortOrder asked) {
    argsort(in, 0, asked, out.target());
    return std::vector<std::int32_t>(out.as<std::int32_t>().begin(), out.as<std::int32_t>().end());
  };
  EXPECT_EQ(order(SortOrder::ascending), (std::vector<std::int32_t>{2, 5, 9, 0, 3, 8, 4, 6, 1, 7}));
  EXPECT_EQ(order(SortOrder::descending),
            (std::vector<std::int32_t>{1, 7, 6, 4, 8, 0, 3, 9, 5, 2}));
}

TEST(Argsort, NaNIsTheLargestAndZerosAreEqual) {
  check_order_of_special_numbers<float>(DType::f32);
  check_order_of_special_numbers<double>(DType::f64);
}

TEST(Argsort, ReachesTheEndsOfIntegers) {
  TestShard in(DType::i64, Box({0}, {4})), out(DType::i32, Box({0}, {4}));
  std::ranges::copy(std::vector<std::int64_t>{INT64_MAX, 0, INT64_MIN, -1},
                    in.as<std::int64_t>().begin());
  argsort(in, 0, SortOrder::ascending, out.target());
  EXPECT_EQ(out, TestShard(DType::i32, Box({0}, {4}), {{4}, {2, 3, 1, 0}}));
  argsort(in, 0, SortOrder::descending, out.target());
  EXPECT_EQ(out, TestShard(DType::i32, Box({0}, {4}), {{4}, {0, 1, 3, 2}}));
}

// The known answers that its authors publish (Random123, kat_vectors).
TEST(RandomBits, AreThePublishedWords) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  TestShard out(DType::u32, Box({0}, {5}));
  random_bits(0, {5}, out.target());
  const auto words = out.as<std::uint32_t>();
  EXPECT_EQ((Words{words[0], words[1], words[2], words[3]}), philox({0, 0, 0, 0}, {0, 0}));
  EXPECT_EQ(words[4], philox({1, 0, 0, 0}, {0, 0})[0]);
}

TEST(RandomBits, OfAPartAreThoseOfTheWhole) {
  RandomShardings random(6);
  for (int round = 0; round < 500; ++round) {
    const Shape shape = random_shape(as_size(random.draw(0, 4)), 1, 9, random);
    const std::uint64_t key = std::uint64_t{0x123456789abcdef} * static_cast<unsigned>(round);
    const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
    Numbers whole = zeros(shape);
    for (std::size_t i = 0; i < whole.values.size(); ++i) {
      whole.values[i] =
          philox({low(i / 4), low(i / 4 >> 32), 0, 0}, {low(key), low(key >> 32)})[i % 4];
    }
    const Box box = random_part(Box::whole(shape), random);
    on_each_target([&] {
      TestShard out(DType::u32, box);
      random_bits(key, shape, out.target());
      ASSERT_EQ(out, TestShard(DType::u32, box, whole)) << to_string(shape) << to_string(box);
    });
  }
}

TEST(RandomBits, CountBeyond32Bits) {
  const Shape shape{std::int64_t{1} << 40};
  const std::int64_t begin = (std::int64_t{1} << 34) - 101;  // 2^32 counters of 4 words
  on_each_target([&] {
    TestShard out(DType::u32, Box({begin}, {begin + 202}));
    random_bits(7, shape, out.target());
    for (std::int64_t i = begin; i < begin + 202; ++i) {
      const std::uint64_t counter = static_cast<std::uint64_t>(i) / 4;
      const auto block = philox(
          {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
          {7, 0});
      ASSERT_EQ(out.as<std::uint32_t>()[as_size(i - begin)], block[as_size(i % 4)]) << i;
    }
  });
}

}  // namespace
}  // namespace shardwise
