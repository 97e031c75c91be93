#include "shardwise/storage/detail/page_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace shardwise::detail {

namespace {

// To a process that neither owns a file nor may write it, Linux (5.2 and later) reports every page
// as cached.
bool is_told_of_residency(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) == 0 && status.st_uid == ::geteuid()) return true;
  return ::faccessat(AT_FDCWD, fmt::format("/proc/self/fd/{}", fd).c_str(), W_OK, AT_EACCESS) == 0;
}

}  // namespace

PageCacheView::PageCacheView(int fd, std::uint64_t size) : size_(static_cast<std::size_t>(size)) {
  if (size_ == 0 || !is_told_of_residency(fd)) return;
  void* const data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
  if (data != MAP_FAILED) data_ = static_cast<std::byte*>(data);
}

PageCacheView::~PageCacheView() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

bool PageCacheView::holds(std::uint64_t offset) const {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (offset >= size_) return true;
  if (data_ == nullptr) return false;
  unsigned char resident = 1;
  ::mincore(data_ + offset / page * page, 1, &resident);
  return (resident & 1) != 0;
}

}  // namespace shardwise::detail
