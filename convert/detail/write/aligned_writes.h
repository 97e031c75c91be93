#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "shardwise/shard/host/page_memory.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Writes a file from its start to its end, through a buffer, in whole pages: these can bypass the
/// page cache, which is several times as fast. Thread-compatible.
class AlignedWrites {
 public:
  /// Requires two pages.
  explicit AlignedWrites(std::size_t buffer_bytes)
      : buffer_(page_memory(buffer_bytes)), buffer_bytes_(buffer_bytes) {}

  /// Begins the next file, which must live until finish().
  void start(File& file);

  /// Most bytes that next() gives.
  std::size_t most_bytes() const { return buffer_bytes_ - kPageBytes; }

  /// The place for the next bytes of the file, valid until the next call.
  std::span<std::byte> next(std::size_t size);

  void write(std::string_view text);

  /// Writes the rest of the buffer.
  void finish();

 private:
  void write_first(std::size_t size);

  File* file_ = nullptr;
  PageMemory buffer_;
  std::size_t buffer_bytes_, used_ = 0;
  std::uint64_t offset_ = 0;  ///< of the buffer in the file, on a page
};

}  // namespace shardwise::detail
