#include "shardwise/checkpoint/detail/read/chunk_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "testing/errors.h"
#include "testing/random_checkpoint.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

/// i16 [10, 12] in 3 x 3 chunks of [4, 4], the last row of them reaching over the edge; zstd.
HandMadeTensor zstd_tiles() {
  return {.name = "t",
          .dtype = DType::i16,
          .shape = {10, 12},
          .pieces = {Box({0, 0}, {10, 12})},
          .data = counting_values(DType::i16, {10, 12}),
          .chunk = {4, 4},
          .codec = StoredCodec::zstd};
}

std::vector<std::byte> room(const Box& box) {
  return std::vector<std::byte>(num_bytes(box.shape(), 2));
}

std::filesystem::path write_tiles(const TempDir& dir) {
  return HandMadeCheckpoint({zstd_tiles()}).write(dir.path());
}

// Overlapping boxes, one of them in two places, and a chunk that lies whole in its target.
TEST(ChunkReader, FillsEveryTargetAndReadsEachChunkOnce) {
  for (const std::size_t budget : {std::size_t{1}, std::size_t{1} << 20}) {
    SCOPED_TRACE(budget);
    const TempDir dir;
    ChunkReader reader(open_checkpoint(*posix_file_system(), write_tiles(dir)),
                       {.memory_budget_bytes = budget, .threads = 2});
    const Box corner({0, 0}, {3, 5}), middle({2, 3}, {10, 7}), tile({4, 8}, {8, 12});
    auto a = room(corner), b = room(middle), again = room(middle), c = room(tile);
    std::byte* const places[] = {a.data(), b.data(), again.data(), c.data()};
    const std::span all(places);
    const ReadTarget targets[] = {{0, &corner, all.subspan(0, 1)},
                                  {0, &middle, all.subspan(1, 2)},
                                  {0, &tile, all.subspan(3, 1)}};
    reader.fill(targets);
    EXPECT_EQ(a, elements_of(zstd_tiles(), corner));
    EXPECT_EQ(b, elements_of(zstd_tiles(), middle));
    EXPECT_EQ(again, b);
    EXPECT_EQ(c, elements_of(zstd_tiles(), tile));
    EXPECT_EQ(reader.stats().chunks, 7);
    EXPECT_EQ(reader.stats().decoded_bytes, 7u * 32);
  }
}

TEST(ChunkReader, ProgressCountsElementsWithoutPadding) {
  const TempDir dir;
  std::vector<std::size_t> seen;
  ChunkReader reader(open_checkpoint(*posix_file_system(), write_tiles(dir)),
                     {.threads = 1, .progress = [&](const Progress& progress) {
                        EXPECT_EQ(progress.total_bytes, 2u * 4 * 2);
                        seen.push_back(progress.done_bytes);
                      }});
  const Box box({9, 0}, {10, 1});
  auto out = room(box);
  std::byte* const place = out.data();
  const ReadTarget target{0, &box, {&place, 1}};
  reader.fill({&target, 1});
  EXPECT_THAT(seen, testing::ElementsAre(2u * 4 * 2)) << "two rows of the chunk are in the piece";
}

TEST(ChunkReader, DamageOfAChunkConcernsOnlyWhoNeedsIt) {
  const TempDir dir;
  HandMadeCheckpoint made({zstd_tiles()});
  made.files[0].bytes[made.files[0].records[4].address] ^= std::byte{1};
  ChunkReader reader(open_checkpoint(*posix_file_system(), made.write(dir.path())), {.threads = 2});
  auto out = room(zstd_tiles().pieces[0]);
  const Box piece = zstd_tiles().pieces[0];
  std::byte* const place = out.data();
  const ReadTarget whole{0, &piece, {&place, 1}};
  EXPECT_THAT(message_of(ErrorCode::corrupt,
                         [&] {
                           reader.fill({&whole, 1});
                         }),
              testing::HasSubstr("tensor \"t\" chunk 4 [4:8, 4:8]"));
  const Box row({0, 0}, {4, 12});
  auto good = room(row);
  std::byte* const good_place = good.data();
  const ReadTarget target{0, &row, {&good_place, 1}};
  reader.fill({&target, 1});
  EXPECT_EQ(good, elements_of(zstd_tiles(), row));
}

}  // namespace
}  // namespace shardwise::detail
