#include "shardwise/checkpoint/detail/write/chunks/slab_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>

#include "shardwise/shard/host/page_memory.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kLeast = std::size_t{64} << 10;

std::vector<std::byte> joined(std::span<const WriteRun> runs) {
  std::vector<std::byte> bytes;
  for (const WriteRun& run : runs) bytes.insert(bytes.end(), run.data, run.data + run.size);
  return bytes;
}

// Random chunks, from the buffer and from a source's memory, at any place in it, with padding in
// between: the runs are the bytes added, and all of them whole pages if the slab is.
TEST(SlabBytes, RunsAreWhatWasAdded) {
  constexpr std::size_t kSize = std::size_t{8} << 20;
  const PageMemory buffer = page_memory(kSize), source = page_memory(kSize);
  std::mt19937 random(3);
  std::generate_n(source.get(), kSize, [&] { return static_cast<std::byte>(random()); });
  std::size_t in_place = 0, not_taken = 0;
  for (int round = 0; round < 60; ++round) {
    std::fill_n(buffer.get(), kSize, std::byte{0x55});
    SlabBytes slab(buffer.get());
    std::vector<std::byte> expected;
    const auto pad_to = [&](std::size_t multiple) {
      slab.pad_to(multiple);
      expected.resize((expected.size() + multiple - 1) / multiple * multiple);
    };
    for (;;) {
      const std::size_t size = 1 + random() % (3 * kLeast);
      if (expected.size() + size + 2 * kPageBytes > kSize) break;
      std::size_t begin = random() % (kSize - size);
      if (random() % 4 != 0) begin = begin / kPageBytes * kPageBytes;
      pad_to(random() % 3 == 0 ? 64 : kPageBytes);
      const std::span<const std::byte> chunk(source.get() + begin, size);
      if (slab.takes(chunk)) {
        slab.add_in_place(chunk);
        ++in_place;
      } else {
        std::copy(chunk.begin(), chunk.end(), slab.room());
        slab.add(size);
        ++not_taken;
      }
      expected.insert(expected.end(), chunk.begin(), chunk.end());
      ASSERT_EQ(slab.size(), expected.size());
    }
    pad_to(kPageBytes);
    const std::span<const WriteRun> runs = slab.runs();
    ASSERT_TRUE(joined(runs) == expected) << round;
    for (const WriteRun& run : runs) {
      EXPECT_GT(run.size, 0u);
      EXPECT_EQ(run.size % kPageBytes, 0u);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(run.data) % kPageBytes, 0u);
    }
    EXPECT_EQ(slab.runs().size(), runs.size()) << "asked twice";
  }
  EXPECT_GT(in_place, 100u);
  EXPECT_GT(not_taken, 100u);
}

TEST(SlabBytes, TakesWhatIsLargeAndOnPages) {
  const PageMemory buffer = page_memory(4 * kLeast), source = page_memory(4 * kLeast);
  SlabBytes slab(buffer.get());
  EXPECT_TRUE(slab.takes({source.get(), kLeast}));
  EXPECT_TRUE(slab.takes({source.get() + kPageBytes, kLeast + 1}));
  EXPECT_FALSE(slab.takes({source.get(), kLeast - 1}));
  EXPECT_FALSE(slab.takes({source.get() + 64, kLeast}));
  EXPECT_FALSE(slab.takes({}));
  slab.pad_to(kPageBytes);
  EXPECT_TRUE(slab.takes({source.get(), kLeast})) << "still at the begin";
  *slab.room() = std::byte{1};
  slab.add(1);
  EXPECT_FALSE(slab.takes({source.get(), kLeast})) << "in the middle of a page of the file";
  slab.pad_to(kPageBytes);
  EXPECT_TRUE(slab.takes({source.get(), kLeast}));
}

// Pieces that are side by side in memory, too, are one run; nothing of it is copied.
TEST(SlabBytes, NeighboursAreOneRun) {
  const PageMemory buffer = page_memory(kPageBytes), source = page_memory(4 * kLeast);
  std::fill_n(source.get(), 4 * kLeast, std::byte{1});
  SlabBytes slab(buffer.get());
  for (std::size_t i = 0; i < 3; ++i) slab.add_in_place({source.get() + i * kLeast, kLeast});
  slab.add_in_place({source.get(), kLeast});
  const auto runs = slab.runs();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].data, source.get());
  EXPECT_EQ(runs[0].size, 3 * kLeast);
  EXPECT_EQ(runs[1].data, source.get());
  EXPECT_EQ(slab.room(), buffer.get());
}

}  // namespace
}  // namespace shardwise::detail
