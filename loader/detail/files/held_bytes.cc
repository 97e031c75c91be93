#include "shardwise/loader/detail/files/held_bytes.h"

#include <algorithm>
#include <new>
#include <utility>

namespace shardwise::detail {

HeldBytes::HeldBytes(std::size_t size_bytes, std::size_t block_bytes, HoldBudget& budget, Read read)
    : size_bytes_(size_bytes), block_bytes_(block_bytes), read_(std::move(read)) {
  if (size_bytes == 0 || size_bytes > budget.left_bytes) return;
  try {
    // Pages that nobody has written to yet take no memory.
    memory_ = page_memory(size_bytes);
  } catch (const std::bad_alloc&) {
    return;  // a process that may not have so much does without
  }
  is_there_ = std::make_unique<std::atomic<bool>[]>((size_bytes - 1) / block_bytes + 1);
  budget.left_bytes -= size_bytes;
}

bool HeldBytes::read_block(std::size_t block) const {
  const MutexLock lock(locks_[block % kLocks]);
  if (is_there_[block].load(std::memory_order_relaxed)) return true;
  const std::size_t begin = block * block_bytes_;
  const std::size_t size = std::min(block_bytes_, size_bytes_ - begin);
  if (read_(begin, {memory_.get() + begin, size}) < size) return false;
  is_there_[block].store(true, std::memory_order_release);
  return true;
}

}  // namespace shardwise::detail
