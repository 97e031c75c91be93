#include "shardwise/loader/detail/order/bitmap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;

std::vector<std::uint64_t> words_of(const std::vector<bool>& bits) {
  std::vector<std::uint64_t> words((bits.size() + 63) / 64);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    words[i / 64] |= std::uint64_t{bits[i]} << (i % 64);
  }
  return words;
}

void expect_as_counted(const std::vector<bool>& bits) {
  SCOPED_TRACE(bits.size());
  const auto size = static_cast<std::int64_t>(bits.size());
  const RankedBits set(size, words_of(bits));
  ASSERT_EQ(set.size(), size);
  std::int64_t rank = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    ASSERT_EQ(set.at(i), bits[static_cast<std::size_t>(i)]) << i;
    ASSERT_EQ(set.rank(i), rank) << i;
    if (!bits[static_cast<std::size_t>(i)]) continue;
    ASSERT_EQ(set.select(rank), i);
    ++rank;
  }
  ASSERT_EQ(set.rank(size), rank);
  ASSERT_EQ(set.count(), rank);
}

TEST(RankedBits, RankAndSelectAsCounted) {
  std::mt19937 random(1);
  for (std::size_t size = 0; size < 200; ++size) {
    expect_as_counted(std::vector<bool>(size, true));
    expect_as_counted(std::vector<bool>(size, false));
  }
  for (const std::size_t size : {63, 64, 65, 2047, 2048, 2049, 4096, 6143, 6144, 20000}) {
    for (const double density : {0.0005, 0.01, 0.5, 0.99, 1.0}) {
      std::bernoulli_distribution one(density);
      std::vector<bool> bits(size);
      for (std::size_t i = 0; i < size; ++i) bits[i] = one(random);
      expect_as_counted(bits);
    }
    std::vector<bool> ends(size);
    ends.front() = ends.back() = true;  // empty blocks between
    expect_as_counted(ends);
  }
}

TEST(RankedBits, TheIndexIsSmall) {
  const std::int64_t size = 1 << 20;
  const RankedBits set(size, std::vector<std::uint64_t>(static_cast<std::size_t>(size / 64), 5));
  EXPECT_LE(set.memory_bytes() * 100, static_cast<std::size_t>(size / 8) * 106);
  EXPECT_EQ(RankedBits().count(), 0);
}

TEST(RankedBits, RefusesBitsThatAreNotOfItsSize) {
  const struct {
    std::int64_t size;
    std::vector<std::uint64_t> words;
    const char* message;
  } cases[] = {
      {-1, {}, "size -1"},
      {64, {}, "got 0 words for size 64"},
      {64, {1, 0}, "needed is a size of 0 or more and 1 words"},
      {65, {1}, "2 words"},
      {3, {0b1000}, "a bit past size 3 is 1"},
      {65, {0, 2}, "a bit past size 65"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_THAT(
        message_of(ErrorCode::invalid_argument, [&] { RankedBits(c.size, c.words).count(); }),
        HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace shardwise
