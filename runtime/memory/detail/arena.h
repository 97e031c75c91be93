#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "shardwise/runtime/memory/buffer.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise {

/// One device's memory: the buffers that are held, and the room that is left. Freed memory is kept
/// for blocks of the same size, as long as all memory together does not exceed the peak of blocks.
/// Thread-safe.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  Arena(DeviceId device, std::size_t capacity_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  DeviceId device() const { return device_; }

  /// Not counted in the books; only buffers are.
  std::shared_ptr<const Block> make_block(std::size_t size_bytes);

  /// A buffer in a block of its own. Throws resource_exhausted if it would exceed the capacity.
  std::shared_ptr<Buffer> allocate(std::size_t size_bytes, MemoryKind kind, std::string_view label);

  /// A buffer in a block of this arena. Throws invalid_argument if the block does not hold the
  /// bytes [offset, offset + size), and as above.
  std::shared_ptr<Buffer> place(std::shared_ptr<const Block> block, std::size_t offset_bytes,
                                std::size_t size_bytes, MemoryKind kind, std::string_view label);

  MemoryStats stats();
  void reset_peak();

 private:
  friend class Block;
  friend class Buffer;

  /// Books a buffer without memory.
  std::shared_ptr<Buffer> book(std::size_t size_bytes, MemoryKind kind, std::string_view label);
  void strike(Buffer& buffer);

  std::byte* take_memory(std::size_t size_bytes);
  void take_back(std::byte* memory, std::size_t size_bytes) noexcept;

  /// Memory of blocks and kept memory together never exceed the most that blocks took at once: the
  /// smallest kept block goes first.
  void free_kept() SHARDWISE_REQUIRES(mutex_);

  std::string exhausted(const Buffer& wanted) const SHARDWISE_REQUIRES(mutex_);

  const DeviceId device_;
  Mutex mutex_;
  MemoryStats stats_ SHARDWISE_GUARDED_BY(mutex_);
  Buffer* oldest_ SHARDWISE_GUARDED_BY(mutex_) = nullptr;  // of those that are held
  Buffer* youngest_ SHARDWISE_GUARDED_BY(mutex_) = nullptr;
  std::size_t taken_bytes_ SHARDWISE_GUARDED_BY(mutex_) = 0;  // by blocks
  std::size_t most_taken_bytes_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  std::multimap<std::size_t, std::byte*> kept_ SHARDWISE_GUARDED_BY(mutex_);
  std::size_t kept_bytes_ SHARDWISE_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardwise
