#pragma once

#include <cstddef>
#include <cstdint>

namespace shardwise::detail {

/// Tells what of an open file lies in the page cache. Maps the file and asks about the pages of the
/// mapping, which are never touched, so a file that shrinks meanwhile does no harm. Thread-safe.
class PageCacheView {
 public:
  PageCacheView(int fd, std::uint64_t size);
  ~PageCacheView();
  PageCacheView(const PageCacheView&) = delete;
  PageCacheView& operator=(const PageCacheView&) = delete;

  /// Whether the byte at `offset` does. False where the system does not tell: of a file that
  /// another user owns and this one cannot write, or that cannot be mapped. Beyond the size true.
  bool holds(std::uint64_t offset) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_;
};

}  // namespace shardwise::detail
