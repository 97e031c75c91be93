#include "shardwise/checkpoint/detail/read/chunk_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <span>
#include <thread>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/tiers/tiers.h"
#include "testing/errors.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
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

// Overlapping boxes, one of them in two places, and a chunk that is whole in its target.
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

// Files are opened and read outside of the reader's lock. The first reader waits in the middle of
// its file, at each of its operations in turn, until the second one has read another file.
TEST(ChunkReader, AReaderOfOneFileWaitsForNoOther) {
  const TempDir dir;
  const HostTensor w = host_tensor("w", DType::f32, {64, 8}, "2", "0,-", Values::noise);
  CheckpointManager(dir / "root").save(1, {w.source()}, {.writers = 2});
  const Box halves[] = {Box({0, 0}, {32, 8}), Box({32, 0}, {64, 8})};
  for (int at = 0; at < 3; ++at) {
    SCOPED_TRACE(at);
    std::latch first_waits(1), second_is_done(1);
    std::atomic<int> operations = 0;
    const auto in_first_file = [&](const std::filesystem::path& path) {
      if (path.filename().string().find("00000-of") == std::string::npos) return;
      if (operations++ != at) return;
      first_waits.count_down();
      second_is_done.wait();
    };
    const auto files = std::make_shared<HookedFileSystem>(
        [&](std::string_view, const std::filesystem::path& path) { in_first_file(path); },
        [&](const std::filesystem::path& path, std::uint64_t, std::size_t) {
          in_first_file(path);
        });
    const CheckpointReader reader = TierStep{.step = {1, 1, dir / "root/step-00000001"}}.open(
        {.threads = 1, .pin = false, .file_system = files});
    std::vector<std::byte> out[2];
    for (int h = 0; h < 2; ++h) out[h].resize(32 * 8 * 4);
    {
      const std::jthread first([&] { reader.read("w", halves[0], out[0]); });
      first_waits.wait();
      reader.read("w", halves[1], out[1]);
      second_is_done.count_down();
    }
    out[0].insert(out[0].end(), out[1].begin(), out[1].end());
    EXPECT_EQ(out[0], *w.data);
  }
}

}  // namespace
}  // namespace shardwise::detail
