#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace shardwise::detail {

/// Memory for work that comes again and again: grows, is not initialised, is kept.
/// Thread-compatible.
class ScratchMemory {
 public:
  /// The first `size_bytes` of it; what they hold is unspecified. Valid until the next call.
  std::byte* take(std::size_t size_bytes) {
    if (size_bytes > capacity_bytes_) {
      memory_.reset();
      capacity_bytes_ = 0;
      memory_ = std::make_unique_for_overwrite<std::byte[]>(size_bytes);
      capacity_bytes_ = size_bytes;
    }
    return memory_.get();
  }

  /// Gives the memory back where it is more than that: one giant is not kept for ever.
  void keep_at_most(std::size_t size_bytes) {
    if (capacity_bytes_ <= size_bytes) return;
    memory_.reset();
    capacity_bytes_ = 0;
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_bytes_ = 0;
};

}  // namespace shardwise::detail
