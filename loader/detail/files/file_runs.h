#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "shardwise/shard/box_copy.h"

namespace shardwise::detail {

/// Bytes that are contiguous both in a record, as its file holds it, and in the memory that they
/// are read to.
struct FileRun {
  std::size_t record_offset, target_offset, size_bytes;
};

/// Runs with a smaller gap between them are read by one system call, which costs about as much as
/// copying the gap. A call of several runs reads at most kMaxSpanBytes.
inline constexpr std::size_t kMaxGapBytes = std::size_t{4} << 10;
inline constexpr std::size_t kMaxSpanBytes = std::size_t{64} << 10;

/// Calls body with the runs of `walk` (a: the record, b: the target) in order, in groups that one
/// system call reads each. The span is valid only during the call.
void for_each_read(const RunWalk& walk, std::size_t element_bytes,
                   const std::function<void(std::span<const FileRun>)>& body);

}  // namespace shardwise::detail
