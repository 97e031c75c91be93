#include "shardwise/checkpoint/detail/write/writers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/shard/plan/check_cover.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/random_shardings.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::int64_t bytes_of(const HeldPiece& piece, const Box& box) {
  return box.num_elements() * static_cast<std::int64_t>(piece.element_bytes);
}

TEST(Writers, StandForPositionsThatFollowOneAnother) {
  EXPECT_THAT(writers_of(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}, 8, 2),
              ElementsAre(0, 1));
  EXPECT_THAT(writers_of(std::vector<std::int64_t>{4, 6}, 8, 2), ElementsAre(1));
  EXPECT_THAT(writers_of(std::vector<std::int64_t>{0, 3, 5}, 6, 4), ElementsAre(0, 2, 3));
}

TEST(Writers, ShareWhatAllHoldByBytes) {
  const HeldPiece rows{Box({0, 0}, {1000, 1000}), 4, {0, 1, 2, 3}};
  const auto shares = share_out({&rows, 1}, 4);
  EXPECT_THAT(shares[0], ElementsAre(WriterShare{0, Box({0, 0}, {250, 1000})},
                                     WriterShare{1, Box({250, 0}, {500, 1000})},
                                     WriterShare{2, Box({500, 0}, {750, 1000})},
                                     WriterShare{3, Box({750, 0}, {1000, 1000})}));
}

// A few long rows.
TEST(Writers, CutTheLongestDimWhereTheOutermostIsShort) {
  const HeldPiece rows{Box({0, 5, 0}, {3, 6, 1'000'000}), 4, {0, 1, 2, 3}};
  const auto shares = share_out({&rows, 1}, 4);
  EXPECT_THAT(shares[0], ElementsAre(WriterShare{0, Box({0, 5, 0}, {3, 6, 250'000})},
                                     WriterShare{1, Box({0, 5, 250'000}, {3, 6, 500'000})},
                                     WriterShare{2, Box({0, 5, 500'000}, {3, 6, 750'000})},
                                     WriterShare{3, Box({0, 5, 750'000}, {3, 6, 1'000'000})}));
  const HeldPiece few{Box({0, 0}, {3, 40}), 1024, {0, 1}};
  EXPECT_THAT(share_out({&few, 1}, 2)[0], ElementsAre(WriterShare{0, Box({0, 0}, {3, 20})},
                                                      WriterShare{1, Box({0, 20}, {3, 40})}));
  const HeldPiece fewer{Box({0, 0}, {3, 20}), 2048, {0, 1}};
  EXPECT_THAT(share_out({&fewer, 1}, 2)[0], ElementsAre(WriterShare{0, Box({0, 0}, {3, 10})},
                                                        WriterShare{1, Box({0, 10}, {3, 20})}));
}

// Who has to write other pieces alone gets less of what is shared.
TEST(Writers, FillUpWhoHasLeast) {
  const HeldPiece pieces[] = {{Box({0}, {400'000}), 1, {0, 1}}, {Box({0}, {300'000}), 1, {1}}};
  const auto shares = share_out(pieces, 2);
  EXPECT_THAT(shares[0], ElementsAre(WriterShare{0, Box({0}, {350'000})},
                                     WriterShare{1, Box({350'000}, {400'000})}));
}

TEST(Writers, CoverEachPieceOnceAndKeepToThoseThatHoldIt) {
  std::mt19937 random(5);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    const std::int64_t writers = draw(1, 9);
    std::vector<HeldPiece> pieces(static_cast<std::size_t>(draw(1, 12)));
    std::int64_t total = 0, largest_row = 0;
    bool all_hold_all = draw(0, 1) == 0;
    for (HeldPiece& piece : pieces) {
      const Index begin{draw(0, 9), draw(0, 9)};
      Index end{begin[0] + draw(1, 700), begin[1] + draw(1, 700)};
      if (draw(0, 2) == 0) end = {begin[0] + draw(1, 5), begin[1] + draw(1, 100'000)};
      piece.box = Box(begin, end);
      piece.element_bytes = std::size_t{1} << draw(0, 3);
      std::set<std::int64_t> holds{draw(0, writers - 1)};
      for (std::int64_t w = 0; w < writers; ++w) {
        if (all_hold_all || draw(0, 2) == 0) holds.insert(w);
      }
      piece.writers.assign(holds.begin(), holds.end());
      total += bytes_of(piece, piece.box);
      // What cannot be balanced: a row, or a piece that is too small to be cut.
      const std::int64_t rows =
          std::min(16 * writers, std::max(piece.box.extent(0), piece.box.extent(1)));
      largest_row =
          std::max({largest_row, std::int64_t{64} << 10, bytes_of(piece, piece.box) / rows});
    }
    const auto shares = share_out(pieces, writers);
    ASSERT_EQ(shares.size(), pieces.size());
    std::vector<std::int64_t> loads(static_cast<std::size_t>(writers), 0);
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      std::vector<Box> boxes;
      for (const WriterShare& share : shares[p]) {
        EXPECT_THAT(pieces[p].writers, testing::Contains(share.writer));
        EXPECT_FALSE(share.box.empty());
        boxes.push_back(relative_to(share.box, pieces[p].box.begin()));
        loads[static_cast<std::size_t>(share.writer)] += bytes_of(pieces[p], share.box);
      }
      check_cover(boxes, pieces[p].box.shape());
    }
    if (!all_hold_all) continue;
    const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
    EXPECT_LE(*most - *least, 2 * largest_row) << "round " << round << " of " << total << " bytes";
  }
}

// Any sharding, any number of writers: each element is stored once, by a writer that holds it, and
// comes back.
TEST(Writers, OfACheckpointStoreEachElementOnce) {
  RandomShardings random(11);
  std::set<std::size_t> numbers_of_files;
  for (int round = 0; round < 60; ++round) {
    const TempDir dir;
    const Mesh mesh = random.mesh();
    std::vector<HostTensor> tensors;
    for (int t = 0; t < 3; ++t) {
      const Shape shape{random.draw(1, 300), random.draw(1, 300)};
      const std::string spec = random.spec_with_parts(mesh, 2).to_string();
      tensors.push_back(host_tensor("t" + std::to_string(t), DType::f32, shape,
                                    mesh.to_string().c_str(), spec.c_str()));
    }
    const std::int64_t writers = random.draw(1, 6);
    SCOPED_TRACE(testing::Message() << mesh.to_string() << ", " << writers << " writers");
    CheckpointManager manager(dir.path());
    const SaveStats stats = manager.save(1, sources_of(tensors), {.writers = writers});
    const StoredCheckpoint stored = open_checkpoint(*posix_file_system(), stats.directory);
    numbers_of_files.insert(stored.manifest.files.size());
    EXPECT_LE(stored.manifest.files.size(), static_cast<std::size_t>(writers));
    EXPECT_THAT(verify_checkpoint(stats.directory).damage, IsEmpty());

    const CheckpointReader reader(stats.directory);
    std::size_t bytes = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (const PieceEntry& piece : stored.manifest.tensors[t].pieces) {
        bytes += num_bytes(piece.box.shape(), 4);
      }
      std::vector<std::byte> found(tensors[t].data->size());
      reader.read(tensors[t].name, Box::whole(tensors[t].spec.shape), found);
      EXPECT_EQ(found, *tensors[t].data);
    }
    EXPECT_EQ(bytes, stats.logical_bytes);
  }
  EXPECT_GT(numbers_of_files.size(), 3u);
}

TEST(Writers, MakeOneFileEachAndCountProgressTogether) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  const HostTensor replicated = host_tensor("r", DType::f32, {1000, 1000}, "4", "-,-");
  std::size_t last = 0;
  SaveOptions options{.writers = 4};
  options.progress = [&](const Progress& progress) {
    EXPECT_GT(progress.done_bytes, last);
    last = progress.done_bytes;
    EXPECT_EQ(progress.total_bytes, 4'000'000u);
  };
  const SaveStats stats = manager.save(1, {replicated.source()}, options);
  EXPECT_EQ(last, 4'000'000u);
  for (int f = 0; f < 4; ++f) {
    EXPECT_TRUE(std::filesystem::exists(stats.directory /
                                        ("shards-0000" + std::to_string(f) + "-of-00004.h5")));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(stats.directory), {}), 6);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { manager.save(2, {replicated.source()}, {.writers = 0}); }),
              testing::HasSubstr("writers is 0, needed 1 to 99999"));
}

}  // namespace
}  // namespace shardwise::detail
