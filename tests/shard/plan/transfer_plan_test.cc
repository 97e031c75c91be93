#include "shardwise/shard/plan/transfer_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "shardwise/shard/box_copy.h"
#include "testing/errors.h"
#include "testing/make_sharding.h"
#include "testing/random_boxes.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// Follows each element of each target through the plan, and compares with all sources that hold
/// the element.
void expect_right(const TransferPlan& plan) {
  std::int64_t moved = 0;
  std::size_t copies = 0;
  for (std::size_t t = 0; t < plan.targets().size(); ++t) {
    const Piece target = plan.targets()[t];
    const CopyRange mine = plan.copies_to(static_cast<std::int64_t>(t));
    copies += mine.size();
    ASSERT_TRUE(std::is_sorted(mine.begin(), mine.end(),
                               [](const Copy& a, const Copy& b) { return a.source < b.source; }));
    for (const Copy& copy : mine) {
      const Piece source = plan.sources()[static_cast<std::size_t>(copy.source)];
      ASSERT_EQ(copy.target, static_cast<std::int64_t>(t));
      ASSERT_FALSE(copy.box.empty());
      ASSERT_TRUE(source.box.contains(copy.box) && target.box.contains(copy.box));
      if (source.place != target.place) moved += copy.box.num_elements();
    }
    for (const Index& element : indices_of(target.box)) {
      std::vector<std::int64_t> holders, local, used;
      for (std::size_t s = 0; s < plan.sources().size(); ++s) {
        if (!holds(plan.sources()[s].box, element)) continue;
        holders.push_back(static_cast<std::int64_t>(s));
        if (plan.sources()[s].place == target.place) local.push_back(holders.back());
      }
      for (const Copy& copy : mine) {
        if (holds(copy.box, element)) used.push_back(copy.source);
      }
      if (plan.reduction() != Reduction::none) {
        ASSERT_EQ(used, holders) << to_string(element);
        continue;
      }
      ASSERT_THAT(used, SizeIs(1)) << to_string(element) << " of target " << t;
      const std::vector<std::int64_t>& allowed = local.empty() ? holders : local;
      ASSERT_TRUE(std::count(allowed.begin(), allowed.end(), used.front()));
    }
  }
  ASSERT_EQ(plan.copies().size(), copies);
  ASSERT_EQ(plan.moved_elements(), moved);
}

TEST(TransferPlan, AnswersAsInTheHeader) {
  const Sharding rows_by_4 = make_sharding("a,-", "a=4"), rows_by_2 = make_sharding("a,-", "a=2");
  const TransferPlan plan = TransferPlan::reshard(rows_by_4, rows_by_2, {8, 3});
  ASSERT_THAT(plan.copies(), SizeIs(4));
  EXPECT_EQ(plan.copies()[2].source, 2);
  EXPECT_EQ(plan.copies()[2].target, 1);
  EXPECT_EQ(plan.copies()[2].box, Box({4, 0}, {6, 3}));
  EXPECT_EQ(plan.moved_elements(), 18);
  EXPECT_EQ(plan.sources()[3], (Piece{3, Box({6, 0}, {8, 3})}));
  EXPECT_EQ(plan.targets()[1], (Piece{1, Box({4, 0}, {8, 3})}));
}

TEST(TransferPlan, ReadsOnlyWhatEachTargetLacks) {
  // As in PyTorch/XLA's test_resharding_different_device_mesh: every target reads two sources.
  const TransferPlan plan =
      TransferPlan::reshard(make_sharding("0,1", "4,2"), make_sharding("0,1", "8,1"), {64, 128});
  EXPECT_THAT(plan.copies(), SizeIs(16));
  std::int64_t elements = 0;
  for (const Copy& copy : plan.copies()) elements += copy.box.num_elements();
  EXPECT_EQ(elements, 64 * 128);
  for (std::int64_t target = 0; target < 8; ++target) {
    EXPECT_EQ(plan.copies_to(target)[0].source, target / 2 * 2);
    EXPECT_EQ(plan.copies_to(target)[1].source, target / 2 * 2 + 1);
  }
}

TEST(TransferPlan, TakesPositionsOfAnAbstractMeshForDevices) {
  const Sharding planned(Mesh::abstract({{"a", 4}}), PartitionSpec::parse("a"));
  const TransferPlan plan = TransferPlan::reshard(planned, make_sharding("a", "a=4@1,0,2,3"), {8});
  EXPECT_EQ(plan.sources()[1], (Piece{1, Box({2}, {4})}));
  EXPECT_EQ(plan.moved_elements(), 4);
  EXPECT_EQ(TransferPlan::reshard(make_sharding("a", "a=4@1,0,2,3"), planned, {8}).moved_elements(),
            4);
}

TEST(TransferPlan, FetchesAtMostWhatADeviceLacks) {
  // XLA gathers all of the tensor on each device here ("involuntary full rematerialization").
  const TransferPlan plan = TransferPlan::reshard(
      make_sharding("y,-,x", "x=4,y=2"), make_sharding("-,x+y,-", "x=4,y=2"), {16, 16, 16});
  std::vector<std::int64_t> received(8, 0);
  for (const Copy& copy : plan.copies()) {
    if (copy.source != copy.target) {
      received[static_cast<std::size_t>(copy.target)] += copy.box.num_elements();
    }
  }
  // Each wants [16, 2, 16] and has [8, 2, 4] of it.
  EXPECT_THAT(received, ::testing::Each(16 * 2 * 16 - 8 * 2 * 4));
}

TEST(TransferPlan, OfOverlappingSourcesTakesEachElementOnce) {
  // Windows of 10 rows, one from each row on: far more than are compared with each other.
  std::vector<Piece> sources;
  for (std::int64_t i = 0; i < 3000; ++i) sources.push_back({i % 7, Box({i, 0}, {i + 10, 4})});
  const TransferPlan plan(sources, {{50, Box({5, 1}, {3000, 3})}, {51, Box({0, 0}, {9, 4})}});
  std::vector<int> taken(3000, 0);
  for (const Copy& copy : plan.copies_to(0)) {
    EXPECT_EQ(copy.box.begin(1), 1);
    EXPECT_EQ(copy.box.end(1), 3);
    for (std::int64_t row = copy.box.begin(0); row < copy.box.end(0); ++row) {
      ++taken[static_cast<std::size_t>(row)];
    }
  }
  for (std::size_t row = 5; row < taken.size(); ++row) ASSERT_EQ(taken[row], 1) << row;
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           sources[0].box = Box({1, 0}, {10, 4});
                           TransferPlan(sources, {{50, Box({0, 1}, {3000, 3})}});
                         }),
              HasSubstr("element [0, 1] of target 0"));
}

TEST(TransferPlan, ReshardAgreesWithElementByElementSearch) {
  RandomShardings random(10);
  for (int round = 0; round < 1500; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 3));
    const Shape shape = random.shape(rank);
    const Sharding from = random.sharding(rank, shape), to = random.sharding(rank, shape);
    SCOPED_TRACE(from.to_string() + " to " + to.to_string() + " of " + to_string(shape));
    const TransferPlan plan = TransferPlan::reshard(from, to, shape);
    ASSERT_NO_FATAL_FAILURE(expect_right(plan));
    for (std::int64_t p = 0; p < from.mesh().size(); ++p) {
      const Piece piece{from.mesh().device_at(p), from.box_at(p, shape)};
      ASSERT_EQ(plan.sources()[static_cast<std::size_t>(p)], piece);
    }
    // The same pieces without knowledge of grids.
    const TransferPlan general({plan.sources().begin(), plan.sources().end()},
                               {plan.targets().begin(), plan.targets().end()});
    ASSERT_EQ(general.copies().size(), plan.copies().size());
    for (std::size_t i = 0; i < plan.copies().size(); ++i) {
      const Copy copy = plan.copies()[i], other = general.copies()[i];
      ASSERT_EQ(other.source, copy.source);
      ASSERT_EQ(other.target, copy.target);
      ASSERT_EQ(other.box, copy.box);
    }
    ASSERT_EQ(general.classify(), plan.classify());
    ASSERT_TRUE(!(from == to) || plan.moved_elements() == 0);
  }
}

using Buffers = std::vector<std::vector<std::int64_t>>;

Buffers execute(const TransferPlan& plan, const Buffers& from) {
  Buffers to;
  for (const Piece& target : plan.targets()) {
    to.emplace_back(static_cast<std::size_t>(target.box.num_elements()), -1);
  }
  for (const Copy& copy : plan.copies()) {
    const std::size_t s = static_cast<std::size_t>(copy.source);
    const std::size_t t = static_cast<std::size_t>(copy.target);
    copy_box(copy.box, sizeof(std::int64_t),
             {reinterpret_cast<const std::byte*>(from[s].data()), plan.sources()[s].box},
             {reinterpret_cast<std::byte*>(to[t].data()), plan.targets()[t].box});
  }
  return to;
}

/// Each element's value is its row-major number in the whole tensor.
Buffers numbered(const PieceList& pieces, const Shape& shape) {
  Buffers buffers;
  for (const Piece& piece : pieces) {
    std::vector<std::int64_t>& buffer = buffers.emplace_back();
    for (const Index& element : indices_of(piece.box)) {
      buffer.push_back(static_cast<std::int64_t>(offset_in(Box::whole(shape), element)));
    }
  }
  return buffers;
}

TEST(TransferPlan, ThereAndBackIsTheIdentity) {
  RandomShardings random(11);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    const Shape shape = random.shape(rank);
    const Sharding a = random.sharding(rank, shape), b = random.sharding(rank, shape);
    const TransferPlan there = TransferPlan::reshard(a, b, shape);
    const TransferPlan back = TransferPlan::reshard(b, a, shape);
    const Buffers at_a = numbered(there.sources(), shape);
    const Buffers at_b = execute(there, at_a);
    ASSERT_EQ(at_b, numbered(there.targets(), shape)) << a.to_string() << " to " << b.to_string();
    ASSERT_EQ(execute(back, at_b), at_a);
  }
}

TEST(TransferPlan, TakesAnyPieces) {
  RandomShardings random(12);
  int reduced = 0, refused = 0, planned = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 3));
    const Box region = Box::whole(random.shape(rank));
    std::vector<Piece> sources, targets;
    for (std::int64_t copy = random.draw(1, 3); copy > 0; --copy) {
      std::vector<Box> boxes = random_tiling(region, random.draw(0, 9), random);
      damage(boxes, region, random.draw(0, 2), random);
      for (const Box& box : boxes) sources.push_back({random.draw(0, 5), box});
    }
    for (std::int64_t i = random.draw(0, 5); i > 0; --i) {
      targets.push_back({random.draw(0, 5), random_box(region, random)});
    }
    const Reduction reduction = random.draw(0, 2) == 0 ? Reduction::sum : Reduction::none;
    // The first target, and its first element, that no source holds.
    std::string missing;
    for (std::size_t t = 0; t < targets.size() && missing.empty(); ++t) {
      for (const Index& element : indices_of(targets[t].box)) {
        if (std::none_of(sources.begin(), sources.end(),
                         [&](const Piece& source) { return holds(source.box, element); })) {
          missing = "element " + to_string(element) + " of target " + std::to_string(t) + ", ";
          break;
        }
      }
    }
    if (!missing.empty()) {
      ++refused;
      ASSERT_THAT(message_of(ErrorCode::invalid_argument,
                             [&] { TransferPlan(sources, targets, {.reduction = reduction}); }),
                  HasSubstr(missing));
      continue;
    }
    ++(reduction == Reduction::none ? planned : reduced);
    const TransferPlan plan(sources, targets, {.reduction = reduction});
    ASSERT_EQ(plan.reduction(), reduction);
    ASSERT_NO_FATAL_FAILURE(expect_right(plan));
  }
  EXPECT_GT(planned, 100);
  EXPECT_GT(reduced, 100);
  EXPECT_GT(refused, 100);
}

TEST(TransferPlan, NamesWhatIsMissing) {
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] {
                           TransferPlan({{0, Box({0, 0}, {2, 4})}, {1, Box({2, 0}, {4, 3})}},
                                        {{8, Box({0, 0}, {2, 4})}, {9, Box({1, 2}, {4, 4})}});
                         }),
              AllOf(HasSubstr("element [2, 3]"), HasSubstr("target 1"), HasSubstr("[1:4, 2:4]"),
                    HasSubstr("place 9")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] {
                           TransferPlan({}, {{3, Box()}});
                         }),
              AllOf(HasSubstr("element []"), HasSubstr("place 3")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] {
                           TransferPlan({{5, Box({0}, {1})}}, {{6, Box()}});
                         }),
              AllOf(HasSubstr("[0:1] at place 5"), HasSubstr("[] at place 6")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] {
                           TransferPlan::reshard(make_sharding("a", "a=2"),
                                                 make_sharding("a,-", "a=2"), {4});
                         }),
              AllOf(HasSubstr("[4]"), HasSubstr("\"a,-\"")));
}

TEST(TransferPlan, TakesNothingAtAll) {
  const TransferPlan none({}, {});
  EXPECT_THAT(none.copies(), SizeIs(0));
  EXPECT_EQ(none.classify(), TransferClass::nothing);
  const TransferPlan empty({}, {{0, Box({3}, {3})}});
  EXPECT_THAT(empty.copies_to(0), SizeIs(0));
}

TEST(TransferPlan, ClassifiesReshardings) {
  const struct {
    const char* name;
    const char *from_spec, *from_mesh, *to_spec, *to_mesh;
    Shape shape;
    TransferClass expected;
  } cases[] = {
      {"same", "a,-", "a=4", "a,-", "a=4", {8, 8}, TransferClass::nothing},
      {"other spelling", "a+b,-", "a=2,b=2", "c,-", "c=4", {8, 8}, TransferClass::nothing},
      {"fewer devices", "-,-", "a=4", "-,-", "a=2", {8, 8}, TransferClass::nothing},
      {"cut a whole one", "-,-", "a=4", "a,-", "a=4", {8, 8}, TransferClass::slice},
      {"cut finer", "a,-", "a=2,b=2", "a,b", "a=2,b=2", {8, 8}, TransferClass::slice},
      {"other devices", "a,-", "a=4", "a,-", "a=4@4,5,6,7", {8, 8}, TransferClass::permute},
      {"rotated", "a,-", "a=4", "a,-", "a=4@3,0,1,2", {8, 8}, TransferClass::permute},
      {"axes swapped", "a+b,-", "a=2,b=2", "b+a,-", "a=2,b=2", {8, 8}, TransferClass::permute},
      {"made whole", "a,-", "a=4", "-,-", "a=4", {8, 8}, TransferClass::all_gather},
      {"each source to one target", "a,-", "a=4", "a,-", "a=2", {8, 8}, TransferClass::gather},
      {"half gathered", "a,b", "a=2,b=2", "a,-", "a=2,b=2", {8, 8}, TransferClass::all_gather},
      {"sent to all", "-", "1", "-", "3", {8}, TransferClass::broadcast},
      {"made whole elsewhere", "a", "a=4", "-", "a=2@8,9", {8}, TransferClass::gather},
      {"made whole, uneven", "a", "a=4", "-", "a=4", {5}, TransferClass::all_gather},
      {"rows to columns", "a,-", "a=4", "-,a", "a=4", {8, 8}, TransferClass::all_to_all},
      {"rows to columns, uneven", "a,-", "a=4", "-,a", "a=4", {5, 7}, TransferClass::all_to_all},
      {"rows to columns in groups",
       "a+b,-",
       "a=2,b=2",
       "a,b",
       "a=2,b=2",
       {8, 8},
       TransferClass::all_to_all},
      {"rows to columns elsewhere", "a,-", "a=2", "-,a", "a=2@8,9", {8, 8}, TransferClass::general},
      {"fewer parts", "a,-", "a=4", "a,-", "a=3", {12, 8}, TransferClass::general},
      {"parts to elsewhere", "-", "1@9", "a", "a=2", {8}, TransferClass::scatter},
      {"no elements", "a,-", "a=4", "-,a", "a=4", {8, 0}, TransferClass::nothing},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const TransferPlan plan = TransferPlan::reshard(make_sharding(c.from_spec, c.from_mesh),
                                                    make_sharding(c.to_spec, c.to_mesh), c.shape);
    EXPECT_EQ(plan.classify(), c.expected) << name(plan.classify());
    if (c.expected == TransferClass::nothing || c.expected == TransferClass::slice) {
      EXPECT_EQ(plan.moved_elements(), 0);
    }
  }
}

TEST(TransferPlan, ClassifiesReductions) {
  const Box all = Box::whole({8}), low({0}, {4}), high({4}, {8});
  const struct {
    const char* name;
    std::vector<Piece> sources, targets;
    TransferClass expected;
  } cases[] = {
      {"to all", {{0, all}, {1, all}}, {{0, all}, {1, all}}, TransferClass::all_reduce},
      {"in groups",
       {{0, low}, {1, low}, {2, high}, {3, high}},
       {{0, low}, {1, low}, {2, high}, {3, high}},
       TransferClass::all_reduce},
      {"a part each", {{0, all}, {1, all}}, {{0, low}, {1, high}}, TransferClass::reduce_scatter},
      {"to one elsewhere", {{0, all}, {1, all}}, {{5, all}}, TransferClass::reduce},
      {"to one of them", {{0, all}, {1, all}}, {{1, all}}, TransferClass::reduce},
      {"parts of targets", {{0, low}, {1, high}}, {{0, all}, {1, all}}, TransferClass::general},
      {"alone", {{0, all}}, {{0, all}}, TransferClass::nothing},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const TransferPlan plan(c.sources, c.targets, {.reduction = Reduction::sum});
    EXPECT_EQ(plan.classify(), c.expected) << name(plan.classify());
  }
}

TEST(TransferPlan, NamesClassesAsTheyAreSpelt) {
  EXPECT_EQ(name(TransferClass::nothing), "nothing");
  EXPECT_EQ(name(TransferClass::slice), "slice");
  EXPECT_EQ(name(TransferClass::permute), "permute");
  EXPECT_EQ(name(TransferClass::broadcast), "broadcast");
  EXPECT_EQ(name(TransferClass::scatter), "scatter");
  EXPECT_EQ(name(TransferClass::gather), "gather");
  EXPECT_EQ(name(TransferClass::reduce), "reduce");
  EXPECT_EQ(name(TransferClass::all_gather), "all_gather");
  EXPECT_EQ(name(TransferClass::all_to_all), "all_to_all");
  EXPECT_EQ(name(TransferClass::all_reduce), "all_reduce");
  EXPECT_EQ(name(TransferClass::reduce_scatter), "reduce_scatter");
  EXPECT_EQ(name(TransferClass::general), "general");
}

}  // namespace
}  // namespace shardwise
