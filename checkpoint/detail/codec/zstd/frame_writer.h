#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace shardwise::detail {

/// The most content of one block.
inline constexpr std::size_t kZstdBlockBytes = std::size_t{128} << 10;

/// A zstd frame put together block by block (RFC 8878, section 3.1.1) in memory of the caller's.
/// Thread-compatible.
class FrameWriter {
 public:
  explicit FrameWriter(std::span<std::byte> out) : out_(out) {}

  /// One segment whose content size takes four bytes, and fits.
  void begin(std::size_t content_bytes);

  /// Bytes as they are, in as many blocks as they need.
  void add_raw(std::span<const std::byte> bytes, bool last);

  /// A block whose bytes the caller fills in; null if there is no room for it.
  std::byte* add_raw_room(std::size_t bytes, bool last);

  /// One byte, `times` times, in as many blocks as that needs.
  void add_repeated(std::byte value, std::size_t times, bool last);

  /// A compressed block, whose parts follow one another.
  void add_compressed(std::initializer_list<std::span<const std::byte>> parts, bool last);

  /// 0 if the room did not suffice.
  std::size_t size() const { return full_ ? 0 : size_; }

 private:
  enum class BlockType : std::uint32_t { raw, repeated, compressed };

  void put_header(BlockType type, std::size_t size, bool last);
  void put(std::uint32_t value, std::size_t bytes);
  void put(std::span<const std::byte> bytes);

  std::span<std::byte> out_;
  std::size_t size_ = 0;
  bool is_first_ = true;  ///< the next block
  bool full_ = false;
};

}  // namespace shardwise::detail
