#include "shardwise/loader/detail/files/file_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace shardwise::detail {
namespace {

using ::testing::ElementsAre;

struct Read {
  std::size_t runs, begin, end;  // in the record
  bool operator==(const Read&) const = default;
};

std::vector<Read> reads(const Box& box, const Shape& record, std::size_t element_bytes) {
  std::vector<Read> all;
  std::size_t next_target = 0;
  for_each_read(walk_runs(box, Box::whole(record), box), element_bytes,
                [&](std::span<const FileRun> runs) {
                  for (const FileRun& run : runs) {
                    EXPECT_EQ(run.target_offset, next_target);
                    next_target += run.size_bytes;
                  }
                  all.push_back({runs.size(), runs.front().record_offset,
                                 runs.back().record_offset + runs.back().size_bytes});
                });
  EXPECT_EQ(next_target, num_bytes(box.shape(), element_bytes));
  return all;
}

TEST(FileRuns, AreReadTogetherWhereTheyLieNear) {
  EXPECT_THAT(reads(Box({0, 0}, {28, 28}), {28, 28}, 1), ElementsAre(Read{1, 0, 784}));
  EXPECT_THAT(reads(Box({7, 0}, {14, 28}), {28, 28}, 1), ElementsAre(Read{1, 196, 392}));
  EXPECT_THAT(reads(Box({0, 14}, {28, 28}), {28, 28}, 1), ElementsAre(Read{28, 14, 784}));
  EXPECT_THAT(reads(Box({3, 5}, {3, 9}), {28, 28}, 1), ElementsAre());
  EXPECT_THAT(reads(Box(), {}, 8), ElementsAre(Read{1, 0, 8}));
}

TEST(FileRuns, AreReadAloneBehindALargerGap) {
  // Gaps of exactly 4 KiB, and of one element more.
  EXPECT_THAT(reads(Box({0, 0}, {3, 4}), {3, 2052}, 2), ElementsAre(Read{3, 0, 2 * 4104 + 8}));
  EXPECT_THAT(reads(Box({0, 0}, {3, 4}), {3, 2053}, 2),
              ElementsAre(Read{1, 0, 8}, Read{1, 4106, 4114}, Read{1, 8212, 8220}));
}

TEST(FileRuns, AreReadInBoundedSpans) {
  // Rows of 4 KiB without the last byte: sixteen fit in 64 KiB.
  EXPECT_THAT(reads(Box({0, 0}, {20, 4095}), {20, 4096}, 1),
              ElementsAre(Read{16, 0, 65535}, Read{4, 65536, 81919}));
  // A single run is read into its place, however long.
  EXPECT_THAT(reads(Box({0}, {1000000}), {2000000}, 4), ElementsAre(Read{1, 0, 4000000}));
}

}  // namespace
}  // namespace shardwise::detail
