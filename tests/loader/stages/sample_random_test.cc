#include "shardwise/loader/order/sample_random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

TEST(SampleRandom, IsPhiloxOfRecordAndBlockByAKeyOfSeedEpochAndStage) {
  std::uint64_t key = mix_bits(9 + kSplitMixGamma);
  key = mix_bits((key ^ 4) + kSplitMixGamma);
  key = mix_bits((key ^ 77) + kSplitMixGamma);
  const std::array<std::uint32_t, 2> words{static_cast<std::uint32_t>(key),
                                           static_cast<std::uint32_t>(key >> 32)};
  SampleRandom random({.record = (std::int64_t{5} << 32) | 3, .epoch = 4, .seed = 9}, 77);
  for (std::uint32_t block = 0; block < 3; ++block) {
    const auto expected = philox({3, 5, block, 0}, words);
    EXPECT_EQ(random.next(), std::uint64_t{expected[1]} << 32 | expected[0]);
    EXPECT_EQ(random.next(), std::uint64_t{expected[3]} << 32 | expected[2]);
  }
}

// Pinned: runs of older versions are resumed. The numbers agree with a Philox written in Python.
TEST(SampleRandom, DrawsTheSameForEver) {
  SampleRandom random({.record = 7, .epoch = 2, .seed = 1}, stage_number("flip"));
  EXPECT_EQ(random.next(), 15571708516969104046u);
  EXPECT_EQ(random.next(), 14744633236091450745u);
  EXPECT_EQ(random.next(), 11284389172394952328u);
  EXPECT_EQ(stage_number("flip"), 11432638815790488196u);
}

TEST(SampleRandom, StreamsOfDifferentKeysHaveNothingInCommon) {
  std::set<std::uint64_t> seen;
  std::int64_t drawn = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      for (std::uint64_t stage = 0; stage < 4; ++stage) {
        for (std::int64_t record = 0; record < 32; ++record) {
          SampleRandom random({record, epoch, seed}, stage);
          for (int i = 0; i < 8; ++i, ++drawn) seen.insert(random.next());
        }
      }
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(seen.size()), drawn);
}

TEST(SampleRandom, ACopyGoesOnWhereTheOriginalStood) {
  SampleRandom random({.record = 1}, 2);
  random.next();
  SampleRandom copy = random;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(copy.next(), random.next());
}

// Sum over cells of (found - expected)^2 / expected; for k cells about k - 1, with deviation
// sqrt(2k). The seeds are fixed, so nothing here is left to chance.
double chi_square(const std::vector<std::int64_t>& counts, double expected) {
  double sum = 0;
  for (const std::int64_t count : counts) {
    const double off = static_cast<double>(count) - expected;
    sum += off * off / expected;
  }
  return sum;
}

TEST(SampleRandom, BelowIsEvenWithinAndOverSamples) {
  for (const std::size_t n : {2u, 3u, 7u, 10u, 100u}) {
    SCOPED_TRACE(n);
    std::vector<std::int64_t> one(n), firsts(n), pairs(n * n);
    SampleRandom stream({.record = 1, .epoch = 0, .seed = 5}, 0);
    const std::int64_t draws = static_cast<std::int64_t>(n * n) * 100;
    std::uint64_t before = 0;
    for (std::int64_t i = 0; i < draws; ++i) {
      const std::uint64_t value = stream.below(n);
      ASSERT_LT(value, n);
      ++one[value];
      const std::uint64_t first = SampleRandom({i, 0, 5}, 0).below(n);
      ++firsts[first];
      ++pairs[before * n + first];
      before = first;
    }
    const double cells = static_cast<double>(n), expected = static_cast<double>(draws) / cells;
    EXPECT_LT(chi_square(one, expected), cells - 1 + 4 * std::sqrt(2 * cells));
    EXPECT_LT(chi_square(firsts, expected), cells - 1 + 4 * std::sqrt(2 * cells));
    EXPECT_LT(chi_square(pairs, 100), cells * cells + 4 * std::sqrt(2 * cells * cells));
    EXPECT_GT(chi_square(pairs, 100), cells * cells - 4 * std::sqrt(2 * cells * cells) - 1);
  }
}

TEST(SampleRandom, BelowTakesAnyBound) {
  SampleRandom random({}, 0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(random.below(1), 0u);
  // A bound just over 2^63 rejects almost half of the draws; without that, low values came twice as
  // often as high ones.
  const std::uint64_t bound = (std::uint64_t{1} << 63) + 1;
  int low = 0;
  for (int i = 0; i < 10000; ++i) {
    const std::uint64_t value = random.below(bound);
    ASSERT_LT(value, bound);
    low += value < bound / 2 ? 1 : 0;
  }
  EXPECT_NEAR(low, 5000, 200);
  const std::uint64_t third = std::numeric_limits<std::uint64_t>::max() / 3 * 2;
  low = 0;
  for (int i = 0; i < 10000; ++i) low += random.below(third) < third / 2 ? 1 : 0;
  EXPECT_NEAR(low, 5000, 200);
}

TEST(SampleRandom, UniformAndNormalHaveTheirMoments) {
  double sum = 0, squares = 0, normal_sum = 0, normal_squares = 0, fourth = 0;
  constexpr int kDraws = 100000;
  SampleRandom random({.record = 3, .epoch = 1, .seed = 2}, 4);
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    EXPECT_EQ(u, std::floor(u * 0x1p53) * 0x1p-53);
    sum += u;
    squares += u * u;
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    normal_sum += x;
    normal_squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.004);
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 0.004);
  EXPECT_NEAR(normal_sum / kDraws, 0, 0.013);
  EXPECT_NEAR(normal_squares / kDraws, 1, 0.02);
  EXPECT_NEAR(fourth / kDraws, 3, 0.15);
}

}  // namespace
}  // namespace shardwise
