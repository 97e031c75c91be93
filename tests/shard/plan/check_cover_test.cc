#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "shardwise/shard/plan/transfer_plan.h"
#include "testing/errors.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CheckCover, PassesTheDistinctPiecesOfAnySharding) {
  RandomShardings random(13);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 4));
    const Shape shape = random.shape(rank);
    const Sharding sharding = random.sharding(rank, shape);
    std::vector<Box> boxes;
    for (const DistinctPiece& piece : sharding.distinct_pieces(shape)) boxes.push_back(piece.box);
    ASSERT_NO_THROW(check_cover(boxes, shape)) << sharding.to_string();
  }
}

TEST(CheckCover, NamesTheElementAndItsBoxes) {
  const Box low({0, 0}, {2, 4}), high({2, 0}, {4, 4}), right({1, 2}, {4, 4}), none({4, 4}, {4, 4});
  EXPECT_NO_THROW(check_cover(std::vector{low, none, high}, {4, 4}));
  EXPECT_NO_THROW(check_cover({}, {4, 0}));
  const struct {
    const char* name;
    std::vector<Box> boxes;
    const char *element, *rest;
  } cases[] = {
      {"none", {}, "element [0, 0] of shape [4, 4]", "in no box"},
      {"missing", {low, none}, "element [2, 0] of", "in no box"},
      {"held twice", {high, right, low}, "element [1, 2]", "in 2 boxes: 1 [1:4, 2:4] and 2 [0:2"},
      {"held often", {low, low, low, low, low, low, high}, "element [0, 0]", "in 6 boxes: 0 [0:2"},
      {"outside", {low, high, Box({3, 3}, {4, 5})}, "box 2, [3:4, 3:5]", "shape [4, 4]"},
      {"below 0", {low, high, Box({-1, 0}, {0, 4})}, "box 2, [-1:0, 0:4]", "shape [4, 4]"},
      {"other rank", {low, Box()}, "box 1, []", "shape [4, 4]"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] {
                             check_cover(c.boxes, {4, 4});
                           }),
                AllOf(HasSubstr(c.element), HasSubstr(c.rest)));
  }
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { check_cover({}, {}); }),
              HasSubstr("element [] of shape []"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] {
                           check_cover({}, {4, -1});
                         }),
              HasSubstr("-1"));
}

}  // namespace
}  // namespace shardwise
