#include "shardwise/shard/host/page_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace shardwise {
namespace {

constexpr std::size_t kCacheLineBytes = 64;

std::size_t natural_alignment(std::size_t size_bytes) {
  if (size_bytes >= kHugePageBytes) return kHugePageBytes;
  return size_bytes >= kLeastPagedBytes ? kPageBytes : kCacheLineBytes;
}

std::byte* allocate(std::size_t size_bytes, std::size_t alignment) {
  void* const memory = ::operator new (size_bytes, std::align_val_t{alignment});
  // Advises only the huge pages that the memory fills, so it takes no more than requested. If the
  // advice is refused, small pages serve.
  if (size_bytes >= kHugePageBytes) {
    ::madvise(memory, size_bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

std::byte* allocate_memory(std::size_t size_bytes) {
  return allocate(size_bytes, natural_alignment(size_bytes));
}

void free_memory(std::byte* memory, std::size_t size_bytes) noexcept {
  ::operator delete (memory, std::align_val_t{natural_alignment(size_bytes)});
}

void FreePages::operator()(std::byte* memory) const noexcept {
  ::operator delete (memory, std::align_val_t{alignment});
}

PageMemory page_memory(std::size_t size_bytes) {
  const std::size_t to = std::max(kPageBytes, natural_alignment(size_bytes));
  return PageMemory(allocate(size_bytes, to), {to});
}

}  // namespace shardwise
