#pragma once

#include <algorithm>
#include <cstddef>

namespace shardwise::detail {

/// Fetches memory that is soon read into the processor's cache: at most the first 2 KiB, since the
/// processor then fetches the following bytes by itself.
inline void prefetch(const std::byte* memory, std::size_t size) {
  constexpr std::size_t kCacheLine = 64, kMost = 2048;
  for (std::size_t at = 0; at < std::min(size, kMost); at += kCacheLine) {
    __builtin_prefetch(memory + at);
  }
  asm volatile("");  // else GCC 12 finds that this has no effect, and drops calls of it
}

}  // namespace shardwise::detail
