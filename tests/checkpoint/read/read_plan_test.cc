#include "shardwise/checkpoint/detail/read/read_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/hand_made_checkpoint.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::ElementsAre;

HandMadeTensor tensor(std::vector<Box> pieces, const Shape& shape, const Shape& chunk,
                      StoredCodec codec = StoredCodec::none) {
  return {.name = "w",
          .dtype = DType::u8,
          .shape = shape,
          .pieces = std::move(pieces),
          .data = counting_values(DType::u8, shape),
          .chunk = chunk,
          .codec = codec};
}

class Plan : public testing::Test {
 protected:
  StoredCheckpoint stored(HandMadeTensor tensor, std::int64_t files = 1) {
    return open_checkpoint(
        *posix_file_system(),
        HandMadeCheckpoint({std::move(tensor)}, files).write(dir_ / std::to_string(++made_)));
  }

  static std::vector<std::int64_t> records(const StoredCheckpoint& stored, const ReadPlan& plan) {
    std::vector<std::int64_t> numbers;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      numbers.push_back(stored.piece(plan.chunk(i)).first_chunk + plan.chunk(i).chunk);
    }
    return numbers;
  }

  TempDir dir_;
  int made_ = 0;
  /// Pieces of 3 rows, chunks of [2, 8]; the second chunk of each piece is cut off.
  const HandMadeTensor two_pieces_ =
      tensor({Box({0, 0}, {3, 8}), Box({3, 0}, {6, 8})}, {6, 8}, {2, 8});
  std::vector<std::byte> memory_ = std::vector<std::byte>(64);
};

TEST_F(Plan, TakesEachChunkOnceForAllItsTargets) {
  std::byte* const place = memory_.data();
  const StoredCheckpoint checkpoint = stored(two_pieces_);
  const Box two_pieces({2, 0}, {5, 2}), none({4, 4}, {4, 5}), one({4, 4}, {5, 5});
  const ReadTarget targets[] = {
      {0, &two_pieces, {&place, 1}}, {0, &none, {&place, 1}}, {0, &one, {&place, 1}}};
  const ReadPlan plan(checkpoint, targets);
  EXPECT_THAT(records(checkpoint, plan), ElementsAre(1, 2));
  EXPECT_THAT(plan.targets(0), ElementsAre(0));
  EXPECT_THAT(plan.targets(1), ElementsAre(0, 2));
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const ChunkRecord& record = checkpoint.record(plan.chunk(i));
    EXPECT_EQ(plan.ranges()[i].file, 0u);
    EXPECT_EQ(plan.ranges()[i].address, record.address);
    EXPECT_EQ(plan.ranges()[i].bytes, record.stored_bytes);
  }
}

// File 0 is no nearer to the targets than the others.
TEST_F(Plan, OrdersChunksByFileAndAddress) {
  std::byte* const place = memory_.data();
  const StoredCheckpoint checkpoint = stored(two_pieces_, 2);
  const Box last({5, 0}, {6, 1}), all({0, 0}, {6, 8});
  const ReadTarget targets[] = {{0, &last, {&place, 1}}, {0, &all, {&place, 1}}};
  const ReadPlan plan(checkpoint, targets);
  ASSERT_EQ(plan.size(), 4u);
  for (std::size_t i = 1; i < plan.size(); ++i) {
    const FileRange &before = plan.ranges()[i - 1], &range = plan.ranges()[i];
    EXPECT_TRUE(before.file < range.file ||
                (before.file == range.file && before.address < range.address));
  }
  EXPECT_EQ(plan.ranges()[3].file, 1u);
  EXPECT_THAT(plan.targets(3), ElementsAre(0, 1));
}

// Small ones are read with their neighbours, and a compressed one is decoded as a whole.
TEST_F(Plan, LetsLargeRawChunksComeInParts) {
  std::byte* const place = memory_.data();
  const Box one({0, 0}, {1, 1});
  const ReadTarget target{0, &one, {&place, 1}};
  const auto in_parts = [&](std::int64_t columns, StoredCodec codec) {
    const Shape shape{2, columns};
    const StoredCheckpoint checkpoint =
        stored(tensor({Box::whole(shape)}, shape, {1, columns}, codec));
    return ReadPlan(checkpoint, {&target, 1}).ranges()[0].in_parts;
  };
  EXPECT_TRUE(in_parts(65'536, StoredCodec::none));
  EXPECT_FALSE(in_parts(65'535, StoredCodec::none));
  EXPECT_FALSE(in_parts(65'536, StoredCodec::zstd));
}

TEST_F(Plan, OfNothingIsEmpty) {
  const StoredCheckpoint checkpoint = stored(two_pieces_);
  EXPECT_EQ(ReadPlan(checkpoint, {}).size(), 0u);
  const Box box({3, 3}, {3, 8});
  const ReadTarget empty{0, &box, {}};
  EXPECT_EQ(ReadPlan(checkpoint, {&empty, 1}).size(), 0u);
}

}  // namespace
}  // namespace shardwise::detail
