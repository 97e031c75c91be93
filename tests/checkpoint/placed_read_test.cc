#include "shardwise/checkpoint/detail/read/placed_read.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/codec.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/page_memory.h"
#include "shardwise/storage/hash.h"
#include "testing/errors.h"

namespace shardwise::detail {
namespace {

/// A file whose bytes lie in memory.
class BytesFile : public File {
 public:
  explicit BytesFile(std::vector<std::byte> bytes, bool in_memory = false)
      : bytes_(std::move(bytes)), in_memory_(in_memory) {}

  bool in_memory(std::uint64_t) override { return in_memory_; }
  std::size_t largest_read() const { return largest_read_; }

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    if (offset + size > bytes_.size()) throw Error(ErrorCode::corrupt, "the file ends");
    largest_read_ = std::max(largest_read_, size);
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), size, data);
  }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override { std::abort(); }
  std::uint64_t size() override { return bytes_.size(); }
  void resize(std::uint64_t) override { std::abort(); }
  void sync() override { std::abort(); }
  void close() override {}

 private:
  std::vector<std::byte> bytes_;
  bool in_memory_;
  std::size_t largest_read_ = 0;
};

std::vector<std::byte> file_bytes(std::size_t size) {
  std::mt19937 random(5);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Any cuts, some of them wanted by nobody and some twice, around the window's size.
TEST(PlacedRead, PutsEachByteWhereItBelongsAndHashesThemAll) {
  std::mt19937 random(3);
  const PageMemory window = page_memory(kReadWindowBytes);
  for (const std::size_t size : {1U, 4095U, 262144U, 262145U, 1048576U, 1048577U}) {
    const std::vector<std::byte> bytes = file_bytes(size + 100);
    for (int round = 0; round < 8; ++round) {
      const bool in_memory = round % 4 < 2;
      BytesFile file(bytes, in_memory);
      std::set<std::size_t> cuts{0, size};
      for (int i = 0; i < round * 5; ++i) cuts.insert(random() % size);
      std::vector<std::byte> target(size), replica(size), second(size);
      std::byte* const first_places[] = {target.data(), replica.data()};
      std::byte* const second_places[] = {second.data()};
      std::vector<PlacedRun> runs;
      for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
        if (random() % 3 == 0) continue;
        runs.push_back({*cut, *std::next(cut) - *cut, first_places, *cut});
      }
      std::vector<std::byte> expected(size), expected_second(size);
      for (const PlacedRun& run : runs) {
        std::copy_n(bytes.data() + 100 + run.from, run.size, expected.data() + run.from);
      }
      // Over the borders of the others, and at a place of other alignment.
      const std::size_t from = random() % size, long_run = 1 + random() % (size - from);
      const std::size_t to = random() % (size - long_run + 1);
      runs.push_back({from, long_run, second_places, to});
      std::copy_n(bytes.data() + 100 + from, long_run, expected_second.data() + to);
      std::ranges::sort(runs, {}, &PlacedRun::from);
      const CopyBy copy_by = round % 2 == 0 ? CopyBy::stream : CopyBy::cache;
      EXPECT_EQ(read_placed({file, 100, size, runs}, copy_by, window.get()),
                hash64(bytes.data() + 100, size));
      EXPECT_EQ(file.largest_read(), std::min<std::size_t>(size, in_memory ? 262144 : 1048576));
      EXPECT_EQ(target, expected);
      EXPECT_EQ(replica, expected);
      EXPECT_EQ(second, expected_second);
    }
  }
}

TEST(PlacedRead, PassesOnWhatTheFileThrows) {
  BytesFile file(file_bytes(1000));
  const PageMemory window = page_memory(kReadWindowBytes);
  std::vector<std::byte> target(1000);
  std::byte* const place = target.data();
  const std::vector<PlacedRun> runs{{0, 1000, {&place, 1}, 0}};
  EXPECT_EQ(message_of(ErrorCode::corrupt,
                       [&] {
                         read_placed({file, 1, 1000, runs}, CopyBy::stream, window.get());
                       }),
            "the file ends");
}

}  // namespace
}  // namespace shardwise::detail
