#include "shardwise/checkpoint/detail/tiers/saved_tensors.h"

#include <algorithm>

namespace shardwise::detail {
namespace {

// Boxes follow the order of each tensor, some in several threads.
constexpr std::size_t kCacheBytes = std::size_t{64} << 20;

}  // namespace

const SavedTensors::Opened& SavedTensors::opened() const {
  const MutexLock lock(mutex_);
  if (opened_) return *opened_;
  const std::filesystem::path directory = directory_();
  Opened opened;
  opened.pin = std::make_unique<Pin>(*file_system_, directory);
  StoredCheckpoint checkpoint = open_checkpoint(*file_system_, directory, true);
  std::vector<TensorInfo> stored = tensor_infos(checkpoint);
  for (const TensorInfo& info : infos_) {
    const auto found = std::ranges::lower_bound(stored, info.name, {}, &TensorInfo::name);
    opened.numbers.push_back(static_cast<std::size_t>(found - stored.begin()));
  }
  ReadOptions options;
  options.threads = 1;
  options.memory_budget_bytes = kCacheBytes;
  options.file_system = file_system_;
  opened.chunks = std::make_unique<ChunkReader>(std::move(checkpoint), options);
  opened.cached = std::make_unique<CachedReader>(*opened.chunks, std::move(stored), kCacheBytes);
  return opened_.emplace(std::move(opened));
}

}  // namespace shardwise::detail
