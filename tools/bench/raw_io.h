#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "shardwise/checkpoint/save.h"
#include "shardwise/shard/host/page_memory.h"

namespace shardwise::tools {

/// Memory that O_DIRECT takes, of zeros, all of it touched. Thread-compatible.
class TouchedPages {
 public:
  /// Throws std::bad_alloc.
  explicit TouchedPages(std::size_t size_bytes);

  /// Rounded up to whole pages.
  std::span<std::byte> bytes() const { return {memory_.get(), size_bytes_}; }

 private:
  std::size_t size_bytes_;
  PageMemory memory_;
};

/// Direct writes go past the page cache.
enum class Caching { direct, buffered };

/// The best that the file system takes: direct, unless it refuses a direct write of one page. The
/// file is removed again. Throws io.
Caching best_caching(const std::filesystem::path& path);

/// Seconds that it takes to write the bytes to a new file from two threads, in blocks of 8 MiB, and
/// to fsync it: the limit of a durable save. Requires whole pages. Throws io, or progress's error.
double write_raw(const std::filesystem::path& path, std::span<const std::byte> bytes,
                 Caching caching, const ProgressFunction& progress);

/// Seconds that it takes to read the files, one after the other, into the memory, in blocks of 8
/// MiB with `threads` threads. Requires room for them. Throws as above.
double read_raw(std::span<const std::filesystem::path> paths, std::span<std::byte> memory,
                int threads, const ProgressFunction& progress);

/// Waits until the file system that holds this has nothing left to write, so that the next
/// measurement does not pay for earlier writes. Throws io.
void settle(const std::filesystem::path& path);

/// Drops the file's pages from the page cache, after an fsync; needs no root. Throws io.
void drop_from_cache(const std::filesystem::path& path);

}  // namespace shardwise::tools
