#include "shardwise/shard/plan/detail/overlaps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "testing/random_boxes.h"
#include "testing/random_shardings.h"

namespace shardwise::detail {
namespace {

std::vector<std::uint32_t> sorted(std::span<const std::uint32_t> numbers) {
  std::vector<std::uint32_t> result(numbers.begin(), numbers.end());
  std::sort(result.begin(), result.end());
  return result;
}

TEST(Overlaps, AreThoseThatTryingAllFinds) {
  RandomShardings random(8);
  std::size_t found = 0;
  for (int round = 0; round < 400; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    const Box region = Box::whole(Shape::filled(rank, random.draw(1, 40)));
    std::vector<Box> sources = random_tiling(region, random.draw(0, 200), random);
    damage(sources, region, random.draw(0, 20), random);
    std::vector<Box> targets = random_tiling(region, random.draw(0, 100), random);
    damage(targets, region, random.draw(0, 20), random);
    const Overlaps overlaps(packed(sources, rank), packed(targets, rank));
    for (std::size_t t = 0; t < targets.size(); ++t) {
      std::vector<std::uint32_t> expected;
      for (std::size_t s = 0; s < sources.size(); ++s) {
        if (!intersect(sources[s], targets[t]).empty()) {
          expected.push_back(static_cast<std::uint32_t>(s));
        }
      }
      ASSERT_EQ(sorted(overlaps.of(t)), expected) << to_string(targets[t]);
      found += expected.size();
    }
  }
  EXPECT_GT(found, 10000u);
}

TEST(Overlaps, TakesNoBoxesAndEqualBoxes) {
  const PackedBoxes none(1), one = packed({Box({3}, {9})}, 1);
  EXPECT_TRUE(Overlaps(none, one).of(0).empty());
  const PackedBoxes equal = packed(std::vector<Box>(100, Box({2}, {4})), 1);
  EXPECT_EQ(Overlaps(equal, one).of(0).size(), 100u);
  EXPECT_EQ(Overlaps(one, equal).of(99).size(), 1u);
  EXPECT_EQ(Overlaps(equal, equal).of(50).size(), 100u);
  EXPECT_TRUE(Overlaps(equal, packed({Box({4}, {9})}, 1)).of(0).empty());
  EXPECT_TRUE(Overlaps(packed({Box({5}, {5})}, 1), one).of(0).empty());
}

}  // namespace
}  // namespace shardwise::detail
