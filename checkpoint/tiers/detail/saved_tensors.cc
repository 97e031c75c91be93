#include "shardwise/tiers/detail/saved_tensors.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"

namespace shardwise::tiers_detail {
namespace {

// Boxes follow the order of each tensor, some in several threads.
constexpr std::size_t kCacheBytes = std::size_t{64} << 20;

}  // namespace

SavedTensors::SavedTensors(std::span<const TensorSource> sources,
                           std::shared_ptr<FileSystem> file_system)
    : file_system_(std::move(file_system)), opened_(promise_.get_future().share()) {
  infos_.reserve(sources.size());
  for (const TensorSource& source : sources) {
    infos_.push_back(source.reader->tensors()[source.tensor]);
    infos_.back().name = source.name;
  }
}

void SavedTensors::open(const std::function<std::filesystem::path()>& directory) noexcept {
  try {
    promise_.set_value(opened(directory()));
  } catch (...) {
    promise_.set_exception(std::current_exception());
  }
}

std::shared_ptr<const SavedTensors::Opened> SavedTensors::opened(
    const std::filesystem::path& directory) const {
  auto opened = std::make_shared<Opened>();
  opened->pin = std::make_unique<detail::Pin>(*file_system_, directory);
  detail::StoredCheckpoint checkpoint = detail::open_checkpoint(*file_system_, directory, true);
  std::vector<TensorInfo> stored = detail::tensor_infos(checkpoint);
  for (const TensorInfo& info : infos_) {
    const auto found = std::ranges::lower_bound(stored, info.name, {}, &TensorInfo::name);
    opened->numbers.push_back(static_cast<std::size_t>(found - stored.begin()));
  }
  ReadOptions options;
  options.threads = 1;
  options.memory_budget_bytes = kCacheBytes;
  options.file_system = file_system_;
  opened->chunks = std::make_unique<detail::ChunkReader>(std::move(checkpoint), options);
  opened->cached =
      std::make_unique<detail::CachedReader>(*opened->chunks, std::move(stored), kCacheBytes);
  return opened;
}

}  // namespace shardwise::tiers_detail
