#include "shardwise/loader/detail/files/held_bytes.h"

#include <algorithm>
#include <new>
#include <utility>

namespace shardwise::detail {

HeldBytes::HeldBytes(std::size_t size_bytes, std::size_t block_bytes, HoldBudget& budget, Read read)
    : size_bytes_(size_bytes), block_bytes_(block_bytes), read_(std::move(read)) {
  if (size_bytes == 0 || size_bytes > budget.left_bytes) return;
  try {
    // Pages not yet written to take no memory.
    memory_ = page_memory(size_bytes);
  } catch (const std::bad_alloc&) {
    return;  // a process with a lower memory limit does without
  }
  is_there_ = std::make_unique<std::atomic<bool>[]>((size_bytes - 1) / block_bytes + 1);
  budget.left_bytes -= size_bytes;
}

bool HeldBytes::read_block(std::size_t block) const {
  // Does not wait: while another thread reads the block, the caller reads its bytes by itself. In a
  // child of fork() that other thread may not exist.
  Mutex& mutex = locks_[block % kLocks];
  if (!mutex.try_lock()) return false;
  bool is_there = is_there_[block].load(std::memory_order_relaxed);
  try {
    if (!is_there) {
      const std::size_t begin = block * block_bytes_;
      const std::size_t size = std::min(block_bytes_, size_bytes_ - begin);
      is_there = read_(begin, {memory_.get() + begin, size}) == size;
      if (is_there) is_there_[block].store(true, std::memory_order_release);
    }
  } catch (...) {
    mutex.unlock();
    throw;
  }
  mutex.unlock();
  return is_there;
}

}  // namespace shardwise::detail
