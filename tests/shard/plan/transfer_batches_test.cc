#include "shardwise/shard/plan/transfer_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "testing/errors.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Source, target and element of everything that copies move.
using Moves = std::vector<std::tuple<std::int64_t, std::int64_t, std::vector<std::int64_t>>>;

void add_moves(std::int64_t source, std::int64_t target, const Box& box, Moves& moves) {
  for (const Index& element : indices_of(box)) {
    moves.emplace_back(source, target, std::vector<std::int64_t>(element.begin(), element.end()));
  }
}

Moves moves_of(const TransferPlan& plan) {
  Moves moves;
  for (const Copy& copy : plan.copies()) add_moves(copy.source, copy.target, copy.box, moves);
  return moves;
}

TEST(Batches, HoldTheSameElementsInTheSameOrder) {
  RandomShardings random(19);
  for (int round = 0; round < 600; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    const Shape shape = random.shape(rank);
    const TransferPlan plan =
        TransferPlan::reshard(random.sharding(rank), random.sharding(rank), shape);
    const std::size_t max_bytes = static_cast<std::size_t>(random.draw(3, 60));
    Moves moves;
    for_each_batch(plan, 3, max_bytes, [&](std::span<const Copy> batch) {
      std::size_t bytes = 0;
      ASSERT_FALSE(batch.empty());
      for (const Copy& copy : batch) {
        bytes += 3 * static_cast<std::size_t>(copy.box.num_elements());
        add_moves(copy.source, copy.target, copy.box, moves);
      }
      ASSERT_LE(bytes, max_bytes);
    });
    ASSERT_EQ(moves, moves_of(plan));
  }
}

TEST(Batches, CutNoMoreThanNeeded) {
  const TransferPlan plan({{0, Box::whole({4, 6, 5})}}, {{1, Box::whole({4, 6, 5})}});
  const auto sizes = [&](std::size_t max_bytes) {
    std::vector<std::int64_t> elements;
    for_each_batch(plan, 1, max_bytes, [&](std::span<const Copy> batch) {
      elements.push_back(0);
      for (const Copy& copy : batch) elements.back() += copy.box.num_elements();
    });
    return elements;
  };
  EXPECT_THAT(sizes(1000), ElementsAre(120));
  EXPECT_THAT(sizes(119), ElementsAre(90, 30));
  EXPECT_THAT(sizes(30), ElementsAre(30, 30, 30, 30));
  EXPECT_THAT(sizes(29), ElementsAre(25, 5, 25, 5, 25, 5, 25, 5));
  EXPECT_EQ(sizes(1).size(), 120u);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { for_each_batch(plan, 8, 7, [](std::span<const Copy>) {}); }),
              HasSubstr("7 bytes"));
}

TEST(Reads, ServeSeveralTargetsEach) {
  // The first two targets take the same halves; the third all of one, and a part of the other.
  const TransferPlan plan({{0, Box({0}, {4})}, {1, Box({4}, {8})}},
                          {{2, Box({0}, {8})}, {3, Box({0}, {8})}, {4, Box({2}, {8})}});
  std::vector<std::tuple<std::int64_t, std::int64_t, std::vector<std::int64_t>>> reads;
  for_each_read(plan, [&](const SharedRead& read) {
    reads.emplace_back(read.source, read.box.begin(0),
                       std::vector<std::int64_t>(read.targets.begin(), read.targets.end()));
  });
  using Targets = std::vector<std::int64_t>;
  EXPECT_THAT(reads, ElementsAre(std::tuple(0, 0, Targets{0, 1}), std::tuple(0, 2, Targets{2}),
                                 std::tuple(1, 4, Targets{0, 1, 2})));
}

TEST(Reads, TakeEveryBoxOnceAndServeEveryCopy) {
  RandomShardings random(20);
  for (int round = 0; round < 400; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 3));
    const Shape shape = random.shape(rank);
    const TransferPlan plan =
        TransferPlan::reshard(random.sharding(rank), random.sharding(rank), shape);
    Moves moves;
    std::map<std::pair<std::int64_t, std::string>, int> times;
    for_each_read(plan, [&](const SharedRead& read) {
      ASSERT_EQ(++times[std::pair(read.source, to_string(read.box))], 1);
      for (const std::int64_t target : read.targets) {
        add_moves(read.source, target, read.box, moves);
      }
    });
    Moves expected = moves_of(plan);
    std::sort(moves.begin(), moves.end());
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(moves, expected);
  }
}

}  // namespace
}  // namespace shardwise
