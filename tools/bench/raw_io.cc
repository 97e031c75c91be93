#include "bench/raw_io.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <future>
#include <vector>

#include "interrupt.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kBlockBytes = std::size_t{8} << 20;
constexpr int kWriters = 2;

// An open file; closed with it. Thread-safe for reads and writes at places.
class RawFile {
 public:
  RawFile(const fs::path& path, int flags) : path_(path), fd_(::open(path.c_str(), flags, 0666)) {
    if (fd_ < 0) fail("open");
  }
  ~RawFile() { ::close(fd_); }
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;

  int fd() const { return fd_; }

  [[noreturn]] void fail(const char* what) const {
    throw Error(ErrorCode::io,
                fmt::format("bench: {} {}: {}", what, path_.string(), std::strerror(errno)));
  }

 private:
  fs::path path_;
  int fd_;
};

int write_flags(Caching caching) {
  return O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | (caching == Caching::direct ? O_DIRECT : 0);
}

void write_at(const RawFile& file, std::span<const std::byte> bytes, std::size_t at) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) file.fail("write");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    at += static_cast<std::size_t>(done);
  }
}

void read_at(const RawFile& file, std::span<std::byte> bytes, std::size_t at) {
  while (!bytes.empty()) {
    const ssize_t done = ::pread(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) file.fail("read");
    if (done == 0) throw Error(ErrorCode::io, "bench: a file has become shorter while it was read");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    at += static_cast<std::size_t>(done);
  }
}

struct Block {
  std::size_t file, begin, size_bytes;  // in the file
  std::size_t place;                    // in memory
};

// Every n-th block on each of n threads; progress on the first one.
void for_each_block(std::span<const Block> blocks, int threads, const ProgressFunction& progress,
                    const std::function<void(const Block&)>& body) {
  const std::size_t total = blocks.empty() ? 0 : blocks.back().place + blocks.back().size_bytes;
  const auto stride = static_cast<std::size_t>(threads);
  const auto run = [&](std::size_t first) {
    for (std::size_t i = first; i < blocks.size(); i += stride) {
      InterruptNote::check("bench");
      body(blocks[i]);
      if (first == 0 && progress) progress({blocks[i].place + blocks[i].size_bytes, total});
    }
  };
  std::vector<std::future<void>> others;
  for (std::size_t t = 1; t < stride; ++t) {
    others.push_back(std::async(std::launch::async, run, t));
  }
  run(0);
  for (std::future<void>& other : others) other.get();
}

std::vector<Block> blocks_of(std::span<const std::size_t> file_sizes) {
  std::vector<Block> blocks;
  std::size_t place = 0;
  for (std::size_t file = 0; file < file_sizes.size(); ++file) {
    for (std::size_t begin = 0; begin < file_sizes[file]; begin += kBlockBytes) {
      const std::size_t size = std::min(kBlockBytes, file_sizes[file] - begin);
      blocks.push_back({file, begin, size, place});
      place += size;
    }
  }
  return blocks;
}

}  // namespace

TouchedPages::TouchedPages(std::size_t size_bytes)
    : size_bytes_((size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes),
      memory_(page_memory(size_bytes_)) {
  std::memset(memory_.get(), 0, size_bytes_);
}

Caching best_caching(const fs::path& path) {
  const TouchedPages page(kPageBytes);
  const int fd = ::open(path.c_str(), write_flags(Caching::direct), 0666);
  const int error = errno;
  const bool written = fd >= 0 && ::pwrite(fd, page.bytes().data(), kPageBytes, 0) ==
                                      static_cast<ssize_t>(kPageBytes);
  if (fd >= 0) ::close(fd);
  ::unlink(path.c_str());
  if (fd < 0 && error != EINVAL && error != EOPNOTSUPP) {
    throw Error(ErrorCode::io,
                fmt::format("bench: make {}: {}", path.string(), std::strerror(error)));
  }
  return written ? Caching::direct : Caching::buffered;
}

double write_raw(const fs::path& path, std::span<const std::byte> bytes, Caching caching,
                 const ProgressFunction& progress) {
  const std::size_t size = bytes.size();
  const Stopwatch watch;
  const RawFile file(path, write_flags(caching));
  // The full size at once, if the file system can: writers that extend a file wait for each other.
  if (::fallocate(file.fd(), 0, 0, static_cast<off_t>(size)) != 0 &&
      ::ftruncate(file.fd(), static_cast<off_t>(size)) != 0) {
    file.fail("size");
  }
  for_each_block(blocks_of(std::span(&size, 1)), kWriters, progress, [&](const Block& block) {
    write_at(file, bytes.subspan(block.place, block.size_bytes), block.begin);
  });
  if (::fsync(file.fd()) != 0) file.fail("sync");
  return watch.seconds();
}

double read_raw(std::span<const fs::path> paths, std::span<std::byte> memory, int threads,
                const ProgressFunction& progress) {
  const Stopwatch watch;
  std::vector<std::unique_ptr<RawFile>> files;
  std::vector<std::size_t> sizes;
  for (const fs::path& path : paths) {
    files.push_back(std::make_unique<RawFile>(path, O_RDONLY | O_CLOEXEC));
    sizes.push_back(fs::file_size(path));
  }
  for_each_block(blocks_of(sizes), threads, progress, [&](const Block& block) {
    read_at(*files[block.file], memory.subspan(block.place, block.size_bytes), block.begin);
  });
  return watch.seconds();
}

void settle(const fs::path& path) {
  const RawFile file(path, O_RDONLY | O_CLOEXEC);
  if (::syncfs(file.fd()) != 0) file.fail("sync the file system of");
}

void drop_from_cache(const fs::path& path) {
  const RawFile file(path, O_RDONLY | O_CLOEXEC);
  if (::fsync(file.fd()) != 0) file.fail("sync");
  if (::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED) != 0) file.fail("drop the pages of");
}

}  // namespace shardwise::tools
