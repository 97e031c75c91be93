#pragma once

#include <zlib.h>

#include <array>
#include <cstddef>
#include <span>

#include "shardwise/loader/detail/files/input_file.h"

namespace shardwise::detail {

/// Most bytes that one byte of a gzip file can unpack to. This is the limit of the deflate format,
/// which can code a match of 258 bytes in two bits.
inline constexpr std::size_t kMaxGzipRatio = 1032;

/// Unpacks a gzip file from its beginning: all its members, one after the other. Thread-compatible.
class GzipReader {
 public:
  /// `file` must outlive the reader.
  explicit GzipReader(const InputFile& file);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  /// Unpacks the next bytes and returns their number, less than out.size() only at the end. The
  /// checksum of a member is compared when its end is reached. Throws io, or corrupt if the file is
  /// damaged, ends within a member or has other bytes after one.
  std::size_t read(std::span<std::byte> out);

 private:
  bool refill();
  bool begin_next_member();
  [[noreturn]] void fail(const char* found) const;

  const InputFile& file_;
  std::size_t next_offset_ = 0;  // in the file, of the byte after buffer_
  bool within_member_ = false;
  std::array<std::byte, 1 << 16> buffer_;
  z_stream stream_{};
};

}  // namespace shardwise::detail
