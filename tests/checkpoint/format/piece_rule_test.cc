#include "shardwise/checkpoint/detail/format/piece_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shardwise/shard/plan/transfer_plan.h"
#include "testing/random_shardings.h"

namespace shardwise::detail {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAreArray;

std::vector<Box> pieces_of(const PieceRule& rule, std::int64_t writer) {
  std::vector<Box> boxes;
  rule.add_pieces_of(writer, boxes);
  return boxes;
}

std::vector<WriterPiece> all_pieces(const PieceRule& rule, std::int64_t writers) {
  std::vector<WriterPiece> pieces;
  for (std::int64_t w = 0; w < writers; ++w) {
    for (const Box& box : pieces_of(rule, w)) pieces.push_back({w, box});
  }
  return pieces;
}

TEST(WriterMap, GivesEachDeviceOneWriter) {
  for (std::int64_t devices = 1; devices < 20; ++devices) {
    for (std::int64_t writers = 1; writers < 20; ++writers) {
      const WriterMap map = WriterMap::even(devices, writers);
      EXPECT_EQ(map.num_writers(), writers);
      EXPECT_EQ(map.num_devices(), devices);
      for (std::int64_t device = 0; device < devices; ++device) {
        const std::int64_t writer = map.writer_of(device);
        EXPECT_EQ(writer, device * writers / devices);
        EXPECT_LE(map.devices(writer).first, device);
        EXPECT_GT(map.devices(writer).second, device);
      }
    }
  }
}

TEST(PieceRule, TilesOfOneReplicaAreThePieces) {
  const WriterMap writers = WriterMap::even(4, 2);
  const Sharding sharding(Mesh::parse("x=4"), PartitionSpec::parse("x,-"));
  const Shape shape{10, 3};
  const PieceRule rule(writers, sharding, shape, 4, "w");
  EXPECT_THAT(pieces_of(rule, 0), ElementsAre(Box({0, 0}, {3, 3}), Box({3, 0}, {6, 3})));
  EXPECT_THAT(pieces_of(rule, 1), ElementsAre(Box({6, 0}, {9, 3}), Box({9, 0}, {10, 3})));
}

TEST(PieceRule, ReplicasShareALargeTensorByBytes) {
  const WriterMap writers = WriterMap::even(8, 4);
  const Sharding sharding = Sharding::replicated(Mesh::parse("x=8"), 2);
  const Shape shape{4096, 1024};  // 16 MiB
  const PieceRule rule(writers, sharding, shape, 4, "w");
  for (std::int64_t w = 0; w < 4; ++w) {
    EXPECT_THAT(pieces_of(rule, w), ElementsAre(Box({w * 1024, 0}, {(w + 1) * 1024, 1024})));
  }
  // With fewer rows than parts the longest dim is divided.
  const Shape wide{3, 4 << 20};
  const PieceRule columns(writers, sharding, wide, 4, "w");
  EXPECT_THAT(pieces_of(columns, 1), ElementsAre(Box({0, 1 << 20}, {3, 2 << 20})));
}

TEST(PieceRule, SmallTensorsSpreadOverTheReplicas) {
  const WriterMap writers = WriterMap::even(8, 8);
  const Sharding sharding = Sharding::replicated(Mesh::parse("x=8"), 1);
  const Shape shape{1000};
  std::vector<int> counts(8, 0);
  for (int t = 0; t < 800; ++t) {
    const PieceRule rule(writers, sharding, shape, 4, "layer" + std::to_string(t));
    const std::vector<WriterPiece> pieces = all_pieces(rule, 8);
    ASSERT_EQ(pieces.size(), 1u);
    EXPECT_EQ(pieces[0].box, Box::whole(shape));
    ++counts[static_cast<std::size_t>(pieces[0].writer)];
  }
  EXPECT_GT(*std::min_element(counts.begin(), counts.end()), 60);
}

TEST(PieceRule, OneWriterKeepsSmallTensorsWhole) {
  const Sharding sharding(Mesh::parse("x=4"), PartitionSpec::parse("x"));
  const WriterMap one, two = WriterMap::even(4, 2);
  const Shape small{100}, empty{0};
  EXPECT_THAT(pieces_of(PieceRule(one, sharding, small, 4, "w"), 0), ElementsAre(Box({0}, {100})));
  EXPECT_EQ(pieces_of(PieceRule(two, sharding, small, 4, "w"), 0).size(), 2u);
  EXPECT_THAT(pieces_of(PieceRule(one, sharding, empty, 4, "w"), 0), IsEmpty());
}

// Any mesh, order, spec, policy and shape, any writers: the pieces cover every element once, each
// is one of a device of its writer, and those in a box are found as well by asking for the box.
TEST(PieceRule, CoversEveryElementOnceByWhoHoldsIt) {
  RandomShardings random(7);
  std::int64_t divided = 0;
  for (int round = 0; round < 10'000; ++round) {
    const auto rank = static_cast<std::size_t>(random.draw(0, 3));
    Shape shape = random.shape(rank);
    const std::size_t element_bytes = std::size_t{1} << random.draw(0, 23);  // large without memory
    const Sharding sharding = random.sharding(rank, shape);
    const Mesh& mesh = sharding.mesh();
    DeviceId devices = 0;
    for (std::int64_t p = 0; p < mesh.size(); ++p) {
      devices = std::max(devices, mesh.device_at(p) + 1);
    }
    devices += random.draw(0, 3);
    WriterMap writers;
    if (random.draw(0, 5) != 0) writers = WriterMap::even(devices, random.draw(1, 9));
    if (random.draw(0, 2) == 0) {
      std::vector<std::int64_t> starts{0, devices};
      for (std::int64_t i = random.draw(0, 4); i > 0; --i)
        starts.push_back(random.draw(0, devices));
      std::sort(starts.begin(), starts.end());
      writers = WriterMap(starts);
    }
    SCOPED_TRACE(testing::Message()
                 << "round " << round << ": " << sharding.to_string() << " of " << to_string(shape)
                 << " x " << element_bytes << " bytes, " << writers.num_writers() << " writers");
    const PieceRule rule(writers, sharding, shape, element_bytes, "t" + std::to_string(round));
    const std::vector<WriterPiece> pieces = all_pieces(rule, writers.num_writers());
    std::vector<Box> boxes;
    const bool whole = pieces.size() == 1 && pieces[0].box == Box::whole(shape);
    for (const WriterPiece& piece : pieces) {
      boxes.push_back(piece.box);
      bool held = false;
      for (std::int64_t p = 0; p < mesh.size() && !held; ++p) {
        held = writers.writer_of(mesh.device_at(p)) == piece.writer &&
               sharding.box_at(p, shape).contains(piece.box);
      }
      EXPECT_TRUE(held || (whole && writers.num_writers() == 1)) << to_string(piece.box);
    }
    check_cover(boxes, shape);
    const auto tiles = static_cast<std::int64_t>(sharding.distinct_pieces(shape).size());
    if (std::ssize(pieces) > tiles) ++divided;

    if (Box::whole(shape).empty()) continue;
    for (int ask = 0; ask < 3; ++ask) {
      Box wanted;
      for (std::size_t d = 0; d < rank; ++d) {
        const std::int64_t begin = random.draw(0, shape[d] - 1);
        wanted.push_back(begin, random.draw(begin + 1, shape[d]));
      }
      std::vector<WriterPiece> expected, found;
      for (const WriterPiece& piece : pieces) {
        if (!intersect(piece.box, wanted).empty()) expected.push_back(piece);
      }
      rule.add_pieces_in(wanted, found);
      EXPECT_THAT(found, UnorderedElementsAreArray(expected)) << to_string(wanted);
    }
  }
  EXPECT_GT(divided, 300);
}

// Who holds more replicas of a large box writes more of it; nobody much more than his share.
TEST(PieceRule, SharesAreEven) {
  const Sharding sharding(Mesh::parse("data=12,model=2"), PartitionSpec::parse("-,model"));
  const Shape shape{100'000, 2000};
  const WriterMap writers = WriterMap::even(24, 5);
  const PieceRule rule(writers, sharding, shape, 4, "w");
  const double each = 100'000.0 * 2000 / 24;
  for (std::int64_t w = 0; w < 5; ++w) {
    std::int64_t elements = 0;
    for (const Box& box : pieces_of(rule, w)) elements += box.num_elements();
    const auto [first, end] = writers.devices(w);
    EXPECT_NEAR(static_cast<double>(elements), each * static_cast<double>(end - first), each / 100);
  }
}

}  // namespace
}  // namespace shardwise::detail
