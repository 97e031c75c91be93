#include "shardwise/shard/detail/cover.h"

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
    const auto found = find_miscount(boxes, region);
    const auto expected = count_by_hand(boxes, region);
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
  const auto found = find_miscount(boxes, region);
  ASSERT_TRUE(found);
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
  EXPECT_FALSE(find_miscount(boxes, Box(Index::filled(kMaxRank, 0), shape)));
  boxes.erase(boxes.begin() + 500);
  const auto found = find_miscount(boxes, Box(Index::filled(kMaxRank, 0), shape));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->times, 0);
  EXPECT_EQ(found->element[0], 0);
  EXPECT_EQ(found->element[kMaxRank - 1], 1000);
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
