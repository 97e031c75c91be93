#include "shardwise/loader/detail/remote/block_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr std::uint64_t kTrailerBytes = 64;

std::vector<std::byte> content(std::uint64_t number, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(number * 31 + i * 7);
  return bytes;
}

BlockKey key(std::uint64_t number, std::uint64_t size = 1000) {
  return {.object = {number, 1}, .begin = 1000 * number, .size = size};
}

class BlockCacheTest : public testing::Test {
 public:
  void put(BlockCache& cache, std::uint64_t number) {
    cache.put(key(number), content(number, 1000));
  }

  static bool has(const BlockCache& cache, std::uint64_t number) {
    std::vector<std::byte> found(1000);
    if (!cache.find(key(number), found)) return false;
    EXPECT_EQ(found, content(number, 1000)) << number;
    return true;
  }

  /// The files of blocks, with their sizes.
  std::map<fs::path, std::uint64_t> blocks() const {
    std::map<fs::path, std::uint64_t> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file() && entry.path().filename() != "lock") {
        found[entry.path()] = entry.file_size();
      }
    }
    return found;
  }

  const TempDir dir;
  const fs::path folder = dir / "cache";
};

TEST_F(BlockCacheTest, GivesWhatWasPutAlsoToOthers) {
  BlockCache cache(folder, 100'000);
  EXPECT_FALSE(has(cache, 1));
  put(cache, 1);
  EXPECT_TRUE(has(cache, 1));
  EXPECT_TRUE(cache.may_have(key(1)));
  EXPECT_FALSE(has(cache, 2));
  EXPECT_TRUE(has(BlockCache(folder, 100'000), 1));
  std::vector<std::byte> other(999);
  EXPECT_FALSE(cache.find(key(1, 999), other));
}

TEST_F(BlockCacheTest, StaysWithinItsBudgetAndKeepsTheBlocksUsedLast) {
  BlockCache cache(folder, 10 * (1000 + kTrailerBytes));
  for (std::uint64_t number = 0; number < 50; ++number) {
    put(cache, number);
    EXPECT_TRUE(has(cache, number));
    std::uint64_t all = 0;
    for (const auto& [path, size] : blocks()) all += size;
    EXPECT_LE(all, cache.most_bytes());
  }
  EXPECT_GE(blocks().size(), 8u);
  EXPECT_FALSE(has(cache, 0));
  cache.put(key(99, 20'000), content(99, 20'000));  // larger than the budget
  EXPECT_TRUE(has(cache, 49));
}

TEST_F(BlockCacheTest, RemovesAndTrustsNoFileOfOthers) {
  BlockCache cache(folder, 3 * (1000 + kTrailerBytes));
  put(cache, 1);
  const fs::path own = blocks().begin()->first;
  // Files that are nothing, that have a block's name, and that are a block by another name.
  std::map<fs::path, std::string> foreign{
      {folder / "notes.txt", "mine"},
      {folder / "ab" / ("ab" + std::string(30, '0')), std::string(5000, 'x')},
      {folder / own.parent_path().filename() / std::string(32, 'a'), file_text(own)}};
  for (const auto& [path, text] : foreign) {
    fs::create_directories(path.parent_path());
    write_file(path, text);
  }
  for (std::uint64_t number = 2; number < 20; ++number) put(cache, number);
  EXPECT_FALSE(has(cache, 1));
  for (const auto& [path, text] : foreign) EXPECT_EQ(file_text(path), text) << path;

  // A link or a file in a block's place is neither followed nor replaced.
  put(cache, 1);
  fs::remove(own);
  fs::create_symlink(folder / "notes.txt", own);
  put(cache, 1);
  EXPECT_FALSE(has(cache, 1));
  EXPECT_EQ(file_text(folder / "notes.txt"), "mine");
}

TEST_F(BlockCacheTest, PutsAChangedBlockAgain) {
  BlockCache cache(folder, 100'000);
  put(cache, 1);
  const fs::path path = blocks().begin()->first;
  const std::string whole = file_text(path);
  for (const std::size_t at : {std::size_t{0}, std::size_t{500}, std::size_t{999}}) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    write_file(path, changed);
    EXPECT_FALSE(has(cache, 1)) << at;
    put(cache, 1);
    EXPECT_TRUE(has(cache, 1)) << at;
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{10}, std::size_t{1000}}) {
    fs::resize_file(path, size);
    EXPECT_FALSE(has(cache, 1)) << size;
  }
}

TEST_F(BlockCacheTest, FetchesAWholeFileOnceAndAgainIfItIsDamaged) {
  BlockCache cache(folder, 100'000);
  const BlockKey whole = key(7, 5000);
  const std::vector<std::byte> bytes = content(7, 5000);
  int fetched = 0;
  const auto fetch = [&] {
    return cache.whole_file(whole, [&](const BlockCache::WriteAt& write) {
      ++fetched;
      write(2000, std::span(bytes).subspan(2000));
      write(0, std::span(bytes).first(2000));
    });
  };
  const fs::path path = fetch();
  EXPECT_EQ(fetch(), path);
  EXPECT_EQ(fetched, 1);
  EXPECT_EQ(fs::file_size(path), 5000 + kTrailerBytes);
  std::string text = file_text(path);
  text[3] = static_cast<char>(text[3] ^ 1);
  write_file(path, text);
  fetch();
  EXPECT_EQ(fetched, 2);
  EXPECT_EQ(std::memcmp(file_text(path).data(), bytes.data(), 5000), 0);

  fs::remove(path);
  EXPECT_THAT(message_of(ErrorCode::io,
                         [&] {
                           cache.whole_file(whole, [](const BlockCache::WriteAt&) {
                             throw Error(ErrorCode::io, "the store is gone");
                           });
                         }),
              HasSubstr("the store is gone"));
  EXPECT_TRUE(blocks().empty());
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { cache.whole_file(key(8, 200'000), [](const auto&) {}); }),
              HasSubstr("200000"));
}

TEST_F(BlockCacheTest, IsSharedByProcessesThatPutAtOnce) {
  constexpr int kProcesses = 4;
  constexpr std::uint64_t kBlocks = 40;
  const std::uint64_t budget = 20 * (1000 + kTrailerBytes);
  BlockCache cache(folder, budget);
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = ::fork();
    if (child == 0) {
      bool is_right = true;
      for (std::uint64_t i = 0; i < kBlocks; ++i) {
        const std::uint64_t number = (i + static_cast<std::uint64_t>(process) * 10) % kBlocks;
        cache.in_turn(key(number), [&] {
          std::vector<std::byte> found(1000);
          if (!cache.find(key(number), found)) {
            cache.put(key(number), content(number, 1000));
          } else {
            is_right = is_right && found == content(number, 1000);
          }
        });
      }
      ::_exit(is_right ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  std::uint64_t all = 0;
  for (const auto& [path, size] : blocks()) all += size;
  EXPECT_LE(all, budget);
  EXPECT_GT(all, budget / 2);
}

TEST_F(BlockCacheTest, RefusesAFolderThatOthersCanWriteTo) {
  fs::create_directories(folder);
  fs::permissions(folder, fs::perms::others_write, fs::perm_options::add);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { BlockCache(folder, 1000); }),
              HasSubstr("needed a folder of this user's that nobody else can write to"));
  write_file(dir / "file", "");
  message_of(ErrorCode::invalid_argument, [&] { BlockCache(dir / "file", 1000); });
  message_of(ErrorCode::io, [&] { BlockCache(dir / "file" / "below", 1000); });
}

}  // namespace
}  // namespace shardwise::detail
