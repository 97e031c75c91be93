#include "shardwise/shard/view/refines.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "testing/make_sharding.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

/// On this mesh, by axes and parts of axes and any policy that allows the shape.
Sharding any_sharding(RandomShardings& random, const Mesh& mesh, const Shape& shape) {
  return random.sharding(mesh, random.spec_with_parts(mesh, shape.size()), shape);
}

TEST(Refines, SaysWhetherBoxesLieInsideBoxes) {
  const struct {
    const char* name;
    Sharding fine, coarse;
    Shape shape;
    bool expected;
  } cases[] = {
      {"itself", make_sharding("a,b", "a=2,b=2"), make_sharding("a,b", "a=2,b=2"), {5, 5}, true},
      {"one more dim",
       make_sharding("a,b", "a=2,b=2"),
       make_sharding("a,-", "a=2,b=2"),
       {5, 5},
       true},
      {"and back", make_sharding("a,-", "a=2,b=2"), make_sharding("a,b", "a=2,b=2"), {5, 5}, false},
      {"a minor axis", make_sharding("a+b", "a=2,b=2"), make_sharding("a", "a=2,b=2"), {8}, true},
      {"a major axis", make_sharding("a+b", "a=2,b=2"), make_sharding("b", "a=2,b=2"), {8}, false},
      {"blocks that do not nest",
       make_sharding("a+b", "a=2,b=2"),
       make_sharding("a", "a=2,b=2"),
       {9},
       false},
      {"nested",
       make_sharding("a+b", "a=2,b=2", "nested"),
       make_sharding("a", "a=2,b=2"),
       {9},
       true},
      {"other axes", make_sharding("a", "a=2,b=2"), make_sharding("b", "a=2,b=2"), {8}, false},
      {"other devices", make_sharding("0", "2@0,1"), make_sharding("0", "2@0,2"), {8}, false},
      {"empty boxes on other devices",
       make_sharding("0", "2@0,1"),
       make_sharding("0", "2@0,2"),
       {1},
       true},
      {"fewer devices", make_sharding("0", "2@0,1"), make_sharding("-", "4"), {8}, true},
      {"another order", make_sharding("0", "4@[2,2]T(1,0)"), make_sharding("1", "2,2"), {8}, true},
      {"no elements", make_sharding("a", "a=2,b=2"), make_sharding("b", "a=2,b=2"), {0}, true},
      {"one element", make_sharding("0", "4"), make_sharding("0:(2)2", "4"), {1}, true},
      {"abstract", make_sharding("a+b", "a=2,b=2@?"), make_sharding("a", "a=2,b=2@?"), {8}, true},
      {"abstract, fewer", make_sharding("0", "2@?"), make_sharding("0", "4@?"), {8}, false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(refines(c.fine, c.coarse, c.shape), c.expected);
  }
}

bool refines_by_hand(const Sharding& fine, const Sharding& coarse, const Shape& shape) {
  for (std::int64_t p = 0; p < fine.mesh().size(); ++p) {
    const Box box = fine.box_at(p, shape);
    const auto place = coarse.mesh().position_of(fine.mesh().device_at(p));
    if (!box.empty() && !(place && coarse.box_at(*place, shape).contains(box))) return false;
  }
  return true;
}

TEST(Refines, AgreesWithEveryDevicesBoxes) {
  RandomShardings random(43);
  int yes = 0;
  for (int round = 0; round < 10000; ++round) {
    const Shape shape = random.shape(static_cast<std::size_t>(random.draw(0, 2)));
    const Mesh mesh = random.mesh();
    const Sharding fine = any_sharding(random, mesh, shape);
    const Sharding coarse =
        any_sharding(random, random.draw(0, 2) == 0 ? random.mesh() : mesh, shape);
    const bool expected = refines_by_hand(fine, coarse, shape);
    ASSERT_EQ(refines(fine, coarse, shape), expected)
        << fine.to_string() << " inside " << coarse.to_string() << " of " << to_string(shape);
    yes += expected && coarse.num_replicas() < coarse.mesh().size() ? 1 : 0;
  }
  EXPECT_GT(yes, 300);
}

TEST(Refines, DoesNotAskDeviceByDevice) {
  // Going through them would take years.
  const std::int64_t side = std::int64_t{1} << 20;
  const Mesh mesh({{"a", side}, {"b", side}, {"c", side}});
  const Mesh turned({{"c", side}, {"a", side}, {"b", side}},
                    DeviceOrder::transposed({side, side, side}, {2, 0, 1}));
  const Sharding coarse(mesh, PartitionSpec{{"a"}, {}});
  const Shape shape{side * side, side};
  for (const Mesh& other : {mesh, turned}) {
    EXPECT_TRUE(refines(Sharding(other, PartitionSpec{{"a", "b"}, {"c"}}), coarse, shape));
    EXPECT_FALSE(refines(Sharding(other, PartitionSpec{{"b", "a"}, {"c"}}), coarse, shape));
    EXPECT_FALSE(
        refines(Sharding(other, PartitionSpec{{"a", "b"}, {}}), coarse, {side * side + 1, side}));
  }
}

}  // namespace
}  // namespace shardwise
