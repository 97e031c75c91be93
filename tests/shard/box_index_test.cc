#include "shardwise/shard/detail/box_index.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "testing/random_boxes.h"
#include "testing/random_shardings.h"

namespace shardwise::detail {
namespace {

TEST(BoxIndex, FindsWhatTryingAllFinds) {
  RandomShardings random(8);
  std::size_t found = 0;
  for (int round = 0; round < 600; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    const Box region = Box::whole(Shape::filled(rank, random.draw(1, 40)));
    std::vector<Box> boxes = random_tiling(region, random.draw(0, 60), random);
    damage(boxes, region, random.draw(0, 20), random);
    const BoxIndex index(boxes);
    for (int query = 0; query < 20; ++query) {
      const Box box = random_box(region, random);
      std::vector<std::int64_t> expected;
      for (std::size_t i = 0; i < boxes.size(); ++i) {
        if (!intersect(boxes[i], box).empty()) expected.push_back(static_cast<std::int64_t>(i));
      }
      ASSERT_EQ(index.overlapping(box), expected) << to_string(box);
      found += expected.size();
    }
  }
  EXPECT_GT(found, 10000u);
}

TEST(BoxIndex, TakesNoBoxesAndEqualBoxes) {
  EXPECT_TRUE(BoxIndex({}).overlapping(Box({0}, {9})).empty());
  const std::vector<Box> equal(100, Box({2}, {4}));
  EXPECT_EQ(BoxIndex(equal).overlapping(Box({3}, {9})).size(), 100u);
  EXPECT_TRUE(BoxIndex(equal).overlapping(Box({4}, {9})).empty());
  const std::vector<Box> empty(3, Box({2}, {2}));
  EXPECT_TRUE(BoxIndex(empty).overlapping(Box({0}, {9})).empty());
}

}  // namespace
}  // namespace shardwise::detail
