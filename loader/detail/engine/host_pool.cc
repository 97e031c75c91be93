#include "shardwise/loader/detail/engine/host_pool.h"

#include <algorithm>
#include <utility>

#include "shardwise/shard/host/page_memory.h"

namespace shardwise::detail {

HostPool::~HostPool() {
  for (const auto& [bytes, memory] : kept_) free_memory(memory, bytes);
}

std::shared_ptr<std::byte> HostPool::allocate(std::size_t bytes) {
  return {take(bytes), [pool = shared_from_this(), bytes](std::byte* memory) {
            pool->take_back(memory, bytes);
          }};
}

std::byte* HostPool::take(std::size_t bytes) {
  const MutexLock lock(mutex_);
  std::byte* memory = nullptr;
  const auto found = kept_.find(bytes);
  if (found != kept_.end()) {
    memory = found->second;
    kept_.erase(found);
    kept_bytes_ -= bytes;
  }
  in_use_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, in_use_bytes_);
  if (memory != nullptr) return memory;
  free_kept();
  try {
    return allocate_memory(bytes);
  } catch (...) {
    in_use_bytes_ -= bytes;
    throw;
  }
}

void HostPool::take_back(std::byte* memory, std::size_t bytes) noexcept {
  const MutexLock lock(mutex_);
  in_use_bytes_ -= bytes;
  try {
    kept_.emplace(bytes, memory);
    kept_bytes_ += bytes;
  } catch (...) {  // no memory to note it for reuse
    free_memory(memory, bytes);
  }
}

void HostPool::free_kept() {
  while (!kept_.empty() && in_use_bytes_ + kept_bytes_ > peak_bytes_) {
    const auto [bytes, memory] = *kept_.begin();
    kept_.erase(kept_.begin());
    kept_bytes_ -= bytes;
    free_memory(memory, bytes);
  }
}

std::size_t HostPool::in_use_bytes() const {
  const MutexLock lock(mutex_);
  return in_use_bytes_;
}

std::size_t HostPool::kept_bytes() const {
  const MutexLock lock(mutex_);
  return kept_bytes_;
}

}  // namespace shardwise::detail
