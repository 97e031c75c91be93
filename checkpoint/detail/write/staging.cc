#include "shardwise/checkpoint/detail/write/staging.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Writes of 8 MiB reach the disk's full rate; larger ones gain nothing (research: 3.4 GB/s of 3.5).
constexpr std::size_t kMostBufferBytes = std::size_t{8} << 20;

// A chunk gathered, one more for the parts of an edge chunk, one shuffled, the tables of its coder,
// and zstd's own.
constexpr std::size_t kWorkerBytes = 5 * kChunkBytes;

}  // namespace

StagingSizes staging_sizes(std::size_t budget_bytes, int threads, std::size_t data_bytes) {
  if (budget_bytes < kLeastBudgetBytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save: memory_budget_bytes is {}, at least {} are needed", budget_bytes,
                            kLeastBudgetBytes));
  }
  // While some buffers are being filled, as many are being written.
  auto workers = static_cast<std::size_t>(threads);
  while (workers > 1 && budget_bytes < workers * (kWorkerBytes + 2 * kChunkBytes)) --workers;
  const std::size_t rest = budget_bytes - workers * kWorkerBytes;
  const std::size_t wanted = 2 * workers + 1;
  const std::size_t chunks_needed = std::max<std::size_t>(data_bytes / kChunkBytes + 1, 2);

  StagingSizes sizes;
  sizes.workers = static_cast<std::int64_t>(workers);
  sizes.buffer_bytes = std::min(kMostBufferBytes, rest / wanted);
  // Little data: as many buffers as workers, so that each has something to do.
  sizes.buffer_bytes = std::min(sizes.buffer_bytes, chunks_needed / workers * kChunkBytes);
  sizes.buffer_bytes =
      std::max(sizes.buffer_bytes / kChunkBytes * kChunkBytes, std::size_t{kChunkBytes});
  const std::size_t needed = chunks_needed * kChunkBytes / sizes.buffer_bytes + 1;
  sizes.buffers = std::min({wanted, rest / sizes.buffer_bytes, needed});
  return sizes;
}

StagingPool::StagingPool(const StagingSizes& sizes)
    : sizes_(sizes), memory_(page_memory(held_bytes())) {}

}  // namespace shardwise::detail
