#include "shardwise/shard/owned_tiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "testing/errors.h"
#include "testing/make_sharding.h"
#include "testing/random_boxes.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// On this mesh, by axes and parts of axes and any policy that allows the shape.
Sharding any_sharding(RandomShardings& random, const Mesh& mesh, const Shape& shape) {
  return random.sharding(mesh, random.spec_with_parts(mesh, shape.size()), shape);
}

std::vector<std::string> parts_of(const OwnedTiles& tiles) {
  std::vector<std::string> parts;
  for (const OwnedTile& owned : tiles) parts.push_back(to_string(owned.part));
  return parts;
}

TEST(OwnedTiles, AreThoseThatOverlapTheRegion) {
  const Sharding sharding = make_sharding("data,model", "data=4,model=2");
  EXPECT_THAT(parts_of(OwnedTiles(sharding, {10, 6}, Box({4, 2}, {8, 4}))),
              ElementsAre("[4:6, 2:3]", "[4:6, 3:4]", "[6:8, 2:3]", "[6:8, 3:4]"));
  EXPECT_THAT(parts_of(OwnedTiles::of_rows(sharding, {10, 6}, 8, 10)),
              ElementsAre("[8:9, 0:3]", "[8:9, 3:6]", "[9:10, 0:3]", "[9:10, 3:6]"));
  EXPECT_THAT(parts_of(OwnedTiles(sharding, {10, 6}, Box({4, 2}, {4, 4}))), ElementsAre());
  EXPECT_THAT(parts_of(OwnedTiles(make_sharding("", "4"), {})), ElementsAre("[]"));
}

TEST(OwnedTiles, NameWhoHoldsAnElement) {
  const Sharding sharding = make_sharding("-,1", "4,2@7,6,5,4,3,2,1,0");
  const OwnedTile owned = *OwnedTiles(sharding, {2, 3}, Box({1, 2}, {2, 3})).begin();
  EXPECT_EQ(owned.box, Box({0, 2}, {2, 3}));
  EXPECT_EQ(owned.part, Box({1, 2}, {2, 3}));
  EXPECT_THAT(positions_of(sharding, owned.tile), ElementsAre(1, 3, 5, 7));
}

TEST(OwnedTiles, AgreeWithEveryDevicesBox) {
  RandomShardings random(41);
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = random.shape(static_cast<std::size_t>(random.draw(0, 3)));
    const Sharding sharding = any_sharding(random, random.mesh(), shape);
    const Box region = round % 3 == 0 ? Box::whole(shape) : random_box(Box::whole(shape), random);
    SCOPED_TRACE(sharding.to_string() + " of " + to_string(shape) + " in " + to_string(region));
    std::vector<int> seen(static_cast<std::size_t>(sharding.mesh().size()), 0);
    std::int64_t elements = 0;
    for (const OwnedTile& owned : OwnedTiles(sharding, shape, region)) {
      ASSERT_FALSE(owned.part.empty());
      ASSERT_EQ(owned.part, intersect(owned.box, region));
      elements += owned.part.num_elements();
      for (const std::int64_t position : positions_of(sharding, owned.tile)) {
        ASSERT_EQ(sharding.box_at(position, shape), owned.box);
        ++seen[static_cast<std::size_t>(position)];
      }
    }
    // With the tiles disjoint, as Sharding's own tests prove, that is each element once.
    ASSERT_EQ(elements, region.num_elements());
    for (std::int64_t position = 0; position < sharding.mesh().size(); ++position) {
      const bool overlaps = !intersect(sharding.box_at(position, shape), region).empty();
      ASSERT_EQ(seen[static_cast<std::size_t>(position)], overlaps ? 1 : 0);
    }
  }
}

TEST(OwnedTiles, CostNothingForDevicesThatDoNotMatter) {
  // A list of a million million devices, or a walk over the empty tiles, would not end.
  const std::int64_t side = std::int64_t{1} << 20;
  const Sharding sharding(Mesh({{"a", side}, {"b", side}}), PartitionSpec{{"a"}, {"b"}});
  const Shape shape{side * 3, 5};
  const OwnedTiles last(sharding, shape, Box({side * 3 - 1, 4}, {side * 3, 5}));
  EXPECT_EQ((*last.begin()).tile, Index({side - 1, 4}));
  std::int64_t tiles = 0;
  for (const OwnedTile& owned : OwnedTiles::of_rows(sharding, shape, side, side + 4)) {
    ++tiles;
    EXPECT_LE(owned.box.extent(0), 3);
  }
  EXPECT_EQ(tiles, 2 * 5);
}

TEST(OwnedTiles, RefuseWhatIsNotInTheTensor) {
  const Sharding sharding = make_sharding("0,-", "2");
  const auto message = [&](auto ask) { return message_of(ErrorCode::invalid_argument, ask); };
  EXPECT_THAT(message([&] {
                OwnedTiles(sharding, {4, 4}, Box({0, 0}, {4, 5}));
              }),
              AllOf(HasSubstr("[0:4, 0:5]"), HasSubstr("[4, 4]")));
  EXPECT_THAT(message([&] { OwnedTiles(sharding, {4, 4}, Box({0}, {4})); }), HasSubstr("[0:4]"));
  EXPECT_THAT(message([&] { OwnedTiles(sharding, {4}); }), HasSubstr("2 extents"));
  EXPECT_THAT(message([&] { OwnedTiles(sharding, {4, -1}); }), HasSubstr("-1"));
  EXPECT_THAT(message([&] { OwnedTiles::of_rows(sharding, {4, 4}, 3, 5); }), HasSubstr("[3:5]"));
  EXPECT_THAT(message([&] { OwnedTiles::of_rows(sharding, {4, 4}, 3, 2); }), HasSubstr("[3:2]"));
  EXPECT_THAT(message([&] { OwnedTiles::of_rows(make_sharding("", "2"), {}, 0, 1); }),
              HasSubstr("[]"));
}

}  // namespace
}  // namespace shardwise
