#include "shardwise/shard/plan/piece_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PieceList, HoldsWhatItWasGiven) {
  const std::vector<Piece> pieces = {{7, Box({0, 1}, {2, 3})}, {5, Box({4, 4}, {4, 9})}};
  const PieceList list(pieces, 2);
  EXPECT_THAT(list, ElementsAre(pieces[0], pieces[1]));
  EXPECT_EQ(list[1], pieces[1]);
  EXPECT_EQ(list.place(0), 7);
  EXPECT_EQ(list.box(0), pieces[0].box);
  EXPECT_TRUE(list.boxes().empty_at(1));
  EXPECT_FALSE(list.boxes().empty_at(0));
  EXPECT_THAT(PieceList({}, 3), IsEmpty());
}

TEST(PieceList, TakesScalars) {
  const std::vector<Piece> pieces = {{1, Box()}, {2, Box()}};
  EXPECT_THAT(PieceList(pieces, 0), ElementsAre(pieces[0], pieces[1]));
}

TEST(PieceList, IsWhatLiesAtEachPositionOfASharding) {
  const Sharding sharding(Mesh::parse("a=3@5,0,2"), PartitionSpec::parse("-,a"));
  EXPECT_THAT(PieceList(sharding, {2, 7}),
              ElementsAre(Piece{5, Box({0, 0}, {2, 3})}, Piece{0, Box({0, 3}, {2, 6})},
                          Piece{2, Box({0, 6}, {2, 7})}));
  const Sharding planned(Mesh::abstract({{"a", 2}}), PartitionSpec::parse("a"));
  EXPECT_THAT(PieceList(planned, {2}),
              ElementsAre(Piece{0, Box({0}, {1})}, Piece{1, Box({1}, {2})}));
}

}  // namespace
}  // namespace shardwise
