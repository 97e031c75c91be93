#include "shardwise/checkpoint/detail/page_memory.h"

#include <new>

namespace shardwise::detail {

void FreePages::operator()(std::byte* memory) const {
  ::operator delete (memory, std::align_val_t{kPageBytes});
}

PageMemory page_memory(std::size_t bytes) {
  return PageMemory(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kPageBytes})));
}

}  // namespace shardwise::detail
