#include "shardwise/loader/detail/order/shuffle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::vector<std::int64_t> first(const Shuffle& order, std::int64_t count) {
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < count; ++i) places.push_back(order.at(i));
  return places;
}

TEST(Shuffle, AnswersAsInTheHeader) {
  const Shuffle order(60000, 1, 0);
  EXPECT_EQ(order.size(), 60000);
  EXPECT_EQ(order.at(order.position_of(7)), 7);
}

// Resuming a run depends on these numbers: they never change.
TEST(Shuffle, KeepsItsOrderBetweenReleases) {
  EXPECT_THAT(first(Shuffle(60000, 1, 0), 6),
              ElementsAre(32081, 25921, 39334, 11161, 49163, 20348));
  EXPECT_THAT(first(Shuffle(60000, 1, 1), 6),
              ElementsAre(51809, 22725, 38490, 58295, 40095, 27605));
  EXPECT_THAT(first(Shuffle(60000, 2, 0), 6), ElementsAre(16516, 172, 59400, 25562, 23822, 14569));
  EXPECT_THAT(first(Shuffle(10, 7, 3), 10), ElementsAre(5, 3, 4, 8, 1, 6, 9, 2, 0, 7));
  EXPECT_THAT(first(Shuffle(std::int64_t{1} << 40, 0, 0), 4),
              ElementsAre(877893460178, 72996726583, 635703791020, 843086090176));
  EXPECT_THAT(first(Shuffle(INT64_MAX, UINT64_MAX, UINT64_MAX), 3),
              ElementsAre(1635381633629563708, 1568902940351241157, 3461488056040338347));
}

TEST(Shuffle, HoldsEveryIndexOnceForEverySmallSize) {
  for (std::int64_t size = 0; size <= 2000; ++size) {
    const Shuffle order(size, static_cast<std::uint64_t>(size) * 31, 5);
    std::vector<bool> seen(static_cast<std::size_t>(size));
    for (std::int64_t place = 0; place < size; ++place) {
      const std::int64_t index = order.at(place);
      ASSERT_TRUE(0 <= index && index < size) << size << " " << place;
      ASSERT_FALSE(seen[static_cast<std::size_t>(index)]) << size << " " << place;
      seen[static_cast<std::size_t>(index)] = true;
      ASSERT_EQ(order.position_of(index), place) << size;
    }
  }
}

TEST(Shuffle, IsInvertedAtAnySize) {
  constexpr std::int64_t kOne = 1;
  for (const std::int64_t size :
       {kOne << 16, (kOne << 16) + 1, kOne << 31, (kOne << 31) + 1, (kOne << 32) - 1,
        (kOne << 33) + 5, (kOne << 40) - 1, kOne << 40, (kOne << 40) + 1, INT64_MAX}) {
    const Shuffle order(size, 3, 9);
    const std::int64_t step = size / 1000;
    for (std::int64_t place = 0; place < size - step; place += step) {
      const std::int64_t index = order.at(place);
      ASSERT_TRUE(0 <= index && index < size) << size << " " << place;
      ASSERT_EQ(order.position_of(index), place) << size;
      ASSERT_EQ(order.at(order.position_of(place)), place) << size;
    }
    EXPECT_EQ(order.position_of(order.at(size - 1)), size - 1);
  }
}

TEST(Shuffle, DiffersBySeedAndByEpoch) {
  const auto order = first(Shuffle(60000, 1, 2), 20);
  EXPECT_THAT(first(Shuffle(60000, 1, 2), 20), ElementsAreArray(order));
  EXPECT_NE(first(Shuffle(60000, 2, 1), 20), order);
  EXPECT_NE(first(Shuffle(60000, 1, 3), 20), order);
  EXPECT_NE(first(Shuffle(60000, 3, 2), 20), order);
}

// For two random numbers in [0, 1) the mean distance is 1/3 with a deviation of 0.236, so its mean
// over 60,000 pairs deviates by 0.001. The bound is five of that.
TEST(Shuffle, LaysNeighboursApartAsChanceDoes) {
  constexpr std::int64_t kSize = 60000;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const Shuffle order(kSize, seed, 0);
    double sum = 0;
    for (std::int64_t i = 0; i + 1 < kSize; ++i) {
      sum += std::abs(static_cast<double>(order.at(i) - order.at(i + 1)));
    }
    EXPECT_NEAR(sum / (kSize - 1) / kSize, 1.0 / 3, 0.005) << seed;
  }
}

constexpr std::int64_t kCells = 16;

// Chi-square of a table of kCells x kCells per degree of freedom. Both margins are fixed, as every
// index comes once, so there are (kCells - 1)^2 degrees, and its deviation is sqrt(2 / 225) =
// 0.094.
double chi_square(const std::vector<double>& table, double total) {
  const double expected = total / (kCells * kCells);
  double sum = 0;
  for (const double count : table) sum += (count - expected) * (count - expected) / expected;
  return sum / ((kCells - 1) * (kCells - 1));
}

TEST(Shuffle, SpreadsPlacesAndNeighboursEvenly) {
  for (const std::int64_t size : {1000, 60000, 65537, 100003}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const Shuffle order(size, seed, 1);
      std::vector<double> by_place(kCells * kCells), by_neighbour(kCells * kCells);
      for (std::int64_t i = 0; i < size; ++i) {
        const std::int64_t cell = order.at(i) * kCells / size;
        const std::int64_t next = order.at((i + 1) % size) * kCells / size;
        ++by_place[static_cast<std::size_t>(cell * kCells + i * kCells / size)];
        ++by_neighbour[static_cast<std::size_t>(cell * kCells + next)];
      }
      EXPECT_NEAR(chi_square(by_place, static_cast<double>(size)), 1, 0.35) << size << " " << seed;
      EXPECT_NEAR(chi_square(by_neighbour, static_cast<double>(size)), 1, 0.35)
          << size << " " << seed;
    }
  }
}

// Over epochs, one index comes at every place alike: 99 degrees of freedom, deviation 0.14.
TEST(Shuffle, MovesAnIndexEvenlyOverEpochs) {
  constexpr std::int64_t kSize = 100;
  constexpr std::uint64_t kEpochs = 20000;
  std::vector<double> counts(kSize);
  for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    ++counts[static_cast<std::size_t>(Shuffle(kSize, 1, epoch).position_of(42))];
  }
  const double expected = static_cast<double>(kEpochs) / kSize;
  double sum = 0;
  for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
  EXPECT_NEAR(sum / (kSize - 1), 1, 0.5);
}

TEST(Shuffle, RejectsANegativeSize) {
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { Shuffle(-1, 0, 0); }),
              HasSubstr("size is -1, needed is 0 or more"));
}

}  // namespace
}  // namespace shardwise
