#include "shardwise/convert/detail/write/aligned_writes.h"

#include <cassert>
#include <cstring>

namespace shardwise::detail {

void AlignedWrites::start(File& file) {
  file_ = &file;
  used_ = 0;
  offset_ = 0;
}

std::span<std::byte> AlignedWrites::next(std::size_t size) {
  assert(size <= most_bytes());
  if (size > buffer_bytes_ - used_) write_first(used_ / kPageBytes * kPageBytes);
  const std::span<std::byte> room(buffer_.get() + used_, size);
  used_ += size;
  return room;
}

void AlignedWrites::write(std::string_view text) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, most_bytes());
    std::memcpy(next(part.size()).data(), part.data(), part.size());
    text.remove_prefix(part.size());
  }
}

void AlignedWrites::finish() { write_first(used_); }

void AlignedWrites::write_first(std::size_t size) {
  if (size > 0) file_->write_at(offset_, buffer_.get(), size);
  offset_ += size;
  used_ -= size;
  std::memmove(buffer_.get(), buffer_.get() + size, used_);
}

}  // namespace shardwise::detail
