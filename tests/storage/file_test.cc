#include "shardwise/storage/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "shardwise/storage/detail/page_cache.h"
#include "shardwise/storage/forwarding_file_system.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t kPage = 4096;

// Page-aligned memory, so that direct writes are possible at all.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size)
      : size_(size),
        data_(static_cast<std::byte*>(::operator new (size, std::align_val_t{kPage}))) {}
  ~AlignedBytes() { ::operator delete (data_, std::align_val_t{kPage}); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  std::byte* data() { return data_; }
  std::span<std::byte> span() { return {data_, size_}; }

 private:
  std::size_t size_;
  std::byte* data_;
};

void fill(std::span<std::byte> bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
}

std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// Aligned and odd places, sizes and memory, in any order, with both cachings: the file equals a
// copy in memory.
TEST(File, HoldsWhatIsWrittenAtAnyPlaceAndFromAnyMemory) {
  for (const Caching caching : {Caching::cached, Caching::direct}) {
    const TempDir dir;
    const auto files = posix_file_system();
    const auto file = files->create(dir / "f", caching);
    constexpr std::size_t kSize = 40 * kPage;
    std::vector<std::byte> copy(kSize);
    file->resize(kSize);
    std::mt19937 random(7);
    AlignedBytes memory(8 * kPage + 64);
    for (std::uint32_t i = 0; i < 300; ++i) {
      fill(memory.span(), i);
      const std::size_t shift = random() % 3 == 0 ? random() % 64 : 0;
      const std::size_t size = random() % 2 == 0 ? (random() % 8) * kPage : random() % (8 * kPage);
      std::size_t offset = random() % (kSize - size);
      if (random() % 2 == 0) offset = offset / kPage * kPage;
      file->write_at(offset, memory.data() + shift, size);
      std::copy_n(memory.data() + shift, size, copy.data() + offset);
    }
    AlignedBytes back(kSize);
    file->read_at(0, back.data(), kSize);
    EXPECT_TRUE(std::equal(copy.begin(), copy.end(), back.data()));

    const auto again = files->open(dir / "f");
    EXPECT_EQ(again->size(), kSize);
    std::vector<std::byte> part(5000);
    again->read_at(777, part.data(), part.size());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), copy.data() + 777));
  }
}

// Runs of any size, in pages or not, more than one call takes, through the page cache and past it.
TEST(File, HoldsRunsOneBehindTheOther) {
  constexpr std::size_t kSize = 600 * kPage;
  AlignedBytes memory(kSize);
  fill(memory.span(), 5);
  std::mt19937 random(13);
  for (int i = 0; i < 60; ++i) {
    const TempDir dir;
    const auto file =
        posix_file_system()->create(dir / "f", i % 3 == 0 ? Caching::cached : Caching::direct);
    const std::size_t begin = i % 4 == 1 ? random() % kPage : random() % 9 * kPage;
    std::vector<WriteRun> runs;
    std::vector<std::byte> expected(begin);
    for (std::size_t left = random() % 200; left > 0; --left) {
      std::size_t size = (1 + random() % 4) * kPage, from = random() % 500 * kPage;
      if (i % 5 == 2 && random() % 9 == 0) from += random() % kPage;
      if (i % 5 == 3 && random() % 9 == 0) size -= random() % kPage;
      runs.push_back({memory.data() + from, size});
      expected.insert(expected.end(), memory.data() + from, memory.data() + from + size);
    }
    file->write_runs(begin, runs);
    file->sync();
    std::vector<std::byte> back(static_cast<std::size_t>(file->size()));
    file->read_at(0, back.data(), back.size());
    if (runs.empty()) expected.clear();
    ASSERT_TRUE(back == expected) << i;
  }
}

TEST(File, RunsInMemoryThatIsNotThereAreAnError) {
  void* const memory = ::mmap(nullptr, 4 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const WriteRun run{static_cast<const std::byte*>(memory), 4 * kPage};
  for (const Caching caching : {Caching::cached, Caching::direct}) {
    const TempDir dir;
    const auto file = posix_file_system()->create(dir / "f", caching);
    EXPECT_THAT(
        message_of(ErrorCode::io,
                   [&] {
                     file->write_runs(kPage, {&run, 1});
                   }),
        HasSubstr("write " + (dir / "f").string() + ": Bad address, 16384 bytes at offset"));
  }
  ::munmap(memory, 4 * kPage);
}

// The one that cannot be read is named, though all of them are one call at first.
TEST(File, OfSeveralRunsTheOneThatFailsIsNamed) {
  AlignedBytes good(2 * kPage);
  fill(good.span(), 1);
  void* const bad = ::mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(bad, MAP_FAILED);
  const WriteRun runs[] = {
      {good.data(), 2 * kPage}, {static_cast<const std::byte*>(bad), kPage}, {good.data(), kPage}};
  const TempDir dir;
  const auto file = posix_file_system()->create(dir / "f", Caching::direct);
  EXPECT_THAT(message_of(ErrorCode::io, [&] { file->write_runs(kPage, runs); }),
              HasSubstr("Bad address, 4096 bytes at offset 12288 needed"));
  ::munmap(bad, kPage);
}

// The tail goes through the cache: rounding it up would destroy the bytes after it.
TEST(File, DirectWriteLeavesTheBytesBehindItAlone) {
  const TempDir dir;
  const auto file = posix_file_system()->create(dir / "f", Caching::direct);
  const std::vector<std::byte> metadata = bytes_of("metadata");
  AlignedBytes data(2 * kPage);
  fill(data.span(), 1);
  file->write_at(kPage + 100, metadata.data(), metadata.size());
  file->write_at(0, data.data(), kPage + 100);
  std::vector<std::byte> back(metadata.size());
  file->read_at(kPage + 100, back.data(), back.size());
  EXPECT_EQ(back, metadata);
  EXPECT_EQ(file->size(), kPage + 100 + metadata.size());
}

TEST(File, TwoThreadsWriteAtDifferentPlaces) {
  const TempDir dir;
  const auto file = posix_file_system()->create(dir / "f", Caching::direct);
  constexpr std::size_t kBlocks = 64;
  file->resize(kBlocks * kPage);
  const auto write_every_second = [&](std::size_t first) {
    AlignedBytes block(kPage);
    for (std::size_t i = first; i < kBlocks; i += 2) {
      std::fill(block.span().begin(), block.span().end(), static_cast<std::byte>(i));
      file->write_at(i * kPage, block.data(), kPage);
    }
  };
  { const std::jthread even(write_every_second, 0), odd(write_every_second, 1); }
  std::vector<std::byte> back(kBlocks * kPage);
  file->read_at(0, back.data(), back.size());
  for (std::size_t i = 0; i < back.size(); ++i) {
    ASSERT_EQ(back[i], static_cast<std::byte>(i / kPage)) << i;
  }
}

TEST(File, ResizeGrowsWithZerosOnTheDiskAndShrinks) {
  const TempDir dir;
  const auto file = posix_file_system()->create(dir / "f", Caching::cached);
  const std::vector<std::byte> text = bytes_of("abc");
  file->write_at(0, text.data(), text.size());
  file->resize(std::size_t{1} << 20);
  EXPECT_EQ(file->size(), std::size_t{1} << 20);
  struct stat status {};
  ASSERT_EQ(::stat((dir / "f").c_str(), &status), 0);
  EXPECT_GE(status.st_blocks * 512, 1 << 20) << "space is taken now, not by later writes";
  std::byte last{1};
  file->read_at((1 << 20) - 1, &last, 1);
  EXPECT_EQ(last, std::byte{0});
  file->resize(2);
  EXPECT_EQ(file->size(), 2u);
  file->sync();
  file->close();
}

TEST(File, FullDiskSaysHowMuchWasNeeded) {
  const TempDir dir;
  const auto file = posix_file_system()->create(dir / "f", Caching::direct);
  const std::string message =
      message_of(ErrorCode::io, [&] { file->resize(std::uint64_t{1} << 60); });
  EXPECT_THAT(message, HasSubstr("allocate " + (dir / "f").string()));
  EXPECT_THAT(message, HasSubstr("1152921504606846976 bytes"));
}

// Whether a page of the file is in the page cache.
bool is_cached(const std::filesystem::path& path, std::uint64_t offset) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool cached = detail::PageCacheView(fd, std::filesystem::file_size(path)).holds(offset);
  ::close(fd);
  return cached;
}

// On the disk and no longer in the page cache, as far as the file system drops it.
void drop_from_cache(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

// Aligned and odd places, sizes and memory, of a file that is in the page
// cache, is not, or is in part; with the hint that all is read once, and without.
TEST(File, ReadsTheSameThroughThePageCacheAndPastIt) {
  constexpr std::size_t kSize = 300 * kPage + 17;
  const TempDir dir;
  std::vector<std::byte> written(kSize);
  fill(written, 3);
  write_file(dir / "f", written);
  std::mt19937 random(11);
  AlignedBytes memory(310 * kPage);
  for (int i = 0; i < 200; ++i) {
    if (i % 3 != 2) drop_from_cache(dir / "f");
    const auto file = posix_file_system()->open(dir / "f");
    if (i % 2 == 0) file->read_once();
    std::size_t size = random() % kSize, offset = random() % (kSize - size);
    if (i % 5 != 0) {
      size = size / kPage * kPage;
      offset = offset / kPage * kPage;
    }
    std::byte* const out = memory.data() + (i % 7 == 0 ? 13 : 0);
    file->read_at(offset, out, size);
    ASSERT_TRUE(std::equal(out, out + size, written.begin() + static_cast<std::ptrdiff_t>(offset)))
        << size << " bytes at " << offset;
    EXPECT_TRUE(i % 2 == 0 || size == 0 || file->in_memory(offset));
  }
}

bool takes_direct_reads(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

// Where the file system keeps nothing out of memory (tmpfs), or refuses to pass it by, there is
// nothing to see.
TEST(File, WhatIsReadOnceStaysOutOfThePageCache) {
  constexpr std::size_t kSize = 256 * kPage;
  const TempDir dir;
  write_file(dir / "f", std::vector<std::byte>(kSize));
  drop_from_cache(dir / "f");
  const bool stays_out = !is_cached(dir / "f", 0) && takes_direct_reads(dir / "f");
  AlignedBytes memory(kSize);
  const auto once = posix_file_system()->open(dir / "f");
  once->read_once();
  once->read_at(0, memory.data(), kSize);
  EXPECT_EQ(is_cached(dir / "f", 0), !stays_out);

  posix_file_system()->open(dir / "f")->read_at(0, memory.data(), kSize);
  EXPECT_TRUE(is_cached(dir / "f", 0));
}

// Runs in whole pages; see above for where there is nothing to see.
TEST(File, RunsThatAreWrittenDirectlyStayOutOfThePageCache) {
  constexpr std::size_t kSize = 16 * kPage;
  const TempDir dir;
  write_file(dir / "other", std::vector<std::byte>(kSize));
  drop_from_cache(dir / "other");
  const bool stays_out = !is_cached(dir / "other", 0) && takes_direct_reads(dir / "other");
  AlignedBytes memory(2 * kSize);
  fill(memory.span(), 1);
  const WriteRun runs[] = {{memory.data() + kSize, kSize}, {memory.data(), kSize}};
  for (const Caching caching : {Caching::cached, Caching::direct}) {
    const auto path = dir / (caching == Caching::direct ? "direct" : "cached");
    const auto file = posix_file_system()->create(path, caching);
    file->resize(2 * kSize);
    file->write_runs(0, runs);
    EXPECT_EQ(is_cached(path, 0), caching == Caching::cached || !stays_out);
    EXPECT_EQ(is_cached(path, kSize), caching == Caching::cached || !stays_out);
  }
}

TEST(File, ReadingPastTheEndIsCorrupt) {
  const TempDir dir;
  write_file(dir / "f", bytes_of("abc"));
  const auto file = posix_file_system()->open(dir / "f");
  AlignedBytes out(kPage);
  const std::string message =
      message_of(ErrorCode::corrupt, [&] { file->read_at(0, out.data(), kPage); });
  EXPECT_THAT(message, HasSubstr((dir / "f").string()));
  EXPECT_THAT(message, HasSubstr("ends at byte 3, 4096 bytes at offset 0 needed"));
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { file->read_at(kPage, out.data(), 8); }),
              HasSubstr("ends at byte 3, 8 bytes at offset 4096 needed"));
}

// Where the file system can do it; if not, it is null whatever is asked.
TEST(File, ASealShowsWhetherSomebodyHasWrittenSince) {
  const TempDir dir;
  const auto files = posix_file_system();
  const auto is_sealed = [&](const char* name) { return files->open(dir / name)->is_sealed(); };
  const auto make = [&](const char* name) {
    const auto file = files->create(dir / name, Caching::cached);
    const std::byte byte{1};
    file->write_at(0, &byte, 1);
    file->sync();
    file->seal();
    file->close();
  };
  make("a");
  EXPECT_TRUE(is_sealed("a"));
  files->link(dir / "a", dir / "b");
  files->rename(dir / "a", dir / "c");
  EXPECT_TRUE(is_sealed("c"));
  EXPECT_TRUE(ForwardingFile(files->open(dir / "c")).is_sealed());
  std::ofstream(dir / "b", std::ios::in | std::ios::out) << "x";
  EXPECT_FALSE(is_sealed("c")) << "it is the same file";
  files->open_for_update(dir / "c")->seal();
  EXPECT_TRUE(is_sealed("b"));
  files->open(dir / "c")->unseal();  // for reading
  EXPECT_FALSE(is_sealed("c"));
  EXPECT_FALSE(ForwardingFile(files->open(dir / "c")).is_sealed());
}

TEST(FileSystem, ReusesTheRoomOfAFileThatNobodyElseHas) {
  const TempDir dir;
  const auto files = posix_file_system();
  const auto path = dir / "file";
  std::vector<std::byte> data(100 * kPage + 7);
  fill(data, 1);
  write_file(path, data);
  const auto blocks = [&] {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status.st_blocks;
  };
  const auto text = [&] {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const int probe = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(probe, 0);
  ::fsync(probe);
  const bool can = ::fallocate(probe, FALLOC_FL_ZERO_RANGE, 0, 1) == 0;
  EXPECT_EQ(::pwrite(probe, data.data(), 1, 0), 1);
  ::fsync(probe);
  const auto room = blocks();
  const std::string before = text();
  EXPECT_EQ(files->reuse(path, Caching::direct), nullptr) << "it is open here";
  ::close(probe);
  {
    const std::unique_ptr<File> reader = files->open(path);
    EXPECT_EQ(files->reuse(path, Caching::direct), nullptr) << "and here";
  }
  std::filesystem::create_hard_link(path, dir / "link");
  EXPECT_EQ(files->reuse(path, Caching::direct), nullptr);
  std::filesystem::remove(dir / "link");
  std::filesystem::create_symlink("file", dir / "link");
  EXPECT_EQ(files->reuse(dir / "link", Caching::direct), nullptr);
  EXPECT_EQ(files->reuse(dir / "absent", Caching::direct), nullptr);
  EXPECT_EQ(files->reuse(dir.path(), Caching::direct), nullptr);
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(files->reuse(dir / "pipe", Caching::direct), nullptr);
  EXPECT_TRUE(text() == before) << "a refused file stays as it is";

  const std::unique_ptr<File> file = files->reuse(path, Caching::direct);
  ASSERT_EQ(file != nullptr, can);
  if (!can) return;
  file->sync();
  EXPECT_TRUE(text() == std::string(data.size(), '\0'));
  EXPECT_EQ(blocks(), room);
  EXPECT_EQ(file->size(), data.size());
  AlignedBytes more(3 * kPage);
  fill(more.span(), 2);
  file->write_at(kPage, more.data(), 3 * kPage);
  file->resize(5 * kPage);
  file->close();
  std::string expected(5 * kPage, '\0');
  std::memcpy(expected.data() + kPage, more.data(), 3 * kPage);
  EXPECT_TRUE(text() == expected);
  EXPECT_LT(blocks(), room);
}

TEST(FileSystem, OpensAFileForUpdateWithItsBytes) {
  const TempDir dir;
  const auto files = posix_file_system();
  write_file(dir / "file", bytes_of("abcdef"));
  const std::unique_ptr<File> file = files->open_for_update(dir / "file");
  const auto xy = bytes_of("xy");
  file->write_at(2, xy.data(), xy.size());
  file->sync();
  std::vector<std::byte> read(6);
  file->read_at(0, read.data(), read.size());
  EXPECT_TRUE(read == bytes_of("abxyef"));
  file->close();
  files->open(dir / "file")->read_at(0, read.data(), read.size());
  EXPECT_TRUE(read == bytes_of("abxyef"));
  message_of(ErrorCode::not_found, [&] { files->open_for_update(dir / "absent"); });
  std::filesystem::create_symlink("file", dir / "link");
  message_of(ErrorCode::corrupt, [&] { files->open_for_update(dir / "link"); });
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  message_of(ErrorCode::corrupt, [&] { files->open_for_update(dir / "pipe"); });
}

// Attributes that somebody gave to a file and does not expect of the next one in its place.
TEST(FileSystem, DoesNotReuseAFileThatIsNotAsANewOne) {
  const TempDir dir;
  const auto files = posix_file_system();
  const auto path = dir / "file";
  const char* const name = path.c_str();
  write_file(path, bytes_of("x"));
  const bool can = files->reuse(path, Caching::cached) != nullptr;
  const auto acl = [](unsigned char user) {  // u::rw-,u:<user>:r--,g::r--,m::r--,o::r--
    std::string text("\2\0\0\0", 4);
    const auto entry = [&](char tag, char rights, unsigned char id) {
      text += {tag, 0, rights, 0};
      text += id == 255 ? std::string(4, '\377') : std::string{static_cast<char>(id), 0, 0, 0};
    };
    entry(1, 6, 255), entry(2, 4, user), entry(4, 4, 255), entry(16, 4, 255), entry(32, 4, 255);
    return text;
  };
  const auto set = [](const char* where, const char* attribute, const std::string& value) {
    return ::setxattr(where, attribute, value.data(), value.size(), 0) == 0;
  };
  const auto set_flag = [&](int flag) {
    const int fd = ::open(name, O_RDONLY | O_CLOEXEC);
    int flags = 0;
    const bool done = ::ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 &&
                      ::ioctl(fd, FS_IOC_SETFLAGS, &(flags |= flag)) == 0;
    ::close(fd);
    return done;
  };
  const struct {
    const char* what;
    std::function<bool()> change;  // false where it is not possible here
  } cases[] = {
      {"rights", [&] { return ::chmod(name, 0666) == 0; }},
      {"owner", [&] { return ::chown(name, 12345, gid_t(-1)) == 0; }},
      {"group", [&] { return ::chown(name, uid_t(-1), 12345) == 0; }},
      {"user attribute", [&] { return set(name, "user.note", "mine"); }},
      {"ACL", [&] { return set(name, "system.posix_acl_access", acl(77)); }},
      {"flag", [&] { return set_flag(FS_NODUMP_FL); }},
  };
  int possible = 0;
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    std::filesystem::remove(path);
    write_file(path, bytes_of("x"));
    EXPECT_EQ(files->reuse(path, Caching::cached) != nullptr, can);
    if (!c.change()) continue;
    ++possible;
    EXPECT_EQ(files->reuse(path, Caching::cached), nullptr);
  }
  EXPECT_GE(possible, 1);

  // It may have attributes that every new file in the directory gets.
  std::filesystem::create_directory(dir / "given");
  const std::string given = (dir / "given").string();
  if (::chown(given.c_str(), uid_t(-1), 12345) != 0 || ::chmod(given.c_str(), 02755) != 0 ||
      !set(given.c_str(), "system.posix_acl_default", acl(78))) {
    return;
  }
  write_file(dir / "given/file", bytes_of("x"));
  EXPECT_EQ(files->reuse(dir / "given/file", Caching::cached) != nullptr, can);
  std::filesystem::rename(dir / "given/file", dir / "file2");
  EXPECT_EQ(files->reuse(dir / "file2", Caching::cached), nullptr);
}

TEST(FileSystem, ErrorsSayOperationPathAndReason) {
  const TempDir dir;
  const auto files = posix_file_system();
  write_file(dir / "there", bytes_of("x"));
  files->make_directory(dir / "full");
  write_file(dir / "full" / std::string("x"), bytes_of("x"));
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  struct Case {
    const char* name;
    ErrorCode code;
    std::function<void()> run;
    const char* part;
  };
  const Case cases[] = {
      {"open a missing file", ErrorCode::not_found, [&] { files->open(dir / "no"); }, "open"},
      {"open a directory", ErrorCode::corrupt, [&] { files->open(dir / "full"); },
       "not a regular file"},
      {"open a pipe", ErrorCode::corrupt, [&] { files->open(dir / "pipe"); }, "not a regular file"},
      {"create an existing file", ErrorCode::already_exists,
       [&] { files->create(dir / "there", Caching::direct); }, "create"},
      {"create below a missing folder", ErrorCode::not_found,
       [&] { files->create(dir / "no/f", Caching::cached); }, "create"},
      {"make a directory twice", ErrorCode::already_exists,
       [&] { files->make_directory(dir / "full"); }, "make directory"},
      {"rename onto a file", ErrorCode::already_exists,
       [&] { files->rename(dir / "full", dir / "there"); }, "rename"},
      {"rename onto an empty directory", ErrorCode::already_exists,
       [&] {
         files->make_directory(dir / "empty");
         files->rename(dir / "full", dir / "empty");
       },
       "rename"},
      {"rename a missing file", ErrorCode::not_found,
       [&] { files->rename(dir / "no", dir / "new"); }, "rename"},
      {"remove a full directory", ErrorCode::already_exists, [&] { files->remove(dir / "full"); },
       "remove"},
      {"list a missing directory", ErrorCode::not_found, [&] { files->list(dir / "no"); }, "list"},
      {"list a file", ErrorCode::io, [&] { files->list(dir / "there"); }, "list"},
      {"sync a missing directory", ErrorCode::not_found, [&] { files->sync_directory(dir / "no"); },
       "directory"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string message = message_of(c.code, c.run);
    EXPECT_THAT(message, HasSubstr(c.part));
    EXPECT_THAT(message, HasSubstr(dir.path().string()));
  }
}

TEST(FileSystem, RenamesListsAndRemoves) {
  const TempDir dir;
  const auto files = posix_file_system();
  files->make_directory(dir / "d");
  write_file(dir / "b", bytes_of("x"));
  write_file(dir / ".a", bytes_of("x"));
  EXPECT_THAT(files->list(dir.path()), ElementsAre(".a", "b", "d"));
  files->rename(dir / "b", dir / "c");
  files->sync_directory(dir.path());
  files->remove(dir / "d");
  files->remove(dir / "never there");
  EXPECT_THAT(files->list(dir.path()), ElementsAre(".a", "c"));
}

TEST(Directory, FindsItsFilesWhereverItsPathLeads) {
  const TempDir dir;
  const auto files = posix_file_system();
  const auto write = [&](const std::filesystem::path& directory, std::string_view text) {
    std::filesystem::create_directory(directory);
    std::ofstream(directory / "f") << text;
  };
  const auto read = [](Directory& directory) {
    const std::unique_ptr<File> file = directory.open("f");
    std::vector<std::byte> bytes(file->size());
    file->read_at(0, bytes.data(), bytes.size());
    return bytes;
  };
  write(dir / "d", "old");
  const std::unique_ptr<Directory> directory = files->open_directory(dir / "d");
  EXPECT_TRUE(directory->is_in_place());
  std::filesystem::rename(dir / "d", dir / "away");
  EXPECT_FALSE(directory->is_in_place());
  EXPECT_EQ(read(*directory), bytes_of("old"));
  write(dir / "d", "new");
  EXPECT_FALSE(directory->is_in_place()) << "another one has its name";
  EXPECT_EQ(read(*directory), bytes_of("old"));

  std::filesystem::create_symlink(dir / "d" / "f", dir / "away" / "link");
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { directory->open("link"); }),
              HasSubstr((dir / "d" / "link").string()));
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { directory->open("g"); }),
              HasSubstr((dir / "d" / "g").string()));
  message_of(ErrorCode::not_found, [&] { files->open_directory(dir / "nowhere"); });
}

}  // namespace
}  // namespace shardwise
