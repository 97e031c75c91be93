#pragma once

#include <cstddef>
#include <vector>

#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/host/page_memory.h"

namespace shardwise::detail {

/// Copies of the callers' buffers that a save reads after its caller has gone on. The memory is
/// kept for the next save: the first copy into memory that the system has yet to find takes several
/// times as long. Thread-compatible.
class HostSnapshot {
 public:
  /// Copies the elements of every source that is a HostReader's, and makes it a source of the copy,
  /// which is valid until the next take(). Requires that check_sources passed.
  void take(std::vector<TensorSource>& sources, const Executor& executor);

  /// How much memory is kept.
  std::size_t held_bytes() const { return held_bytes_; }

 private:
  PageMemory memory_;
  std::size_t held_bytes_ = 0;
};

}  // namespace shardwise::detail
