#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>

#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// Memory that is reused once its last owner has dropped it; owners may outlive the pool's other
/// holders. Memory kept for later and memory in use together never exceed the most that was in use.
/// Thread-safe.
class HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  HostPool() = default;
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  /// Uninitialised, aligned to 64 bytes at least. Throws std::bad_alloc.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  std::size_t in_use_bytes() const;
  std::size_t kept_bytes() const;

 private:
  std::byte* take(std::size_t bytes);
  void take_back(std::byte* memory, std::size_t bytes) noexcept;
  void free_kept() SHARDWISE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::unordered_multimap<std::size_t, std::byte*> kept_ SHARDWISE_GUARDED_BY(mutex_);
  std::size_t kept_bytes_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  std::size_t in_use_bytes_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  std::size_t peak_bytes_ SHARDWISE_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardwise::detail
