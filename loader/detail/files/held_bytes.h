#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "shardwise/loader/detail/prefetch.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/shard/host/page_memory.h"

namespace shardwise::detail {

/// The memory that the files of one source may still use to keep bytes. Thread-compatible.
struct HoldBudget {
  std::size_t left_bytes;
};

/// Bytes that are read at offsets. They are read in whole blocks, each once, and stay in memory.
/// Nothing is kept if all of the bytes do not fit into the budget. Thread-safe; bytes in memory are
/// found without a lock.
class HeldBytes {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

  /// Reads from `offset` on and returns the number of bytes. Called by several threads.
  using Read = std::function<std::size_t(std::size_t offset, std::span<std::byte> out)>;

  HeldBytes(std::size_t size_bytes, std::size_t block_bytes, HoldBudget& budget, Read read);

  bool holds() const { return memory_ != nullptr; }

  /// The bytes, valid as long as this object; null if they are not kept, if another thread is
  /// reading them, or if the read was short. Errors of the read pass through.
  const std::byte* find(std::size_t offset, std::size_t size) const {
    if (!memory_ || size > size_bytes_ || offset > size_bytes_ - size) return nullptr;
    if (size == 0) return memory_.get();
    const std::size_t last = block_of(offset + size - 1);
    for (std::size_t block = block_of(offset); block <= last; ++block) {
      if (!is_there_[block].load(std::memory_order_acquire) && !read_block(block)) return nullptr;
    }
    return memory_.get() + offset;
  }

  /// A hint: fetches the bytes into the processor's cache if they are kept.
  void will_read(std::size_t offset, std::size_t size) const {
    if (memory_ && offset < size_bytes_) {
      prefetch(memory_.get() + offset, std::min(size, size_bytes_ - offset));
    }
  }

 private:
  static constexpr std::size_t kLocks = 16;  // blocks read at the same time

  std::size_t block_of(std::size_t offset) const {
    return block_bytes_ == kBlockBytes ? offset / kBlockBytes : offset / block_bytes_;  // a shift
  }
  bool read_block(std::size_t block) const;

  std::size_t size_bytes_, block_bytes_;
  Read read_;
  PageMemory memory_;
  std::unique_ptr<std::atomic<bool>[]> is_there_;  // per block
  mutable std::array<Mutex, kLocks> locks_;
};

}  // namespace shardwise::detail
