#pragma once

#include <cstddef>
#include <cstdint>

namespace shardwise::detail {

/// Tells which bytes of an open file are in the page cache. It maps the file and asks about the
/// pages of the mapping; it never touches them, so a file may shrink without harm. Thread-safe.
class PageCacheView {
 public:
  PageCacheView(int fd, std::uint64_t size);
  ~PageCacheView();
  PageCacheView(const PageCacheView&) = delete;
  PageCacheView& operator=(const PageCacheView&) = delete;

  /// True if the byte at `offset` is in the page cache. False if the system does not tell: if
  /// another user owns the file and this one cannot write it, or if it cannot be mapped. True past
  /// the end of the file.
  bool holds(std::uint64_t offset) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_;
};

}  // namespace shardwise::detail
