#include "shardwise/shard/plan/detail/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "shardwise/shard/plan/transfer_plan.h"
#include "testing/errors.h"
#include "testing/random_shardings.h"

namespace shardwise::detail {
namespace {

using ::testing::ElementsAre;

TEST(Replicas, GroupsSourcesByBox) {
  PackedBoxes boxes(1);
  for (const Box& box :
       {Box({2}, {4}), Box({0}, {2}), Box({3}, {3}), Box({0}, {3}), Box({0}, {2}), Box({0}, {2})}) {
    boxes.push_back(box);
  }
  const Replicas replicas = group_replicas(boxes);
  ASSERT_EQ(replicas.num_groups(), 3u);
  EXPECT_THAT(replicas.of(0), ElementsAre(0));
  EXPECT_THAT(replicas.of(1), ElementsAre(1, 4, 5));
  EXPECT_THAT(replicas.of(2), ElementsAre(3));
  EXPECT_EQ(group_replicas(PackedBoxes(1)).num_groups(), 0u);
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
  // Boxes that stay in place are not sent, so 1 and 2 are as free as before.
  EXPECT_THAT(senders, ElementsAre(2, 0, 1, 1));
  EXPECT_EQ(plan.moved_elements(), 20);
}

TEST(Replicas, ThatOverlapInPartShareTheSendingToo) {
  // The first target makes source 0 busy, so the second takes all it can from source 1.
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

TEST(Replicas, ThatAreNearerGiveFirst) {
  // Devices 0 and 1 are one process, 2 and 3 another of the same slice, 4 and 5 in another slice.
  std::vector<DeviceAttributes> devices;
  for (DeviceId id = 0; id < 6; ++id) {
    devices.push_back({.id = id, .slice_index = id / 4, .process = id / 2});
  }
  const PlanOptions options{.topology = Topology(devices)};
  const Box all = Box::whole({10});
  const auto sender = [&](std::vector<DeviceId> from, DeviceId to) {
    std::vector<Piece> sources;
    for (const DeviceId place : from) sources.push_back({place, all});
    return from[static_cast<std::size_t>(
        TransferPlan(sources, {{to, all}}, options).copies().front().source)];
  };
  EXPECT_EQ(sender({5, 3, 1, 0}, 0), 0);
  EXPECT_EQ(sender({5, 3, 1}, 0), 1);
  EXPECT_EQ(sender({5, 3, 2}, 0), 3);
  EXPECT_EQ(sender({5, 3, 2}, 1), 3);
  EXPECT_EQ(sender({2, 3, 5}, 4), 5);
  EXPECT_EQ(sender({3, 1}, 4), 3);

  // Within the slice the load is shared, and no further.
  const TransferPlan plan({{4, all}, {2, all}, {3, all}}, {{0, all}, {1, all}, {0, all}}, options);
  std::vector<std::int64_t> senders;
  for (const Copy& copy : plan.copies()) senders.push_back(copy.source);
  EXPECT_THAT(senders, ElementsAre(1, 2, 1));

  // The nearer source goes first also if boxes overlap in part.
  const TransferPlan cut({{4, Box({0}, {8})}, {1, Box({4}, {10})}}, {{0, all}}, options);
  EXPECT_EQ(cut.copies()[0].box, Box({0}, {4}));
  EXPECT_EQ(cut.copies()[1].box, Box({4}, {10}));
  EXPECT_THAT(message_of(ErrorCode::not_found,
                         [&] {
                           TransferPlan({{7, all}}, {{0, all}}, options);
                         }),
              ::testing::HasSubstr("7"));
}

TEST(Replicas, OfWhichThereAreManyShareTheSendingEvenly) {
  // 60 of 150 devices hold all: 60 of the others take it from one each, 30 more from the first.
  const Sharding from = Sharding::replicated(Mesh::line(60), 1);
  const Sharding to = Sharding::replicated(Mesh::line(150), 1);
  const TransferPlan plan = TransferPlan::reshard(from, to, {7});
  std::vector<int> sent(60, 0);
  for (const Copy& copy : plan.copies()) ++sent[static_cast<std::size_t>(copy.source)];
  // Copies from a device to itself are in the plan, too.
  for (std::size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(sent[i], i < 30 ? 3 : 2) << i;
}

TEST(Replicas, AreChosenAsByTheRuleOneByOne) {
  RandomShardings random(9);
  for (int round = 0; round < 1500; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 3));
    const Shape shape = random.shape(rank);
    const Sharding from = random.sharding(rank, shape), to = random.sharding(rank, shape);
    std::vector<DeviceAttributes> devices;
    for (DeviceId id = 0; id < 60; ++id) {
      devices.push_back({.id = id, .slice_index = random.draw(0, 1), .process = random.draw(0, 2)});
    }
    const Topology topology = round % 2 == 0 ? Topology() : Topology(devices);
    const TransferPlan plan = TransferPlan::reshard(from, to, shape, topology);
    const std::vector<DistinctPiece> tiles = from.distinct_pieces(shape);
    std::vector<std::int64_t> sent(static_cast<std::size_t>(from.mesh().size()), 0);
    for (std::size_t t = 0; t < plan.targets().size(); ++t) {
      const Piece target = plan.targets()[t];
      std::vector<std::int64_t> expected;
      for (const DistinctPiece& tile : tiles) {
        const std::int64_t elements = intersect(tile.box, target.box).num_elements();
        if (elements == 0) continue;
        const auto cost = [&](std::int64_t source) {
          return std::tuple(topology.link(from.mesh().device_at(source), target.place),
                            sent[static_cast<std::size_t>(source)], source);
        };
        std::int64_t best = tile.positions.front();
        for (const std::int64_t source : tile.positions) {
          if (cost(source) < cost(best)) best = source;
        }
        for (const std::int64_t source : tile.positions) {
          if (from.mesh().device_at(source) == target.place) best = source;
        }
        if (from.mesh().device_at(best) != target.place) {
          sent[static_cast<std::size_t>(best)] += elements;
        }
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
