#include "shardwise/shard/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "shardwise/shard/notation/xla_sharding.h"
#include "testing/errors.h"
#include "testing/make_sharding.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Sharding, AnswersAsInTheHeader) {
  const Sharding sharding = make_sharding("data,model", "data=4,model=2");
  EXPECT_EQ(sharding.box(5, {10, 6}), Box({6, 3}, {9, 6}));
  EXPECT_EQ(sharding.shard_shape({10, 6}), Shape({3, 3}));
  EXPECT_EQ(sharding.to_string(), "data,model on data=4,model=2");
  EXPECT_EQ(sharding.tiles(0), 4);
  EXPECT_EQ(sharding.tile_index(5, 0), 2);
  EXPECT_EQ(sharding.num_replicas(), 1);
}

TEST(Sharding, CutsIntoCeilBlocks) {
  const struct {
    const char* name;
    std::int64_t extent, ways;
    std::vector<std::pair<std::int64_t, std::int64_t>> tiles;
  } cases[] = {
      {"even", 8, 4, {{0, 2}, {2, 4}, {4, 6}, {6, 8}}},
      {"short last", 9, 4, {{0, 3}, {3, 6}, {6, 9}, {9, 9}}},
      {"short", 7, 3, {{0, 3}, {3, 6}, {6, 7}}},
      {"fewer elements than tiles", 2, 4, {{0, 1}, {1, 2}, {2, 2}, {2, 2}}},
      {"nothing", 0, 2, {{0, 0}, {0, 0}}},
      {"one", 5, 1, {{0, 5}}},
      {"near the end of int64",
       INT64_MAX,
       2,
       {{0, INT64_MAX / 2 + 1}, {INT64_MAX / 2 + 1, INT64_MAX}}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const Sharding sharding(Mesh::line(c.ways), PartitionSpec{{"devices"}});
    for (std::int64_t i = 0; i < c.ways; ++i) {
      const auto& [begin, end] = c.tiles[static_cast<std::size_t>(i)];
      EXPECT_EQ(sharding.box(i, {c.extent}), Box({begin}, {end}));
    }
  }
  // Enough devices that the last tiles would begin past the end of int64.
  const std::int64_t devices = std::int64_t{3} << 61;
  const Sharding wide(Mesh::line(devices), PartitionSpec{{"devices"}});
  EXPECT_EQ(wide.box(devices - 1, {INT64_MAX}), Box({INT64_MAX}, {INT64_MAX}));
  EXPECT_EQ(wide.box(devices / 2, {INT64_MAX}), Box({devices}, {devices + 2}));
}

TEST(Sharding, MergesTheAxesOfOneDimMajorFirst) {
  const Sharding ab = make_sharding("a+b", "a=2,b=3"), ba = make_sharding("b+a", "a=2,b=3");
  for (std::int64_t device = 0; device < 6; ++device) {
    const std::int64_t a = device / 3, b = device % 3;
    EXPECT_EQ(ab.tile_index(device, 0), a * 3 + b);
    EXPECT_EQ(ba.tile_index(device, 0), b * 2 + a);
  }
  // 5 over 2 x 2 merged: 2, 2, 1, 0, where cutting axis by axis would give 2, 1, 1, 1.
  const Sharding merged = make_sharding("a+b", "a=2,b=2");
  EXPECT_EQ(merged.box(1, {5}), Box({2}, {4}));
  EXPECT_EQ(merged.box(2, {5}), Box({4}, {5}));
  EXPECT_EQ(merged.box(3, {5}), Box({5}, {5}));
}

TEST(Sharding, OfAScalarIsReplicated) {
  const Sharding sharding = make_sharding("", "4@9,7,5,3");
  EXPECT_TRUE(sharding.is_fully_replicated());
  EXPECT_EQ(sharding.box(7, {}), Box());
  EXPECT_EQ(sharding.num_replicas(), 4);
  EXPECT_EQ(sharding.replica_id(1), 1);
  EXPECT_EQ(xla_replica_id(sharding, 1), 2);
  EXPECT_EQ(sharding, Sharding::replicated(Mesh::parse("2,2@3,5,7,9"), 0));
  ASSERT_EQ(sharding.distinct_pieces({}).size(), 1u);
  EXPECT_THAT(sharding.distinct_pieces({})[0].positions, ElementsAre(0, 1, 2, 3));
}

TEST(Sharding, RefusesSpecsThatDoNotFitTheMesh) {
  const struct {
    const char* name;
    const char* spec;
    ErrorCode code;
    const char* message;
  } cases[] = {
      {"unknown axis", "data,pipe", ErrorCode::no_such_name, "dim 1"},
      {"the axes there are", "pipe", ErrorCode::no_such_name, "data=4,model=2"},
      {"number out of range", "2", ErrorCode::no_such_name, "\"2\""},
      {"twice in one dim", "data+data", ErrorCode::invalid_argument, "dim 0: axis \"data\""},
      {"twice", "data,-,data", ErrorCode::invalid_argument, "dim 2: axis \"data\" is used twice"},
      {"by name and number", "model,1", ErrorCode::invalid_argument, "dim 1: axis \"model\""},
      {"rank", "-,-,-,-,-,-,-,-,-,-,-,-,-,-,-,-,-", ErrorCode::invalid_argument, "rank 17"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(message_of(c.code, [&] { make_sharding(c.spec, "data=4,model=2"); }),
                AllOf(HasSubstr(c.message), HasSubstr(c.spec)));
  }
}

TEST(Sharding, RefusesShapesAndDevicesThatDoNotFit) {
  const Sharding sharding = make_sharding("a,-", "a=2@7,3");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { sharding.shard_shape({4}); }),
              AllOf(HasSubstr("[4]"), HasSubstr("\"a,-\""), HasSubstr("2 extents")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           sharding.box(7, {4, 4, 4});
                         }),
              AllOf(HasSubstr("[4, 4, 4]"), HasSubstr("2 extents")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           sharding.box_at(0, {4, -1});
                         }),
              HasSubstr("[4, -1]"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           sharding.distinct_pieces({-1, 0});
                         }),
              HasSubstr("[-1, 0]"));
  EXPECT_THAT(message_of(ErrorCode::not_found,
                         [&] {
                           sharding.box(0, {4, 4});
                         }),
              AllOf(HasSubstr("device 0"), HasSubstr("2 devices")));
}

TEST(Sharding, EqualityComparesPlacement) {
  const struct {
    const char* name;
    const char *a_spec, *a_mesh, *b_spec, *b_mesh;
    bool equal;
  } cases[] = {
      {"split axis", "a+b", "a=2,b=2", "c", "c=4", true},
      {"axes in another order", "b+a", "a=2,b=2", "c", "c=4", false},
      {"size-1 axis", "a", "a=1,b=2", "-", "a=1,b=2", true},
      {"size-1 axis inside", "a+x+b", "a=2,x=1,b=2", "c", "c=4", true},
      {"name and number", "a", "a=2", "0", "a=2", true},
      {"unused axes split", "a,-", "a=2,b=4", "a,-", "a=2,b=2,c=2", true},
      {"unused axes on the other side", "a", "a=2,b=2", "a", "b=2,a=2", false},
      {"unused axes on the other side, devices to match", "a", "a=2,b=2", "a", "b=2,a=2@0,2,1,3",
       true},
      {"another dim", "a,-", "a=2", "-,a", "a=2", false},
      {"another rank", "-", "a=2", "-,-", "a=2", false},
      {"fewer devices", "-", "a=2", "-", "a=4", false},
      {"as many tiles, more devices", "a", "a=2,b=2", "a", "a=2", false},
      {"device order of replicas", "-", "a=2", "-", "a=2@1,0", true},
      {"device order of tiles", "a", "a=2", "a", "a=2@1,0", false},
      {"other devices", "-", "a=2", "-", "a=2@0,5", false},
      {"two permuted meshes", "a", "a=2,b=2@3,1,2,0", "a", "a=2,b=2@1,3,0,2", true},
      {"digits that only look alike", "a+c", "a=2,b=2,c=2", "a+b", "a=2,b=2,c=2", false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const Sharding a = make_sharding(c.a_spec, c.a_mesh), b = make_sharding(c.b_spec, c.b_mesh);
    EXPECT_EQ(a == b, c.equal);
    EXPECT_EQ(b == a, c.equal);
    EXPECT_TRUE(a == a);
  }
}

/// A device's coordinates and tiles, counted by hand from the mesh's axes and the spec's names.
struct ByHand {
  ByHand(const Sharding& sharding, const Shape& shape, std::int64_t position) {
    const Mesh& mesh = sharding.mesh();
    std::vector<std::int64_t> coordinates(mesh.rank());
    for (std::size_t axis = mesh.rank(); axis-- > 0;) {
      coordinates[axis] = position % mesh.axes()[axis].size;
      position /= mesh.axes()[axis].size;
    }
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      std::int64_t tile = 0, ways = 1;
      for (const std::string& name : sharding.spec()[dim]) {
        const std::size_t axis = mesh.axis_index(name);
        tile = tile * mesh.axes()[axis].size + coordinates[axis];
        ways *= mesh.axes()[axis].size;
      }
      std::int64_t block = 0;
      while (block * ways < shape[dim]) ++block;
      tiles.push_back(tile);
      blocks.push_back(block);
    }
  }

  bool owns(const Index& element) const {
    for (std::size_t dim = 0; dim < element.size(); ++dim) {
      if (element[dim] / blocks[dim] != tiles[dim]) return false;
    }
    return true;
  }

  Index tiles;
  Shape blocks;
};

TEST(Sharding, AgreesWithElementByElementAssignment) {
  RandomShardings random(4);
  for (int round = 0; round < 4000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    const Sharding sharding = random.sharding(rank);
    const Shape shape = random.shape(rank);
    const Mesh& mesh = sharding.mesh();
    SCOPED_TRACE(sharding.to_string() + " of " + to_string(shape));
    std::vector<ByHand> by_hand;
    for (std::int64_t p = 0; p < mesh.size(); ++p) by_hand.emplace_back(sharding, shape, p);
    std::map<std::vector<std::int64_t>, std::vector<std::int64_t>> owners;  // by tile
    for (std::int64_t p = 0; p < mesh.size(); ++p) {
      const ByHand& expected = by_hand[static_cast<std::size_t>(p)];
      const Box box = sharding.box(mesh.device_at(p), shape);
      ASSERT_EQ(sharding.shard_shape(shape), expected.blocks);
      std::int64_t owned = 0;
      for (const Index& element : indices_of(Box::whole(shape))) {
        ASSERT_EQ(holds(box, element), expected.owns(element)) << to_string(element);
        owned += expected.owns(element) ? 1 : 0;
      }
      ASSERT_EQ(box.num_elements(), owned);
      ASSERT_TRUE(Box::whole(shape).contains(box));
      for (std::size_t dim = 0; dim < rank; ++dim) {
        ASSERT_EQ(sharding.tile_index(p, dim), expected.tiles[dim]);
        ASSERT_TRUE(box.extent(dim) > 0 || box.begin(dim) == shape[dim]);
      }
      std::int64_t earlier = 0, smaller = 0, replicas = 0;
      for (std::int64_t other = 0; other < mesh.size(); ++other) {
        if (by_hand[static_cast<std::size_t>(other)].tiles != expected.tiles) continue;
        ++replicas;
        earlier += other < p ? 1 : 0;
        smaller += mesh.device_at(other) < mesh.device_at(p) ? 1 : 0;
      }
      ASSERT_EQ(sharding.num_replicas(), replicas);
      ASSERT_EQ(sharding.replica_id(p), earlier);
      ASSERT_EQ(xla_replica_id(sharding, p), smaller);
      ASSERT_EQ(sharding.is_fully_replicated(), replicas == mesh.size());
      if (owned > 0) {
        owners[{expected.tiles.begin(), expected.tiles.end()}].push_back(p);
      }
    }
    const std::vector<DistinctPiece> pieces = sharding.distinct_pieces(shape);
    ASSERT_EQ(pieces.size(), owners.size());
    std::size_t i = 0;
    for (const auto& [tile, positions] : owners) {  // a map goes through the tiles row-major
      ASSERT_EQ(pieces[i].positions, positions);
      ASSERT_EQ(pieces[i].box, sharding.box_at(positions.front(), shape));
      ++i;
    }
  }
}

TEST(Sharding, EqualityAgreesWithTheBoxesOfManyShapes) {
  RandomShardings random(5);
  int equal = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 2));
    const Sharding a = random.sharding(rank), b = random.sharding(rank);
    // A shape that tells apart any two tilings of up to 24 tiles per dim.
    const Shape shape = Shape::filled(rank, 5040 * 23);
    bool same = a.mesh().size() == b.mesh().size();
    for (std::int64_t p = 0; same && p < a.mesh().size(); ++p) {
      const DeviceId device = a.mesh().device_at(p);
      same = b.mesh().position_of(device) && a.box(device, shape) == b.box(device, shape);
    }
    ASSERT_EQ(a == b, same) << a.to_string() << " and " << b.to_string();
    ASSERT_EQ(b == a, same);
    if (same && a.mesh().axes().size() != b.mesh().axes().size()) ++equal;
  }
  EXPECT_GT(equal, 50);  // enough pairs are equal under different spellings
}

TEST(Sharding, ListsEachDistinctPieceOnceWithItsHolders) {
  // As in pytorch/xla#7919, where every copy of a replicated piece was dropped.
  const std::vector<DistinctPiece> pieces = make_sharding("-,1", "4,2").distinct_pieces({2, 2});
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].box, Box({0, 0}, {2, 1}));
  EXPECT_THAT(pieces[0].positions, ElementsAre(0, 2, 4, 6));
  EXPECT_EQ(pieces[1].box, Box({0, 1}, {2, 2}));
  EXPECT_THAT(pieces[1].positions, ElementsAre(1, 3, 5, 7));
}

TEST(Sharding, OfATensorWithoutElementsHasNoPieces) {
  EXPECT_THAT(make_sharding("a,-", "a=2").distinct_pieces({4, 0}), IsEmpty());
  EXPECT_EQ(make_sharding("a,-", "a=2").box_at(1, {4, 0}), Box({2, 0}, {4, 0}));
}

}  // namespace
}  // namespace shardwise
