#include "shardwise/checkpoint/detail/read/cached_reader.h"

#include <gtest/gtest.h>

#include "testing/random_checkpoint.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

/// u8 [16, 16] in 4 x 4 chunks of [4, 4].
HandMadeTensor raw_tiles() {
  return {.name = "t",
          .dtype = DType::u8,
          .shape = {16, 16},
          .pieces = {Box({0, 0}, {16, 16})},
          .data = counting_values(DType::u8, {16, 16}),
          .chunk = {4, 4}};
}

class Cached : public testing::Test {
 protected:
  void expect_read(CachedReader& cached, const Box& box) {
    std::vector<std::byte> out(num_bytes(box.shape(), 1));
    cached.read(0, box, out);
    EXPECT_EQ(out, elements_of(raw_tiles(), box)) << to_string(box);
  }

  TempDir dir_;
  const std::filesystem::path path_ = HandMadeCheckpoint({raw_tiles()}).write(dir_.path());
  const std::vector<TensorInfo> infos_ = tensor_infos(open_checkpoint(*posix_file_system(), path_));
  ChunkReader reader_{open_checkpoint(*posix_file_system(), path_), {.threads = 1}};
};

TEST_F(Cached, ReadsAChunkOnceForManyBoxes) {
  CachedReader cached(reader_, infos_, 4 * 16);
  for (std::int64_t row = 0; row < 4; ++row) expect_read(cached, Box({row, 0}, {row + 1, 16}));
  EXPECT_EQ(reader_.stats().chunks, 4);
  expect_read(cached, Box({4, 0}, {5, 16}));
  EXPECT_EQ(reader_.stats().chunks, 8);
  expect_read(cached, Box({5, 0}, {6, 16}));
  EXPECT_EQ(reader_.stats().chunks, 8);
  expect_read(cached, Box({0, 0}, {1, 1}));
  EXPECT_EQ(reader_.stats().chunks, 9) << "the oldest have made room";
}

TEST_F(Cached, KeepsTheChunksThatWereUsedLast) {
  CachedReader cached(reader_, infos_, 2 * 16);
  const auto corner = [&](std::int64_t column) {
    expect_read(cached, Box({0, 4 * column}, {1, 4 * column + 1}));
  };
  for (const std::int64_t column : {0, 1, 0, 2, 0}) corner(column);
  EXPECT_EQ(reader_.stats().chunks, 3);
  corner(1);
  EXPECT_EQ(reader_.stats().chunks, 4);
}

TEST_F(Cached, KeepsNothingOfWhatABoxHoldsWhole) {
  CachedReader cached(reader_, infos_, 1024);
  expect_read(cached, Box({0, 0}, {8, 16}));
  expect_read(cached, Box({0, 0}, {8, 16}));
  EXPECT_EQ(reader_.stats().chunks, 16);
}

TEST_F(Cached, WorksWithoutRoomForAnyChunk) {
  CachedReader cached(reader_, infos_, 15);
  for (int i = 0; i < 3; ++i) expect_read(cached, Box({3, 3}, {5, 5}));
  EXPECT_EQ(reader_.stats().chunks, 12);
}

}  // namespace
}  // namespace shardwise::detail
