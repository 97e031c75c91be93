#include "shardwise/loader/detail/files/file_runs.h"

#include <cstdint>
#include <vector>

namespace shardwise::detail {

void for_each_read(const RunWalk& walk, std::size_t element_bytes,
                   const std::function<void(std::span<const FileRun>)>& body) {
  std::vector<FileRun> together;
  for_each_run(walk, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    const FileRun run{static_cast<std::size_t>(from) * element_bytes,
                      static_cast<std::size_t>(to) * element_bytes,
                      static_cast<std::size_t>(count) * element_bytes};
    if (!together.empty()) {
      const FileRun& last = together.back();
      if (run.record_offset - (last.record_offset + last.size_bytes) > kMaxGapBytes ||
          run.record_offset + run.size_bytes - together[0].record_offset > kMaxSpanBytes) {
        body(together);
        together.clear();
      }
    }
    together.push_back(run);
  });
  if (!together.empty()) body(together);
}

}  // namespace shardwise::detail
