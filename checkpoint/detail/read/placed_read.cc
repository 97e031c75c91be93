#include "shardwise/checkpoint/detail/read/placed_read.h"

#include <algorithm>

#include "shardwise/checkpoint/detail/hash.h"
#include "shardwise/checkpoint/detail/stream_copy.h"

namespace shardwise::detail {

// Reading from the page cache straight to a place fetches that memory before it is written over;
// a copy that does not costs less (measured, 2 threads: 0.90 of bare reads, 0.84 without).
std::uint64_t read_placed(File& file, std::uint64_t address, std::size_t size,
                          std::span<const PlacedRun> runs, std::byte* window) {
  file.will_read(address, size);
  Hasher64 hasher;
  for (std::size_t at = 0; at < size;) {
    const std::size_t end = std::min(size, at + kReadWindowBytes);
    file.read_at(address + at, window, end - at);
    hasher.update(window, end - at);
    for (const PlacedRun& run : runs) {
      if (run.from >= end) break;
      const std::size_t first = std::max(at, run.from), last = std::min(end, run.from + run.size);
      if (first >= last) continue;  // done before
      stream_copy(run.to + (first - run.from), window + (first - at), last - first);
    }
    while (!runs.empty() && runs.front().from + runs.front().size <= end) runs = runs.subspan(1);
    at = end;
  }
  stream_fence();
  return hasher.digest();
}

}  // namespace shardwise::detail
