#include "shardwise/checkpoint/detail/codec/zstd/frame_writer.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <utility>

namespace shardwise::detail {

void FrameWriter::begin(std::size_t content_bytes) {
  assert(content_bytes <= UINT32_MAX);
  put(0xFD2FB528, 4);
  put(0xA0, 1);
  put(static_cast<std::uint32_t>(content_bytes), 4);
}

void FrameWriter::add_raw(std::span<const std::byte> bytes, bool last) {
  while (!bytes.empty()) {
    const auto block = bytes.first(std::min(bytes.size(), kZstdBlockBytes));
    bytes = bytes.subspan(block.size());
    std::byte* const room = add_raw_room(block.size(), last && bytes.empty());
    if (room != nullptr) std::copy(block.begin(), block.end(), room);
  }
}

std::byte* FrameWriter::add_raw_room(std::size_t bytes, bool last) {
  is_first_ = false;
  put_header(BlockType::raw, bytes, last);
  full_ = full_ || bytes > out_.size() - size_;
  if (full_) return nullptr;
  std::byte* const room = out_.data() + size_;
  size_ += bytes;
  return room;
}

void FrameWriter::add_repeated(std::byte value, std::size_t times, bool last) {
  // Decoders up to 1.4.3 do not take a repeated byte as a frame's first block.
  if (times > 0 && std::exchange(is_first_, false)) {
    --times;
    add_raw({&value, 1}, last && times == 0);
  }
  while (times > 0) {
    const std::size_t block = std::min(times, kZstdBlockBytes);
    times -= block;
    put_header(BlockType::repeated, block, last && times == 0);
    put({&value, 1});
  }
}

void FrameWriter::add_compressed(std::initializer_list<std::span<const std::byte>> parts,
                                 bool last) {
  std::size_t size = 0;
  for (const auto part : parts) size += part.size();
  assert(size <= kZstdBlockBytes);
  is_first_ = false;
  put_header(BlockType::compressed, size, last);
  for (const auto part : parts) put(part);
}

void FrameWriter::put_header(BlockType type, std::size_t size, bool last) {
  put(static_cast<std::uint32_t>(size) << 3 | static_cast<std::uint32_t>(type) << 1 |
          (last ? 1 : 0),
      3);
}

void FrameWriter::put(std::uint32_t value, std::size_t bytes) {
  std::array<std::byte, 4> little;
  for (std::size_t i = 0; i < 4; ++i) little[i] = static_cast<std::byte>(value >> 8 * i);
  put(std::span<const std::byte>(little).first(bytes));
}

void FrameWriter::put(std::span<const std::byte> bytes) {
  full_ = full_ || bytes.size() > out_.size() - size_;
  if (full_) return;
  std::copy(bytes.begin(), bytes.end(), out_.begin() + static_cast<std::ptrdiff_t>(size_));
  size_ += bytes.size();
}

}  // namespace shardwise::detail
