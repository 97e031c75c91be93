#include "shardwise/loader/detail/files/file_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kLeastWindowBytes = std::size_t{1} << 20;

}  // namespace

bool FileWindow::read_more() {
  const std::size_t size = end_ - begin_;
  if (size >= kMostBytes) {
    throw Error(ErrorCode::corrupt, fmt::format("read {}: the record at offset {} is over {} bytes",
                                                file_.path(), offset_, kMostBytes));
  }
  if (begin_ > 0 || size == capacity_) {
    const std::size_t least = std::min(kLeastWindowBytes, file_.size_bytes() + 1);
    // Twice the current size, so that each byte of a long record is moved only a few times.
    const std::size_t capacity = std::max({capacity_, least, 2 * size});
    if (capacity == capacity_) {
      std::memmove(buffer_.get(), buffer_.get() + begin_, size);
    } else {
      auto larger = std::make_unique_for_overwrite<char[]>(capacity);
      if (size > 0) std::memcpy(larger.get(), buffer_.get() + begin_, size);
      buffer_ = std::move(larger);
      capacity_ = capacity;
    }
    begin_ = 0;
    end_ = size;
  }
  const std::span<char> room(buffer_.get() + end_, capacity_ - end_);
  const std::size_t count = file_.read_at(offset_ + size, std::as_writable_bytes(room));
  end_ += count;
  return count > 0;
}

}  // namespace shardwise::detail
