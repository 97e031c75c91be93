#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "shardwise/shard/mesh.h"

namespace shardwise {

/// The use of a piece of device memory; accounting separates the kinds.
enum class MemoryKind {
  array,       ///< arrays that a program made without naming a use
  loader,      ///< slots of minibatches
  parameter,   ///< weights
  optimizer,   ///< the optimizer's state
  activation,  ///< intermediate values of a program
  collective,  ///< memory of a collective besides its result
  checkpoint,  ///< staging of saves and restores
};
inline constexpr std::size_t kMemoryKinds = 7;

/// "array", ...
std::string_view name(MemoryKind kind);

/// Bytes of one device's memory.
struct MemoryStats {
  std::size_t capacity_bytes = 0;
  std::size_t in_use_bytes = 0;
  std::size_t peak_bytes = 0;  ///< most that was in use at once
  std::array<std::size_t, kMemoryKinds> in_use_by_kind{};
};

class Arena;

/// Memory of one device for buffers, each at an offset: one buffer that fills it, the small ones of
/// a batch, or all of a plan's. Uninitialised; aligned to 64 bytes, from 64 KiB on to a page of 4
/// KiB. Returned to its arena when the last holder drops it. A block itself is not counted; its
/// buffers are. Immutable.
class Block {
 public:
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  friend class Arena;
  Block(std::shared_ptr<Arena> arena, std::size_t size_bytes);

  std::shared_ptr<Arena> arena_;
  std::size_t size_bytes_;
  std::byte* data_;
};

/// A part of a block: it holds an array's shard. Counted on its device, by its kind, until the last
/// holder drops it. A buffer with several holders is not written to any more. Thread-compatible.
class Buffer {
 public:
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  DeviceId device() const;
  std::size_t size_bytes() const { return size_bytes_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }

 private:
  friend class Arena;
  Buffer(std::shared_ptr<Arena> arena, std::size_t size_bytes, MemoryKind kind,
         std::string_view label);

  std::shared_ptr<Arena> arena_;
  std::shared_ptr<const Block> block_;
  std::byte* data_ = nullptr;  // inside the block
  std::size_t size_bytes_;
  MemoryKind kind_;
  std::string label_;

  // In the arena's books, with its mutex held: the buffers booked before and after this one.
  bool booked_ = false;
  Buffer *older_ = nullptr, *younger_ = nullptr;
};

}  // namespace shardwise
