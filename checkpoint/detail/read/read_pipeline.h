#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/lanes/scratch_pool.h"
#include "shardwise/shard/host/page_memory.h"
#include "shardwise/storage/detail/open_files.h"

namespace shardwise::detail {

/// Bytes of one file.
struct FileRange {
  std::size_t file;
  std::uint64_t address;
  std::size_t bytes;

  /// Read by itself, part by part, so that it needs no room of its size.
  bool in_parts = false;
};

/// A range's bytes while they are consumed. Thread-compatible.
class RangeBytes {
 public:
  virtual ~RangeBytes() = default;

  /// The bytes that follow those of the last call, valid until the next one: all at once unless the
  /// range is in_parts; empty when there are no more. Throws io or corrupt, saying for what.
  virtual std::span<const std::byte> next() = 0;
};

/// Room for bytes that are read or decoded. Thread-compatible.
class ReadBuffer {
 public:
  /// Memory that begins on a page, of at least `bytes`, valid until the next call. The system gives
  /// only pages that are used, so it is made for a large chunk at once.
  std::byte* room(std::size_t bytes) {
    if (bytes > held_bytes_ || memory_ == nullptr) {
      memory_.reset();  // first, so that never both are there
      held_bytes_ = 0;
      const std::size_t wanted = std::max(bytes, std::size_t{1} << 20);
      memory_ = page_memory(wanted);
      held_bytes_ = wanted;
    }
    return memory_.get();
  }

  std::size_t held_bytes() const { return held_bytes_; }

 private:
  PageMemory memory_;
  std::size_t held_bytes_ = 0;
};

/// Buffers that are kept from one job to the next. If each job made its own, the allocator would
/// keep freed memory for each of many threads, and so several times the memory in use.
using ReadBuffers = ScratchPool<ReadBuffer>;

/// Ranges to read, and the function that consumes them.
struct ReadJob {
  OpenFiles& files;
  ReadBuffers& buffers;

  /// Ordered by file and address; they do not overlap.
  std::span<const FileRange> ranges;

  /// If it is given, reads begin and end on pages, as reads past the page cache have to.
  std::vector<std::uint64_t> file_sizes = {};

  /// Called once for each range. Up to `threads` threads at once consume bytes that have been read,
  /// and twice as many bytes that come in parts.
  std::function<void(std::size_t range, RangeBytes& bytes)> consume;

  /// Names a range, for the message if it cannot be read.
  std::function<std::string(std::size_t range)> describe;

  /// Called on the caller's thread from time to time, and when all is consumed. May be null.
  std::function<void()> progress = nullptr;

  /// Threads that compute. Twice as many read, so that the disk works while they do.
  int threads = 1;

  /// True for files in a bucket: 16 threads or more read, in larger requests.
  bool is_remote = false;

  /// Most bytes of buffers and of memory that calls of consume take themselves, `call_bytes` each;
  /// never less than the largest buffer and one call need.
  std::size_t budget_bytes = SIZE_MAX;
  std::size_t call_bytes = 0;
};

/// Reads neighbouring ranges together, on threads of its own; each reads and consumes in turn, so
/// that the bytes are still in its processor's cache. Throws the error of the first range that
/// cannot be read or consumed, first by its number and not by time; then nothing is under way any
/// more.
void run_read_job(const ReadJob& job);

}  // namespace shardwise::detail
