#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace shardwise::detail {

/// Memory for repeated work: it grows, is not initialised, and is kept. Thread-compatible.
class ScratchMemory {
 public:
  /// The first `size_bytes` of the memory; their content is unspecified. Valid until the next call.
  std::byte* take(std::size_t size_bytes) {
    if (size_bytes > capacity_bytes_) {
      memory_.reset();
      capacity_bytes_ = 0;
      memory_ = std::make_unique_for_overwrite<std::byte[]>(size_bytes);
      capacity_bytes_ = size_bytes;
    }
    return memory_.get();
  }

  /// Frees the memory if it is larger than that, so that one huge piece is not kept for ever.
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
