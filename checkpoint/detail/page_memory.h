#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace shardwise::detail {

/// What O_DIRECT asks of memory and places in files.
inline constexpr std::size_t kPageBytes = 4096;

/// Memory that begins on a page.
struct FreePages {
  void operator()(std::byte* memory) const;
  std::align_val_t alignment{kPageBytes};
};
using PageMemory = std::unique_ptr<std::byte[], FreePages>;

/// Uninitialised; from 2 MiB on huge pages, of which a disk is told in fewer parts.
PageMemory page_memory(std::size_t bytes);

}  // namespace shardwise::detail
