#include "shardwise/shard/plan/detail/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "testing/random_boxes.h"
#include "testing/random_shardings.h"

namespace shardwise::detail {
namespace {

TEST(Shares, AreOfTheFirstBoxThatHoldsEachElement) {
  RandomShardings random(17);
  int complete = 0, lacking = 0;
  for (int round = 0; round < 600; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 3));
    const Box space = Box::whole(Shape::filled(rank, 9));
    const Box region = random_box(space, random);
    std::vector<Box> boxes = random_tiling(space, random.draw(0, 60), random);
    damage(boxes, space, random.draw(0, 30), random);
    const Shares shares = share_out(packed(boxes, rank), region);
    std::optional<Index> missing;
    std::size_t elements = 0;
    for (const Index& element : indices_of(region)) {
      const auto first = std::find_if(boxes.begin(), boxes.end(),
                                      [&](const Box& box) { return holds(box, element); });
      const auto giver = std::find_if(shares.shares.begin(), shares.shares.end(),
                                      [&](const Share& s) { return holds(s.box, element); });
      if (first == boxes.end()) {
        if (!missing) missing = element;
        ASSERT_TRUE(giver == shares.shares.end());
        continue;
      }
      ++elements;
      ASSERT_TRUE(giver != shares.shares.end());
      ASSERT_EQ(giver->giver, first - boxes.begin());
    }
    ASSERT_EQ(shares.missing, missing);
    ++(missing ? lacking : complete);
    for (const Share& share : shares.shares) {
      ASSERT_TRUE(region.contains(share.box));
      elements -= static_cast<std::size_t>(share.box.num_elements());
    }
    ASSERT_EQ(elements, 0u);  // nothing is given twice
  }
  EXPECT_GT(complete, 100);
  EXPECT_GT(lacking, 100);
}

TEST(Shares, AreNotInMorePartsThanNeeded) {
  // 1,000 bands that touch: space is cut many times, but no band's share is.
  PackedBoxes bands(2);
  for (std::int64_t i = 0; i < 1000; ++i) bands.push_back(Box({0, i}, {1 + i, i + 1}));
  const Shares shares = share_out(bands, Box({0, 0}, {1000, 1000}));
  EXPECT_EQ(shares.shares.size(), 1000u);
  EXPECT_EQ(shares.missing, Index({1, 0}));
}

}  // namespace
}  // namespace shardwise::detail
