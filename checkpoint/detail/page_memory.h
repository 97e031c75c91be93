#pragma once

#include <cstddef>
#include <memory>

namespace shardwise::detail {

/// What O_DIRECT asks of memory and places in files.
inline constexpr std::size_t kPageBytes = 4096;

/// Memory that begins on a page.
struct FreePages {
  void operator()(std::byte* memory) const;
};
using PageMemory = std::unique_ptr<std::byte[], FreePages>;

/// Uninitialised.
PageMemory page_memory(std::size_t bytes);

}  // namespace shardwise::detail
