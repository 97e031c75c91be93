#pragma once

#include <cstddef>
#include <memory>

#include "shardwise/shard/error.h"

namespace shardwise {

/// The alignment that O_DIRECT needs of addresses, offsets and sizes.
inline constexpr std::size_t kPageBytes = 4096;

/// Memory of at least this size begins on a page, so a file can be written from it directly.
inline constexpr std::size_t kLeastPagedBytes = std::size_t{64} << 10;

/// Memory of at least this size begins on a huge page, and is on huge pages if the system has them:
/// fresh memory then takes half the time to fill, and a disk request is split into fewer parts.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// Uninitialised memory for tensors. It begins on a cache line (64 bytes) below kLeastPagedBytes,
/// on a page from there on, and on a huge page from kHugePageBytes on. Throws std::bad_alloc. Free
/// it with free_memory. Thread-safe.
std::byte* allocate_memory(std::size_t size_bytes);

/// Requires memory from allocate_memory and the same size. Thread-safe.
void free_memory(std::byte* memory, std::size_t size_bytes) noexcept;

/// Frees memory from page_memory.
struct FreePages {
  void operator()(std::byte* memory) const noexcept;
  std::size_t alignment = kPageBytes;
};

/// Owns memory that begins on a page.
using PageMemory = std::unique_ptr<std::byte[], FreePages>;

/// As allocate_memory, but on a page whatever the size. Thread-safe.
PageMemory page_memory(std::size_t size_bytes);

}  // namespace shardwise
