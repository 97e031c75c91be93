#include "shardwise/checkpoint/detail/read/read_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/hand_made_checkpoint.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::ElementsAre;

/// "w" u8 [6, 8]: pieces of 3 rows, chunks of [2, 8]; the second chunk of each piece is cut off.
class Plan : public testing::Test {
 protected:
  std::vector<std::int64_t> records(const ReadPlan& plan) const {
    std::vector<std::int64_t> numbers;
    for (const WantedChunk& chunk : plan.chunks()) {
      numbers.push_back(stored_.piece(chunk.id).first_chunk + chunk.id.chunk);
    }
    return numbers;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(64);
  TempDir dir_;
  StoredCheckpoint stored_ =
      open_checkpoint(*posix_file_system(),
                      HandMadeCheckpoint({{.name = "w",
                                           .dtype = DType::u8,
                                           .shape = {6, 8},
                                           .pieces = {Box({0, 0}, {3, 8}), Box({3, 0}, {6, 8})},
                                           .data = counting_values(DType::u8, {6, 8}),
                                           .chunk = {2, 8}}})
                          .write(dir_.path()));
};

TEST_F(Plan, TakesEachChunkOnceForAllItsTargets) {
  std::byte* const place = memory_.data();
  const Box two_pieces({2, 0}, {5, 2}), one({4, 4}, {5, 5}), none({4, 4}, {4, 5});
  const ReadTarget targets[] = {
      {0, &two_pieces, {&place, 1}}, {0, &one, {&place, 1}}, {0, &none, {&place, 1}}};
  const ReadPlan plan(stored_, targets);
  EXPECT_THAT(records(plan), ElementsAre(1, 2));
  EXPECT_THAT(plan.uses(plan.chunks()[0]), ElementsAre(0));
  EXPECT_THAT(plan.uses(plan.chunks()[1]), ElementsAre(0, 1));
}

TEST_F(Plan, OfNothingIsEmpty) {
  EXPECT_TRUE(ReadPlan(stored_, {}).chunks().empty());
  const Box box({3, 3}, {3, 8});
  const ReadTarget empty{0, &box, {}};
  EXPECT_TRUE(ReadPlan(stored_, {&empty, 1}).chunks().empty());
}

}  // namespace
}  // namespace shardwise::detail
