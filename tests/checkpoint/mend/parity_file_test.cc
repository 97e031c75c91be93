// Every byte can be read after damage of up to as many blocks of a group as there is parity for;
// after more damage, every byte outside that group.

#include "shardwise/mend/detail/parity_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "shardwise/checkpoint/detail/parity/parity_check.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/memory_files.h"
#include "testing/temp_dir.h"

namespace shardwise::mend_detail {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kBlock = 1024;

Bytes random_bytes(std::mt19937& random, std::size_t size) {
  Bytes bytes(size);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

struct Made {
  detail::ParityLayout layout;
  detail::ParityOf of;
  Bytes file, parity;
};

Made make(std::mt19937& random, std::size_t bytes, std::int64_t blocks,
          const ParityEncoding& encoding = {}, std::size_t block_bytes = kBlock) {
  const TempDir dir;
  Made made{{bytes, blocks, block_bytes}, {bytes, {1, 2}}, random_bytes(random, bytes), {}};
  write_file(dir / "file", std::span(made.file));
  const auto out = posix_file_system()->create(dir / "parity", Caching::cached);
  write_parity_file(*posix_file_system(), dir / "file", made.of, made.layout, *out, encoding);
  out->close();
  made.parity = file_bytes(dir / "parity");
  return made;
}

/// Reads the file in parts; of each block whether it could be read. What is read must be right.
std::vector<bool> restored_blocks(const Made& made, const Bytes* damaged, const Bytes& parity) {
  MemoryFiles files{{"parity", parity}};
  if (damaged != nullptr) files["file"] = *damaged;
  MemoryFileSystem memory(files);
  const std::unique_ptr<File> opened = memory.open("parity");
  detail::ParityHeader header =
      detail::read_parity_header(*opened, "parity", made.of, kBlock).header;
  std::shared_ptr<File> file;
  if (damaged != nullptr) file = memory.open("file");
  RestoredFile restored(file, memory.open("parity"), std::move(header), "file");
  std::vector<bool> is_there;
  for (std::uint64_t b = 0; b < made.layout.blocks(); ++b) {
    Bytes bytes(made.layout.bytes_of(b));
    const std::uint64_t at = b * made.layout.block_bytes();
    try {
      restored.read_at(at, bytes.data(), bytes.size());
      is_there.push_back(true);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(),
                             made.file.begin() + static_cast<std::ptrdiff_t>(at)));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      is_there.push_back(false);
    }
  }
  return is_there;
}

TEST(ParityFile, RestoresWhatHasEnoughParityAndNothingElse) {
  std::mt19937 random(1);
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE(round);
    const std::int64_t blocks = 1 + random() % (round % 8 == 0 ? 127 : 4);
    const std::size_t bytes = 1 + random() % (round % 3 == 0 ? 3 * kBlock : 700 * kBlock);
    const Made made = make(random, bytes, blocks);
    Bytes file = made.file, parity = made.parity;
    std::map<std::uint64_t, std::int64_t> left;  // of each group
    for (std::uint64_t g = 0; g < made.layout.groups(); ++g) left[g] = blocks;
    std::set<std::uint64_t> damaged;
    const auto damage = [&](std::uint64_t block) {
      if (!damaged.insert(block).second) return;
      --left[made.layout.group_of(block)];
      file[block * made.layout.block_bytes() + random() % made.layout.bytes_of(block)] ^=
          std::byte{4};
    };
    for (std::uint64_t n =
             random() % (2 * made.layout.groups() * static_cast<std::uint64_t>(blocks) + 1);
         n > 0; --n) {
      damage(random() % made.layout.blocks());
    }
    for (std::uint64_t n = random() % 4; n > 0; --n) {
      const std::uint64_t number =
          random() % (made.layout.groups() * static_cast<std::uint64_t>(blocks));
      const std::uint64_t at = made.layout.address(number);
      if (parity[at] != made.parity[at]) continue;
      parity[at] ^= std::byte{1};
      --left[number / static_cast<std::uint64_t>(blocks)];
    }
    const std::vector<bool> found = restored_blocks(made, &file, parity);
    for (std::uint64_t b = 0; b < found.size(); ++b) {
      const bool has_enough = left[made.layout.group_of(b)] >= 0 || (!damaged.contains(b));
      EXPECT_EQ(found[b], has_enough) << b;
    }
  }
}

TEST(ParityFile, RestoresEveryRunOfBlocksThatIsNotTooLong) {
  std::mt19937 random(2);
  const Made made = make(random, 600 * kBlock - 5, 2);
  ASSERT_EQ(made.layout.groups(), 3u);
  for (std::uint64_t first = 0; first < 594; first += 7) {
    Bytes file = made.file;
    std::fill_n(file.begin() + static_cast<std::ptrdiff_t>(first * kBlock), 6 * kBlock,
                std::byte{0});
    const std::vector<bool> found = restored_blocks(made, &file, made.parity);
    EXPECT_EQ(std::ranges::count(found, false), 0) << first;
  }
  Bytes cut = made.file;
  cut.resize(cut.size() - 5 * kBlock);
  EXPECT_EQ(std::ranges::count(restored_blocks(made, &cut, made.parity), false), 0);
}

TEST(ParityFile, RestoresAWholeFileThatIsSmallEnough) {
  std::mt19937 random(3);
  const Made small = make(random, 3 * kBlock + 1, 4), large = make(random, 4 * kBlock + 1, 4);
  EXPECT_EQ(std::ranges::count(restored_blocks(small, nullptr, small.parity), false), 0);
  EXPECT_EQ(std::ranges::count(restored_blocks(large, nullptr, large.parity), true), 0);
}

TEST(ParityFile, IsTheSameForAnyThreadsAndMemory) {
  for (const std::size_t block_bytes : {kBlock, std::size_t{200} << 10}) {
    const auto parity = [&](const ParityEncoding& encoding) {
      std::mt19937 random(4);
      return make(random, 700 * kBlock + 9, 3, encoding, block_bytes).parity;
    };
    const Bytes one = parity({.threads = 1});
    EXPECT_EQ(parity({.threads = 4}), one);
    EXPECT_EQ(parity({.threads = 3, .budget_bytes = 1}), one) << "one group at a time";
  }
}

TEST(ParityFile, TellsHowMuchItHasRead) {
  std::mt19937 random(5);
  std::size_t bytes = 0;
  make(random, 100 * kBlock + 1, 1, {.threads = 2, .progress = [&](std::size_t n) { bytes += n; }});
  EXPECT_EQ(bytes, 100 * kBlock + 1);
}

TEST(ParityFile, EveryByteIsChecked) {
  std::mt19937 random(6);
  const Made made = make(random, 300 * kBlock, 2, {}, detail::kParityBlockBytes);
  const auto check = [&](const Bytes& parity) {
    MemoryFileSystem memory({{"parity", parity}});
    detail::check_parity_file(*memory.open("parity"), "parity", made.of);
  };
  check(made.parity);
  for (int i = 0; i < 300; ++i) {
    Bytes parity = made.parity;
    parity[i < 100 ? static_cast<std::size_t>(i) : random() % parity.size()] ^= std::byte{16};
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { check(parity); }), HasSubstr("read parity: "));
  }
}

}  // namespace
}  // namespace shardwise::mend_detail
