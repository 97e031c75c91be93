#include "shardwise/checkpoint/detail/page_cache.h"

#include <sys/mman.h>
#include <unistd.h>

namespace shardwise::detail {

PageCacheView::PageCacheView(int fd, std::uint64_t size) : size_(static_cast<std::size_t>(size)) {
  if (size_ == 0) return;
  void* const data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
  if (data != MAP_FAILED) data_ = static_cast<std::byte*>(data);
}

PageCacheView::~PageCacheView() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

bool PageCacheView::holds(std::uint64_t offset) const {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (data_ == nullptr || offset >= size_) return true;
  unsigned char resident = 1;
  ::mincore(data_ + offset / page * page, 1, &resident);
  return (resident & 1) != 0;
}

}  // namespace shardwise::detail
