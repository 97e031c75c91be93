#include "shardwise/checkpoint/detail/page_memory.h"

#include <sys/mman.h>

namespace shardwise::detail {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

}  // namespace

void FreePages::operator()(std::byte* memory) const { ::operator delete(memory, alignment); }

PageMemory page_memory(std::size_t bytes) {
  const std::align_val_t alignment{bytes < kHugePageBytes ? kPageBytes : kHugePageBytes};
  void* const memory = ::operator new(bytes, alignment);
  // Those that it fills; where the advice is refused, small pages do.
  if (bytes >= kHugePageBytes) {
    ::madvise(memory, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  }
  return PageMemory(static_cast<std::byte*>(memory), {alignment});
}

}  // namespace shardwise::detail
