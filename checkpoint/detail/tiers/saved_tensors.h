#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/read/cached_reader.h"
#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/pin.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// The tensors of a save that may still be under way, as that save will have written them: so the
/// next tier's save starts now and reads when the first one has ended. Pins the checkpoint as long
/// as it lives. Thread-safe.
class SavedTensors final : public BoxReader {
 public:
  /// Of a save from these sources. `directory` waits for its end and gives the checkpoint's
  /// directory, or throws where it has failed.
  SavedTensors(std::span<const TensorSource> sources, std::shared_ptr<FileSystem> file_system,
               std::function<std::filesystem::path()> directory)
      : directory_(std::move(directory)), file_system_(std::move(file_system)) {
    infos_.reserve(sources.size());
    for (const TensorSource& source : sources) {
      infos_.push_back(source.reader->tensors()[source.tensor]);
      infos_.back().name = source.name;
    }
  }

  /// Waits until the checkpoint is pinned, or has failed.
  void wait() const noexcept {
    try {
      static_cast<void>(opened());
    } catch (...) {
      // Who reads from it is told.
    }
  }

  std::span<const TensorInfo> tensors() const override { return infos_; }
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    const Opened& saved = opened();
    saved.cached->read(saved.numbers[tensor], box, out);
  }

 private:
  struct Opened {
    std::unique_ptr<Pin> pin;
    std::unique_ptr<ChunkReader> chunks;
    std::unique_ptr<CachedReader> cached;
    std::vector<std::size_t> numbers;  // in the checkpoint, of each of our tensors
  };

  const Opened& opened() const;

  std::vector<TensorInfo> infos_;
  const std::function<std::filesystem::path()> directory_;
  const std::shared_ptr<FileSystem> file_system_;
  mutable Mutex mutex_;
  mutable std::optional<Opened> opened_ SHARDWISE_GUARDED_BY(mutex_);
};

}  // namespace shardwise::detail
