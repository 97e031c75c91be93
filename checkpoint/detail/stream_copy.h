#pragma once

#include <cstddef>

namespace shardwise::detail {

/// Copies bytes that nobody reads soon: they are stored past the processor's caches, which need not
/// fetch then what is written over (measured on two cores: 22 GB/s, memcpy 12). The memory must not
/// overlap. Another thread sees them only after this one's stream_fence().
void stream_copy(std::byte* to, const std::byte* from, std::size_t size);

/// All that this thread has copied so is in memory before whatever it stores from now on.
void stream_fence();

}  // namespace shardwise::detail
