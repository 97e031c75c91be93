#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/read/cached_reader.h"
#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/checkpoint/save.h"

namespace shardwise::tiers_detail {

/// The tensors of a save that may still be under way, as that save will have written them, for the
/// next tier's save. Pins the checkpoint as long as it lives. Thread-safe.
class SavedTensors final : public BoxReader {
 public:
  /// Takes the sources of the save.
  SavedTensors(std::span<const TensorSource> sources, std::shared_ptr<FileSystem> file_system);

  /// Opens and pins the checkpoint. `directory` waits for the save's end and gives its directory,
  /// or throws if it has failed: then so does read(). Called once.
  void open(const std::function<std::filesystem::path()>& directory) noexcept;

  /// Returns when open() has returned.
  void wait() const { opened_.wait(); }

  std::span<const TensorInfo> tensors() const override { return infos_; }

  /// Requires that open() has returned: it does not wait for a save, so that no worker does.
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    const Opened& saved = *opened_.get();
    saved.cached->read(saved.numbers[tensor], box, out);
  }

 private:
  struct Opened {
    std::unique_ptr<detail::Pin> pin;
    std::unique_ptr<detail::ChunkReader> chunks;
    std::unique_ptr<detail::CachedReader> cached;
    std::vector<std::size_t> numbers;  // in the checkpoint, of each of our tensors
  };

  std::shared_ptr<const Opened> opened(const std::filesystem::path& directory) const;

  std::vector<TensorInfo> infos_;
  const std::shared_ptr<FileSystem> file_system_;
  std::promise<std::shared_ptr<const Opened>> promise_;
  std::shared_future<std::shared_ptr<const Opened>> opened_;
};

}  // namespace shardwise::tiers_detail
