#include "shardwise/shard/detail/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "testing/random_shardings.h"

namespace shardwise::detail {
namespace {

using ::testing::ElementsAre;

TEST(Replicas, GroupsSourcesByBox) {
  const Box a({0}, {2}), b({0}, {3}), c({2}, {4}), empty({3}, {3});
  const std::vector<Piece> sources = {{7, c}, {8, a}, {9, empty}, {6, b}, {5, a}, {7, a}};
  const std::vector<Replicas> groups = group_replicas(sources);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].box, a);
  EXPECT_THAT(groups[0].sources, ElementsAre(1, 4, 5));
  EXPECT_EQ(groups[1].box, b);
  EXPECT_THAT(groups[1].sources, ElementsAre(3));
  EXPECT_EQ(groups[2].box, c);
  EXPECT_THAT(groups[2].sources, ElementsAre(0));
}

TEST(Replicas, ShareTheSendingEvenly) {
  // One box at four places, wanted at eight others: each sends twice.
  std::vector<Piece> sources, targets;
  for (DeviceId place = 0; place < 4; ++place) sources.push_back({place, Box::whole({10})});
  for (DeviceId place = 4; place < 12; ++place) targets.push_back({place, Box::whole({10})});
  std::vector<std::int64_t> senders;
  const TransferPlan plan(sources, targets);
  for (const Copy& copy : plan.copies()) senders.push_back(copy.source);
  EXPECT_THAT(senders, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
}

TEST(Replicas, OfWhichOneIsInPlaceSendNothing) {
  const Box all = Box::whole({10});
  const TransferPlan plan({{0, all}, {1, all}, {2, all}}, {{2, all}, {5, all}, {1, all}, {6, all}});
  std::vector<std::int64_t> senders;
  for (const Copy& copy : plan.copies()) senders.push_back(copy.source);
  // What stays in place is not sent, so 1 and 2 are as free as before.
  EXPECT_THAT(senders, ElementsAre(2, 0, 1, 1));
  EXPECT_EQ(plan.moved_elements(), 20);
}

TEST(Replicas, ThatOverlapInPartShareTheSendingToo) {
  // The first target makes source 0 busy, so that the second takes what it can from source 1.
  const TransferPlan plan({{0, Box({0}, {8})}, {1, Box({2}, {8})}},
                          {{5, Box({0}, {8})}, {6, Box({0}, {8})}});
  ASSERT_EQ(plan.copies().size(), 3u);
  EXPECT_EQ(plan.copies()[0].source, 0);
  EXPECT_EQ(plan.copies()[0].box, Box({0}, {8}));
  EXPECT_EQ(plan.copies()[1].source, 0);
  EXPECT_EQ(plan.copies()[1].box, Box({0}, {2}));
  EXPECT_EQ(plan.copies()[2].source, 1);
  EXPECT_EQ(plan.copies()[2].box, Box({2}, {8}));
}

TEST(Replicas, AreChosenAsByTheRuleOneByOne) {
  RandomShardings random(9);
  for (int round = 0; round < 1500; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 3));
    const Shape shape = random.shape(rank);
    const Sharding from = random.sharding(rank, shape), to = random.sharding(rank, shape);
    const TransferPlan plan = TransferPlan::reshard(from, to, shape);
    const std::vector<DistinctPiece> tiles = from.distinct_pieces(shape);
    std::vector<std::int64_t> sent(static_cast<std::size_t>(from.mesh().size()), 0);
    for (std::size_t t = 0; t < plan.targets().size(); ++t) {
      const Piece& target = plan.targets()[t];
      std::vector<std::int64_t> expected;
      for (const DistinctPiece& tile : tiles) {
        const std::int64_t elements = intersect(tile.box, target.box).num_elements();
        if (elements == 0) continue;
        std::int64_t best = tile.positions.front();
        for (const std::int64_t source : tile.positions) {
          if (sent[static_cast<std::size_t>(source)] < sent[static_cast<std::size_t>(best)]) {
            best = source;
          }
        }
        bool local = false;
        for (const std::int64_t source : tile.positions) {
          if (from.mesh().device_at(source) != target.place) continue;
          best = source;
          local = true;
        }
        if (!local) sent[static_cast<std::size_t>(best)] += elements;
        expected.push_back(best);
      }
      std::sort(expected.begin(), expected.end());
      std::vector<std::int64_t> found;
      for (const Copy& copy : plan.copies_to(static_cast<std::int64_t>(t))) {
        found.push_back(copy.source);
      }
      ASSERT_EQ(found, expected) << from.to_string() << " to " << to.to_string();
    }
  }
}

}  // namespace
}  // namespace shardwise::detail
