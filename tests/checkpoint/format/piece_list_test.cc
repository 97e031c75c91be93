#include "shardwise/checkpoint/detail/format/piece_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace shardwise::detail {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::uint32_t kMostNumber = std::numeric_limits<std::uint32_t>::max();

std::vector<PieceEntry> pieces_of(const PieceList& list) {
  std::vector<PieceEntry> pieces;
  for (const PieceEntry& piece : list) pieces.push_back(piece);
  return pieces;
}

/// Every value as large as it may be.
PieceEntry largest(std::size_t rank) {
  PieceEntry piece{.box = {},
                   .file = kMost,
                   .dataset = {kMostNumber, kMostNumber - 1},
                   .layout = Layout::chunked,
                   .chunk = Shape::filled(rank, kMost - 1),
                   .codec = StoredCodec::zstd,
                   .first_chunk = kMost - 2};
  for (std::size_t d = 0; d < rank; ++d) piece.box.push_back(std::int64_t(d), kMost - 3);
  return piece;
}

TEST(PieceList, GivesWhatWasPutThere) {
  for (std::size_t rank = 0; rank <= kMaxRank; ++rank) {
    SCOPED_TRACE(rank);
    const PieceEntry first{.box = Box::whole(Shape::filled(rank, 3)),
                           .file = 7,
                           .dataset = {1, 2},
                           .chunk = Shape::filled(rank, 2),
                           .first_chunk = 11};
    PieceList list = {first, largest(rank)};
    EXPECT_EQ(list.size(), 2u);
    EXPECT_THAT(pieces_of(list), ElementsAre(first, largest(rank)));
    EXPECT_EQ(list.file(0), 7);
    EXPECT_EQ(list.first_chunk(1), kMost - 2);

    list.set(0, largest(rank));
    EXPECT_EQ(list[0], list[1]);
    list.pop_back();
    EXPECT_THAT(pieces_of(list), ElementsAre(largest(rank)));
    list.set(0, first);
    EXPECT_EQ(list, PieceList({first}));
    EXPECT_NE(list, PieceList({largest(rank)}));
  }
}

TEST(PieceList, OfNoPiecesTakesAnyRankNext) {
  PieceList list = {largest(3)};
  list.pop_back();
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list, PieceList());
  EXPECT_THAT(pieces_of(list), IsEmpty());
  list.push_back(largest(1));
  EXPECT_EQ(list[0], largest(1));
  list.clear();
  list.push_back(largest(2));
  EXPECT_THAT(pieces_of(list), ElementsAre(largest(2)));
}

TEST(PieceList, GoesOnWithAnother) {
  const PieceEntry a = largest(2), b{.box = Box({1, 2}, {3, 4}), .chunk = {1, 1}};
  PieceList list;
  list.append({});
  list.append({a});
  list.append({b, a});
  list.append({});
  EXPECT_THAT(pieces_of(list), ElementsAre(a, b, a));
}

TEST(PieceDataset, IsAPath) {
  EXPECT_EQ(PieceDataset().path(), "/tensors/0/0");
  EXPECT_EQ((PieceDataset{12, kMostNumber}.path()), "/tensors/12/4294967295");
}

TEST(ChunkGrid, CutsAPieceRowMajor) {
  const PieceEntry piece{.box = Box({10, 20, 5}, {17, 24, 6}), .chunk = {3, 2, 1}};
  EXPECT_EQ(chunk_grid(piece), (Shape{3, 2, 1}));
  ASSERT_EQ(num_chunks(piece), 6);
  EXPECT_EQ(chunk_box(piece, 0), Box({10, 20, 5}, {13, 22, 6}));
  EXPECT_EQ(chunk_box(piece, 1), Box({10, 22, 5}, {13, 24, 6}));
  EXPECT_EQ(chunk_box(piece, 5), Box({16, 22, 5}, {17, 24, 6}));
  EXPECT_EQ(chunk_bytes(piece, DType::f32), 24u);

  std::vector<Box> boxes;
  for (std::int64_t c = 0; c < 6; ++c) {
    boxes.push_back(relative_to(chunk_box(piece, c), piece.box.begin()));
  }
  EXPECT_EQ(boxes.back(), Box({6, 2, 0}, {7, 4, 1}));
}

TEST(ChunkGrid, OfAScalarIsOneChunk) {
  const PieceEntry piece;
  EXPECT_EQ(num_chunks(piece), 1);
  EXPECT_EQ(chunk_box(piece, 0), Box());
  EXPECT_EQ(chunk_bytes(piece, DType::f64), 8u);
}

TEST(ChunkGrid, DoesNotOverflowAtTheLastIndex) {
  const PieceEntry piece{.box = Box({kMost - 5}, {kMost}), .chunk = {3}};
  ASSERT_EQ(num_chunks(piece), 2);
  EXPECT_EQ(chunk_box(piece, 1), Box({kMost - 2}, {kMost}));
}

}  // namespace
}  // namespace shardwise::detail
