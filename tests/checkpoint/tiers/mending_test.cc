// Processes are threads here, and each has a directory as its host's disk.

#include "shardwise/tiers/detail/mending.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "shardwise/mend/detail/chunk_finder.h"
#include "shardwise/tiers/detail/assembly.h"
#include "testing/errors.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/random_shardings.h"
#include "testing/socket_transport.h"
#include "testing/temp_dir.h"
#include "testing/tier_job.h"

namespace shardwise::tiers_detail {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::int64_t kElements = 24, kChunk = 4, kRanks = 3;
constexpr std::size_t kFiles = 3, kChunksOfFile = 3;  // of "a"; "b" is file 2, in one chunk

/// "a" i32 [24] in six chunks, in files 0 and 1, "b" i32 [4] in file 2. The elements of a chunk
/// that is not `same` are of this step alone.
HandMadeCheckpoint made(std::int64_t step, const std::vector<bool>& same) {
  std::vector<std::byte> a = counting_values(DType::i32, {kElements}),
                         b = counting_values(DType::i32, {kChunk}, 900);
  const auto change = [&](std::vector<std::byte>& bytes, std::size_t chunk) {
    for (std::size_t i = 0; i < kChunk; ++i) {
      bytes[(chunk * kChunk + i) * 4 + 1] ^= static_cast<std::byte>(0x80 | step);
    }
  };
  for (std::size_t c = 0; c < 2 * kChunksOfFile; ++c) {
    if (!same[c]) change(a, c);
  }
  if (!same.back()) change(b, 0);
  return HandMadeCheckpoint({{.name = "a",
                              .dtype = DType::i32,
                              .shape = {kElements},
                              .pieces = {Box({0}, {12}), Box({12}, {24})},
                              .data = a,
                              .chunk = {kChunk}},
                             {.name = "b",
                              .dtype = DType::i32,
                              .shape = {kChunk},
                              .pieces = {Box({0}, {kChunk})},
                              .data = b}},
                            kFiles, step);
}

/// The same elements in chunks of six.
HandMadeCheckpoint cut_otherwise(std::int64_t step, const std::vector<bool>& same) {
  const HandMadeCheckpoint as = made(step, same);
  std::vector<std::byte> a, b;
  for (const std::size_t f : {0u, 1u, 2u}) {
    for (const detail::ChunkRecord& record : as.files[f].records) {
      const auto at = as.files[f].bytes.begin() + static_cast<std::ptrdiff_t>(record.address);
      std::vector<std::byte>& to = f == 2 ? b : a;
      to.insert(to.end(), at, at + static_cast<std::ptrdiff_t>(record.stored_bytes));
    }
  }
  return HandMadeCheckpoint({{.name = "a",
                              .dtype = DType::i32,
                              .shape = {kElements},
                              .pieces = {Box({0}, {kElements})},
                              .data = a,
                              .chunk = {6}},
                             {.name = "b",
                              .dtype = DType::i32,
                              .shape = {kChunk},
                              .pieces = {Box({0}, {kChunk})},
                              .data = b}},
                            1, step);
}

void spoil(HandMadeCheckpoint& checkpoint, std::size_t file, std::size_t chunk) {
  checkpoint.files[file].bytes[checkpoint.files[file].records[chunk].address + 2] ^= std::byte{1};
}

/// The number of a chunk of a file among all seven.
std::size_t number_of(std::size_t file, std::size_t chunk) { return file * kChunksOfFile + chunk; }

std::size_t chunks_of(std::size_t file) { return file == 2 ? 1 : kChunksOfFile; }

class MendTest : public testing::Test {
 protected:
  fs::path fast(std::int64_t rank) const { return host_of(dir_.path(), rank); }
  fs::path own(std::int64_t rank) const { return process_of(dir_.path(), static_cast<int>(rank)); }
  fs::path durable() const { return dir_ / "durable"; }

  /// Each process's result for step 5.
  std::vector<AssembledStep> assembled(const std::vector<std::vector<TensorBox>>& needed) const {
    std::vector<AssembledStep> steps(needed.size());
    const auto errors = run_ranks(
        static_cast<int>(needed.size()), {}, [&](std::shared_ptr<SocketTransport> transport) {
          const int rank = transport->rank();
          const ProcessGroup group(std::move(transport), std::chrono::minutes(1));
          const Inventory inventory = take_inventory(*posix_file_system(), std::vector{fast(rank)});
          const AllInventories all = gather_inventories(group, inventory);
          const auto step = std::ranges::find_if(
              all.steps, [](const auto& entry) { return entry.first.step == 5; });
          ASSERT_NE(step, all.steps.end());
          const auto r = static_cast<std::size_t>(rank);
          steps[r] = assemble(group, *posix_file_system(), {own(rank), {{fast(rank)}, durable()}},
                              inventory, *step, [&](const CheckpointReader&) { return needed[r]; });
        });
    EXPECT_THAT(errors, Each(""));
    return steps;
  }

  const TempDir dir_;
};

const std::vector<bool> kAllSame(7, true);
const std::vector<std::vector<TensorBox>> kNeeds = {
    {},
    {{"a", Box({0}, {kElements})}, {"b", Box({1}, {2})}},
    {{"a", Box({2}, {3})}},
    {{"b", Box({0}, {kChunk})}}};
const std::vector<std::vector<std::size_t>> kFilesOf = {{}, {0, 1, 2}, {0}, {2}};

// Every copy of every file is damaged at random; so are an older step with some equal chunks, on
// each host, and the durable root's, which is cut otherwise.
TEST_F(MendTest, AStepIsHadUnlessAChunkOfItIsNowhere) {
  RandomShardings random(11);
  const auto chance = [&](std::int64_t of_ten) { return random.draw(1, 10) <= of_ten; };
  const HandMadeCheckpoint original = made(5, kAllSame);
  int had = 0, mended = 0;
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    for (const auto& entry : fs::directory_iterator(dir_.path())) fs::remove_all(entry);
    const std::int64_t damage = random.draw(1, 6);  // tenths of the chunks
    std::vector<bool> frames(kFiles, false), somewhere(7, false);
    // A step that has chunks of the original on some hosts.
    const auto give = [&](std::int64_t step, std::int64_t rank, const std::vector<bool>& same,
                          const std::vector<bool>& files) {
      HandMadeCheckpoint checkpoint = made(step, same);
      for (std::size_t f = 0; f < kFiles; ++f) {
        for (std::size_t c = 0; c < chunks_of(f); ++c) {
          if (chance(damage)) {
            spoil(checkpoint, f, c);
          } else if (files[f] && same[number_of(f, c)]) {
            somewhere[number_of(f, c)] = true;
          }
        }
        if (chance(2)) {
          checkpoint.files[f].bytes[0] ^= std::byte{1};  // HDF5's own
        } else if (files[f] && step == 5) {
          frames[f] = true;
        }
      }
      fs::create_directories(own(rank));
      const fs::path path = checkpoint.write(own(rank));
      for (std::size_t f = 0; f < kFiles; ++f) {
        if (!files[f]) fs::remove(path / checkpoint.manifest.files[f].name);
      }
    };
    const auto some = [&](std::size_t size, std::int64_t of_ten) {
      std::vector<bool> are(size);
      for (std::size_t i = 0; i < size; ++i) are[i] = chance(of_ten);
      return are;
    };
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      fs::create_directories(own(rank));
      // On rank 0's host each file has its size, so that the step is looked at.
      if (rank == 0 || chance(8)) {
        give(5, rank, kAllSame, rank == 0 ? some(kFiles, 10) : some(kFiles, 6));
      }
      if (chance(5)) give(4, rank, some(7, 4), some(kFiles, 8));
    }
    if (chance(5)) {
      const std::vector<bool> same = some(7, 5);
      HandMadeCheckpoint checkpoint = cut_otherwise(3, same);
      std::vector<bool> is_right(5, true);  // four chunks of "a", then "b"
      for (std::size_t c = 0; c < is_right.size(); ++c) {
        if (!chance(damage)) continue;
        is_right[c] = false;
        spoil(checkpoint, 0, c);
      }
      for (std::size_t n = 0; n < 6; ++n) {
        if (same[n] && is_right[n * 4 / 6] && is_right[(n * 4 + 3) / 6]) somewhere[n] = true;
      }
      if (same[6] && is_right[4]) somewhere[6] = true;
      fs::create_directories(durable());
      checkpoint.write(durable());
    }

    std::vector<std::size_t> needs;
    std::vector<std::vector<TensorBox>> needed;
    bool is_nowhere = false;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      needs.push_back(static_cast<std::size_t>(random.draw(0, 3)));
      needed.push_back(kNeeds[needs.back()]);
      for (const std::size_t f : kFilesOf[needs.back()]) {
        is_nowhere = is_nowhere || !frames[f];
        for (std::size_t c = 0; c < chunks_of(f); ++c) {
          is_nowhere = is_nowhere || !somewhere[number_of(f, c)];
        }
      }
    }
    const std::vector<AssembledStep> steps = assembled(needed);
    for (std::size_t r = 0; r < steps.size(); ++r) {
      EXPECT_EQ(steps[r].problem, steps[0].problem);
      ASSERT_EQ(steps[r].problem.empty(), !is_nowhere) << steps[r].problem;
      mended += static_cast<int>(steps[r].mended.size());
      if (is_nowhere) continue;
      ++had;
      for (const std::size_t f : kFilesOf[needs[r]]) {
        EXPECT_EQ(file_bytes(steps[r].directory / original.manifest.files[f].name),
                  original.files[f].bytes);
      }
    }
  }
  EXPECT_GT(had, 50);
  EXPECT_GT(mended, 50);
}

TEST_F(MendTest, SaysWhatWasTakenFromWhere) {
  const std::vector<bool> only_third{false, false, true, false, false, false, false};
  for (const std::int64_t rank : {0, 1}) {
    HandMadeCheckpoint checkpoint = made(5, kAllSame);
    if (rank == 0) spoil(checkpoint, 0, 0);
    if (rank == 0) spoil(checkpoint, 1, 1);
    spoil(checkpoint, 0, 2);
    spoil(checkpoint, 1, 2);
    fs::create_directories(own(rank));
    checkpoint.write(own(rank));
  }
  made(4, only_third).write(own(0));
  fs::create_directories(durable());
  cut_otherwise(3, kAllSame).write(durable());
  const std::vector<AssembledStep> steps = assembled({kNeeds[1], {}});
  EXPECT_EQ(steps[0].problem, "");
  EXPECT_THAT(
      steps[0].mended,
      testing::UnorderedElementsAre(
          "1 chunk of shards-00000-of-00003.h5 from process-00000/step-00000004",
          "1 chunk of shards-00000-of-00003.h5 from rank 1's process-00001/step-00000005",
          "1 chunk of shards-00001-of-00003.h5 from rank 1's process-00001/step-00000005",
          "1 chunk of shards-00001-of-00003.h5 from " + (durable() / "step-00000003").string()));
  EXPECT_THAT(steps[1].mended, testing::IsEmpty());
  EXPECT_THAT(steps[1].damaged, testing::Contains(HasSubstr("2 chunks are bad")));
}

TEST_F(MendTest, SaysWhichChunkIsNowhere) {
  HandMadeCheckpoint checkpoint = made(5, kAllSame);
  spoil(checkpoint, 1, 1);
  for (const std::int64_t rank : {0, 1}) fs::create_directories(own(rank));
  const fs::path path = checkpoint.write(own(1));
  const std::vector<AssembledStep> steps = assembled({kNeeds[1], kNeeds[2]});
  EXPECT_THAT(steps[0].problem,
              testing::AllOf(StartsWith("no good copy of shards-00001-of-00003.h5 is left: "),
                             HasSubstr("tensor \"a\" chunk 1 [16:20]")));
  EXPECT_EQ(steps[1].problem, steps[0].problem);
  EXPECT_EQ(file_bytes(path / "shards-00001-of-00003.h5"), checkpoint.files[1].bytes);
  EXPECT_EQ(assembled({kNeeds[2], kNeeds[3]})[0].problem, "") << "nobody needs it";
}

// Under another name, in another file and at another place.
TEST_F(MendTest, AnEqualChunkOfAnotherTensorIsFoundByItsHash) {
  const HandMadeCheckpoint wanted = made(5, kAllSame);
  HandMadeCheckpoint other({{.name = "z",
                             .dtype = DType::i32,
                             .shape = {kElements},
                             .pieces = {Box({0}, {kElements})},
                             .data = counting_values(DType::i32, {kElements}),
                             .chunk = {kChunk}}},
                           1, 4);
  fs::create_directories(own(0));
  const fs::path path = other.write(own(0));
  const auto found = [&](std::size_t file, std::size_t chunk) {
    const detail::ChunkRecord& record = wanted.files[file].records[chunk];
    const std::shared_ptr<FileSystem> files = posix_file_system();
    mend_detail::ChunkFinder finder(*files, {path});
    return finder.find_stored(
        {wanted.manifest.files[file].name, record.address, record.stored_bytes, record.hash});
  };
  for (const std::size_t file : {0u, 1u}) {
    for (std::size_t chunk = 0; chunk < kChunksOfFile; ++chunk) {
      const auto at = found(file, chunk);
      ASSERT_TRUE(at.has_value()) << file << " " << chunk;
      EXPECT_EQ(at->from, path);
      const auto& bytes = wanted.files[file].bytes;
      EXPECT_TRUE(std::ranges::equal(
          at->bytes,
          std::span(bytes).subspan(wanted.files[file].records[chunk].address, at->bytes.size())));
    }
  }
  EXPECT_FALSE(found(2, 0).has_value());
  shardwise::flip(path / other.manifest.files[0].name, other.files[0].records[1].address,
                  std::byte{1});
  EXPECT_FALSE(found(0, 1).has_value());
  EXPECT_TRUE(found(0, 2).has_value());
}

TEST(ChunkAsks, AreReadAsTheyWereSent) {
  const std::vector<ChunkAsk> asks{{2, 1u << 20, 7, 0x0123456789abcdef}, {0, 0, 0, 0}};
  EXPECT_EQ(decode_asks(encode(asks), 3), asks);
  EXPECT_EQ(decode_asks(encode(std::span<const ChunkAsk>()), 0), std::vector<ChunkAsk>());
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { decode_asks(encode(asks), 2); }),
              HasSubstr("a file that the step does not have"));
  const Bytes message = encode(asks);
  for (std::size_t i = 0; i < message.size(); ++i) {
    Bytes damaged = message;
    damaged[i] ^= std::byte{1};
    message_of(ErrorCode::corrupt, [&] { decode_asks(damaged, 3); });
  }
}

}  // namespace
}  // namespace shardwise::tiers_detail
