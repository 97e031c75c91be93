#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "shardwise/shard/detail/axis_ref.h"
#include "shardwise/shard/shard_boxes.h"
#include "shardwise/shard/sharding.h"
#include "testing/errors.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Elements = std::vector<std::int64_t>;

/// As torch.chunk and XLA: as many elements as fit to each but the last.
std::vector<Elements> chunk(const Elements& all, std::int64_t ways) {
  std::int64_t block = 0;
  while (block * ways < static_cast<std::int64_t>(all.size())) ++block;
  std::vector<Elements> parts(static_cast<std::size_t>(ways));
  for (std::size_t i = 0; i < all.size(); ++i) {
    parts[i / static_cast<std::size_t>(block)].push_back(all[i]);
  }
  return parts;
}

/// One after another to the part that has least, in order of parts.
std::vector<Elements> deal(const Elements& all, std::int64_t ways) {
  std::vector<std::size_t> sizes(static_cast<std::size_t>(ways), 0);
  for (std::size_t i = 0; i < all.size(); ++i) ++sizes[i % static_cast<std::size_t>(ways)];
  std::vector<Elements> parts;
  std::size_t next = 0;
  for (const std::size_t size : sizes) {
    parts.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(next),
                       all.begin() + static_cast<std::ptrdiff_t>(next + size));
    next += size;
  }
  return parts;
}

/// The axes of one dim as the spec names them, and a position's coordinate along each, by hand.
struct Cuts {
  std::vector<std::int64_t> sizes, coordinates;

  Cuts(const Sharding& sharding, std::size_t dim, std::int64_t position) {
    const Mesh& mesh = sharding.mesh();
    for (const std::string& text : sharding.spec()[dim]) {
      const detail::AxisRef ref = detail::parse_axis_ref(text, "test");
      const std::size_t axis = mesh.axis_index(ref.axis);
      std::int64_t after = 1, whole = mesh.axes()[axis].size;
      for (std::size_t i = axis + 1; i < mesh.rank(); ++i) after *= mesh.axes()[i].size;
      const std::int64_t size = ref.size == 0 ? whole : ref.size;
      const std::int64_t rest = whole / (ref.pre * size);
      sizes.push_back(size);
      coordinates.push_back(position / after % whole / rest % size);
    }
  }
};

/// The elements of a dim that a position holds, element by element.
Elements held(const Sharding& sharding, std::size_t dim, std::int64_t position,
              std::int64_t extent) {
  const Cuts cuts(sharding, dim, position);
  Elements all(static_cast<std::size_t>(extent));
  std::iota(all.begin(), all.end(), 0);
  std::int64_t tile = 0, ways = 1;
  for (std::size_t i = 0; i < cuts.sizes.size(); ++i) {
    tile = tile * cuts.sizes[i] + cuts.coordinates[i];
    ways *= cuts.sizes[i];
  }
  const std::size_t t = static_cast<std::size_t>(tile);
  switch (sharding.policy().kind()) {
    case UnevenPolicy::Kind::ceil:
    case UnevenPolicy::Kind::strict:
      return chunk(all, ways)[t];
    case UnevenPolicy::Kind::balanced:
      return deal(all, ways)[t];
    case UnevenPolicy::Kind::nested_chunk:
      for (std::size_t i = 0; i < cuts.sizes.size(); ++i) {
        all = chunk(all, cuts.sizes[i])[static_cast<std::size_t>(cuts.coordinates[i])];
      }
      return all;
    case UnevenPolicy::Kind::tile_sizes: {
      const std::vector<std::int64_t>& sizes = sharding.policy().sizes()[dim];
      if (sizes.empty()) return all;
      const auto first = all.begin() + std::accumulate(sizes.begin(), sizes.begin() + tile, 0);
      return Elements(first, first + sizes[t]);
    }
  }
  return {};
}

TEST(Policies, AgreeWithElementByElementAssignment) {
  RandomShardings random(6);
  for (int round = 0; round < 100000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    const Shape shape = random.shape(rank);
    const Mesh mesh = random.mesh();
    const PartitionSpec spec = random.spec_with_parts(mesh, rank);
    const Sharding sharding = random.sharding(mesh, spec, shape);
    const std::int64_t position = random.draw(0, mesh.size() - 1);
    const Box box = sharding.box(mesh.device_at(position), shape);
    for (std::size_t dim = 0; dim < rank; ++dim) {
      const Elements elements = held(sharding, dim, position, shape[dim]);
      const std::int64_t tile = sharding.tile_index(position, dim);
      const TileRange range = sharding.tile_range(dim, tile, shape[dim]);
      const auto where = [&] {
        return sharding.to_string() + " of " + to_string(shape) + " at " + std::to_string(position);
      };
      ASSERT_EQ(box.begin(dim), range.begin) << where();
      ASSERT_EQ(box.end(dim), range.end) << where();
      ASSERT_EQ(box.extent(dim), static_cast<std::int64_t>(elements.size())) << where();
      ASSERT_LE(box.extent(dim), sharding.shard_shape(shape)[dim]) << where();
      if (elements.empty()) continue;
      ASSERT_EQ(box.begin(dim), elements.front()) << where();
      ASSERT_EQ(box.end(dim), elements.back() + 1) << where();
      ASSERT_EQ(sharding.tile_of(dim, elements.front(), shape[dim]), tile) << where();
      ASSERT_EQ(sharding.tile_of(dim, elements.back(), shape[dim]), tile) << where();
    }
  }
}

TEST(Policies, PositionsTilesAndReplicasSpellEachOther) {
  RandomShardings random(7);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 3));
    const Mesh mesh = random.mesh();
    const Sharding sharding(mesh, random.spec_with_parts(mesh, rank));
    for (std::int64_t p = 0; p < mesh.size(); ++p) {
      Index tile = Index::filled(rank, 0);
      for (std::size_t dim = 0; dim < rank; ++dim) tile[dim] = sharding.tile_index(p, dim);
      ASSERT_EQ(sharding.position_of(tile, sharding.replica_id(p)), p) << sharding.to_string();
    }
  }
}

TEST(Policies, ShardBoxesAreTheBoxesOneByOne) {
  RandomShardings random(8);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    const Shape shape = random.shape(rank);
    const Mesh mesh = random.mesh();
    const Sharding sharding = random.sharding(mesh, random.spec_with_parts(mesh, rank), shape);
    std::int64_t position = 0;
    for (const Box& box : ShardBoxes(sharding, shape)) {
      ASSERT_EQ(box, sharding.box_at(position, shape))
          << sharding.to_string() << " of " << to_string(shape) << " at " << position;
      ++position;
    }
    ASSERT_EQ(position, mesh.size());
  }
}

TEST(Policies, ATupleIsMergedByCeilAndNestedByChunk) {
  const Mesh mesh = Mesh::parse("2,2");
  const auto sizes = [&mesh](UnevenPolicy policy, std::int64_t extent) {
    const Sharding sharding(mesh, PartitionSpec::parse("0+1"), std::move(policy));
    std::vector<std::int64_t> all;
    for (std::int64_t p = 0; p < 4; ++p) all.push_back(sharding.box_at(p, {extent}).extent(0));
    return all;
  };
  EXPECT_THAT(sizes(UnevenPolicy::ceil(), 5), testing::ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(sizes(UnevenPolicy::nested_chunk(), 5), testing::ElementsAre(2, 1, 1, 1));
  EXPECT_THAT(sizes(UnevenPolicy::balanced(), 6), testing::ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(sizes(UnevenPolicy::tile_sizes({{0, 4, 1, 0}}), 5), testing::ElementsAre(0, 4, 1, 0));
}

TEST(Policies, RefuseShapesThatTheyDoNotAllow) {
  const Mesh mesh = Mesh::parse("data=4,model=2");
  const Sharding strict(mesh, PartitionSpec::parse("data+model,-"), UnevenPolicy::strict());
  EXPECT_EQ(strict.shard_shape({16, 3}), Shape({2, 3}));
  EXPECT_EQ(strict.shard_shape({0, 3}), Shape({0, 3}));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           strict.box_at(0, {12, 3});
                         }),
              AllOf(HasSubstr("dim 0 of shape [12, 3]"), HasSubstr("\"data+model\", 8 ways"),
                    HasSubstr("8 or 16")));
  EXPECT_THROW(ShardBoxes(strict, {12, 3}), Error);
  const Sharding sizes(mesh, PartitionSpec::parse("model"), UnevenPolicy::tile_sizes({{3, 4}}));
  EXPECT_EQ(sizes.shard_shape({7}), Shape({4}));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { sizes.box_at(0, {8}); }),
              HasSubstr("the sum of the tile sizes"));
  EXPECT_THAT(
      message_of(
          ErrorCode::invalid_argument,
          [&] {
            Sharding(mesh, PartitionSpec::parse("model"), UnevenPolicy::tile_sizes({{3, 4, 5}}));
          }),
      AllOf(HasSubstr("3 tile sizes"), HasSubstr("needed are 2")));
  EXPECT_THROW(UnevenPolicy::tile_sizes({{1, -1}}), Error);
  EXPECT_THROW(UnevenPolicy::tile_sizes({{INT64_MAX, 1}}), Error);
}

TEST(Policies, DifferentPoliciesAreDifferentPlacements) {
  const auto cut = [](const char* spec, UnevenPolicy policy) {
    return Sharding(Mesh::parse("a=2,b=2"), PartitionSpec::parse(spec), std::move(policy));
  };
  EXPECT_FALSE(cut("a", UnevenPolicy::ceil()) == cut("a", UnevenPolicy::balanced()));
  EXPECT_FALSE(cut("a", UnevenPolicy::ceil()) == cut("a", UnevenPolicy::strict()));
  EXPECT_FALSE(cut("a+b", UnevenPolicy::ceil()) == cut("a+b", UnevenPolicy::nested_chunk()));
  // Where the policy cannot matter it does not.
  EXPECT_TRUE(cut("a", UnevenPolicy::ceil()) == cut("a", UnevenPolicy::nested_chunk()));
  EXPECT_TRUE(cut("-", UnevenPolicy::strict()) == cut("-", UnevenPolicy::balanced()));
}

TEST(Policies, TextGoesBothWays) {
  for (const char* text :
       {"ceil", "strict", "nested_chunk", "balanced", "sizes:3+2,-,0+0", "sizes:"}) {
    EXPECT_EQ(UnevenPolicy::parse(text).to_string(), text);
    EXPECT_EQ(UnevenPolicy::parse(UnevenPolicy::parse(text).to_string()),
              UnevenPolicy::parse(text));
  }
  EXPECT_EQ(UnevenPolicy::parse("nested"), UnevenPolicy::nested_chunk());
  for (const char* text : {"", "even", "sizes", "sizes:a", "sizes:1+-1", "sizes:1,,2"}) {
    EXPECT_THROW(UnevenPolicy::parse(text), Error) << text;
  }
}

TEST(SubAxes, CutAsTheSameAxisSplitInTwo) {
  const Sharding parts(Mesh::parse("x=8,y=2"), PartitionSpec::parse("x:(4)2,y+x:(1)2"));
  const Sharding split(Mesh::parse("x1=2,x2=2,x3=2,y=2"), PartitionSpec::parse("x3,y+x1"));
  EXPECT_TRUE(parts == split);
  EXPECT_EQ(parts.num_replicas(), 2);
  EXPECT_EQ(std::hash<Sharding>()(parts), std::hash<Sharding>()(split));
}

TEST(SubAxes, RefuseWhatIsNoPart) {
  const struct {
    const char* spec;
    const char* found;
  } cases[] = {
      {"x:(3)2", "no part (3)2"},      {"x:(4)4", "no part (4)4"},
      {"x:(1)4,x:(2)2", "used twice"}, {"x:(1)2,x", "used twice"},
      {"x:(2)2,x:(2)2", "used twice"}, {"x:(9223372036854775807)2", "no part"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.spec);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] { Sharding(Mesh::parse("x=8"), PartitionSpec::parse(c.spec)); }),
                HasSubstr(c.found));
  }
  for (const char* text : {"x:2", "x:(2)", "x:(0)2", "x:(2)0", "x:()2", ":(2)2", "x:(2)2)"}) {
    EXPECT_THROW(PartitionSpec::parse(text), Error) << text;
  }
}

TEST(Policies, HashesOfEqualShardingsAreEqual) {
  RandomShardings random(9);
  int equal = 0, collisions = 0;
  for (int round = 0; round < 40000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 2));
    const Sharding a = random.sharding(rank), b = random.sharding(rank);
    const bool same_hash = std::hash<Sharding>()(a) == std::hash<Sharding>()(b);
    if (a == b) {
      ASSERT_TRUE(same_hash) << a.to_string() << " and " << b.to_string();
      ++equal;
    } else {
      collisions += same_hash ? 1 : 0;
    }
  }
  EXPECT_GT(equal, 100);
  EXPECT_LT(collisions, 100);
}

TEST(Sharding, OfAMillionDevicesIsEqualWithoutLookingAtThem) {
  const std::int64_t side = std::int64_t{1} << 30;
  const Sharding a(Mesh({{"x", side}, {"y", side}}), PartitionSpec::parse("y,x"));
  const Sharding b(Mesh({{"p", side}, {"q", side}}, DeviceOrder::transposed({side, side}, {1, 0})),
                   PartitionSpec::parse("p,q"));
  EXPECT_TRUE(a == b);
  EXPECT_EQ(std::hash<Sharding>()(a), std::hash<Sharding>()(b));
  EXPECT_FALSE(a == Sharding(b.mesh(), PartitionSpec::parse("q,p")));
}

}  // namespace
}  // namespace shardwise
