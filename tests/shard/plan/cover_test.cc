#include "shardwise/shard/plan/detail/cover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "testing/random_boxes.h"
#include "testing/random_shardings.h"

namespace shardwise::detail {
namespace {

/// Counts every element.
std::optional<Miscount> count_by_hand(const std::vector<Box>& boxes, const Box& region) {
  for (const Index& element : indices_of(region)) {
    const std::int64_t times = std::count_if(boxes.begin(), boxes.end(),
                                             [&](const Box& box) { return holds(box, element); });
    if (times != 1) return Miscount{element, times};
  }
  return std::nullopt;
}

TEST(Cover, AgreesWithACountingArray) {
  RandomShardings random(6);
  int exact = 0, missing = 0, doubled = 0;
  for (int round = 0; round < 6000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    Index begin, end;
    for (std::size_t dim = 0; dim < rank; ++dim) {
      begin.push_back(random.draw(-2, 2));
      end.push_back(begin[dim] + random.draw(0, 6) + (random.draw(0, 9) > 0 ? 1 : 0));
    }
    const Box region(begin, end);
    std::vector<Box> boxes = random_tiling(region, random.draw(0, 25), random);
    damage(boxes, region, random.draw(0, 3), random);
    const auto found = find_miscount(packed(boxes, region.rank()), region);
    const auto expected = count_by_hand(boxes, region);
    ASSERT_EQ(is_tiling(packed(boxes, rank), region), !expected) << to_string(region);
    ASSERT_EQ(found.has_value(), expected.has_value()) << to_string(region);
    if (!expected) {
      ++exact;
      continue;
    }
    ASSERT_EQ(found->element, expected->element);
    ASSERT_EQ(found->times, expected->times);
    ++(expected->times == 0 ? missing : doubled);
  }
  EXPECT_GT(exact, 500);
  EXPECT_GT(missing, 500);
  EXPECT_GT(doubled, 500);
}

TEST(Cover, SeesThatASurplusDoesNotMakeUpForALack) {
  const Box region = Box::whole({4, 4});
  // 16 elements in all, but [0, 3] twice and [3, 0] never.
  const std::vector<Box> boxes = {Box({0, 0}, {3, 4}), Box({0, 3}, {1, 4}), Box({3, 1}, {4, 4})};
  const auto found = find_miscount(packed(boxes, region.rank()), region);
  ASSERT_TRUE(found);
  EXPECT_FALSE(is_tiling(packed(boxes, 2), region));
  EXPECT_EQ(found->element, Index({0, 3}));
  EXPECT_EQ(found->times, 2);
}

TEST(Cover, TakesManyDimsOfWhichFewAreCut) {
  // A dim that no box cuts costs nothing: else this would take 2^15 times as long.
  Shape shape = Shape::filled(kMaxRank, 1000);
  shape[kMaxRank - 1] = 2000;
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < 1000; ++i) {
    Index begin = Index::filled(kMaxRank, 0), end = shape;
    begin[kMaxRank - 1] = 2 * i;
    end[kMaxRank - 1] = 2 * i + 2;
    boxes.emplace_back(begin, end);
  }
  // is_tiling() does not take a tensor of 2^63 elements or more.
  EXPECT_FALSE(find_miscount(packed(boxes, kMaxRank), Box::whole(shape)));
  boxes.erase(boxes.begin() + 500);
  const auto found = find_miscount(packed(boxes, kMaxRank), Box::whole(shape));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->times, 0);
  EXPECT_EQ(found->element[0], 0);
  EXPECT_EQ(found->element[kMaxRank - 1], 1000);
}

TEST(Cover, ProvesManyBoxesOfAnyRank) {
  // Far more than are compared with each other, so that space is cut; then one is hurt.
  RandomShardings random(16);
  for (const std::size_t rank : {1u, 2u, 3u, 4u}) {
    const Box region = Box::whole(Shape::filled(rank, 100000 / static_cast<std::int64_t>(rank)));
    for (int round = 0; round < 5; ++round) {
      std::vector<Box> boxes = random_tiling(region, 3000, random);
      ASSERT_TRUE(is_tiling(packed(boxes, rank), region));
      ASSERT_FALSE(find_miscount(packed(boxes, rank), region));
      const auto hurt = std::find_if(boxes.begin(), boxes.end(), [](const Box& box) {
        return !box.empty() && box.extent(0) > 1;
      });
      const Box whole = *hurt;
      hurt->set(0, whole.begin(0) + 1, whole.end(0));
      ASSERT_FALSE(is_tiling(packed(boxes, rank), region));
      *hurt = whole;
      boxes.push_back(Box(whole.begin(), whole.end()));
      ASSERT_FALSE(is_tiling(packed(boxes, rank), region));
    }
  }
}

TEST(Cover, ProvesWhatNoPlaneCuts) {
  // Three families of rods, each along another dim, and the cubes between them: every plane has
  // many rods on both sides of it.
  constexpr std::int64_t kSide = 20;
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < kSide; i += 2) {
    for (std::int64_t j = 0; j < kSide; j += 2) {
      boxes.emplace_back(Index{0, i, j + 1}, Index{kSide, i + 1, j + 2});
      boxes.emplace_back(Index{j + 1, 0, i}, Index{j + 2, kSide, i + 1});
      boxes.emplace_back(Index{i, j + 1, 0}, Index{i + 1, j + 2, kSide});
      for (std::int64_t k = 0; k < kSide; k += 2) {
        boxes.emplace_back(Index{i, j, k}, Index{i + 1, j + 1, k + 1});
        boxes.emplace_back(Index{i + 1, j + 1, k + 1}, Index{i + 2, j + 2, k + 2});
      }
    }
  }
  const Box region = Box::whole(Shape::filled(3, kSide));
  EXPECT_TRUE(is_tiling(packed(boxes, 3), region));
  boxes.pop_back();
  EXPECT_FALSE(is_tiling(packed(boxes, 3), region));
  boxes.push_back(Box({0, 0, 1}, {1, 1, 2}));
  EXPECT_FALSE(is_tiling(packed(boxes, 3), region));
}

TEST(Cover, CountsExactlyInHugeTensors) {
  // One element of 2^62 is missing: sums of doubles would not see it.
  const std::int64_t side = std::int64_t{1} << 31;
  const Box region = Box::whole({side, side});
  std::vector<Box> boxes = {Box({0, 0}, {side, side - 1}), Box({0, side - 1}, {side - 1, side})};
  EXPECT_FALSE(is_tiling(packed(boxes, 2), region));
  boxes.push_back(Box({side - 1, side - 1}, {side, side}));
  EXPECT_TRUE(is_tiling(packed(boxes, 2), region));
}

TEST(Cover, SubtractsBoxes) {
  RandomShardings random(7);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    const Box box = random_box(Box::whole(Shape::filled(rank, 5)), random);
    const Box hole = random_box(Box::whole(Shape::filled(rank, 5)), random);
    std::vector<Box> rest = subtract(box, hole);
    ASSERT_LE(rest.size(), std::max<std::size_t>(1, 2 * rank));
    rest.push_back(intersect(box, hole));
    ASSERT_FALSE(count_by_hand(rest, box)) << to_string(box) << to_string(hole);
    for (const Box& part : rest) ASSERT_TRUE(box.contains(part));
  }
}

}  // namespace
}  // namespace shardwise::detail
