#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/lanes/scratch_pool.h"
#include "shardwise/checkpoint/detail/read/read_plan.h"
#include "shardwise/checkpoint/read_options.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// Fills targets from a checkpoint: plans, reads, checks, decodes and scatters. Thread-safe.
class ChunkReader {
 public:
  /// The checkpoint with all that was loaded of it until now; stays as it is while it is held.
  class View {
   public:
    View(ChunkReader& reader, std::shared_ptr<const StoredCheckpoint> checkpoint)
        : reader_(reader), checkpoint_(std::move(checkpoint)) {}
    ~View();
    View(const View&) = delete;
    View& operator=(const View&) = delete;

    const StoredCheckpoint& operator*() const { return *checkpoint_; }

   private:
    ChunkReader& reader_;
    std::shared_ptr<const StoredCheckpoint> checkpoint_;
  };

  ChunkReader(StoredCheckpoint checkpoint, const ReadOptions& options);

  /// Loads the shard files that the targets need first. Throws as opening them does.
  View checkpoint_for(std::span<const ReadTarget> targets);

  void fill(std::span<const ReadTarget> targets);

  ReadStats stats() const;

 private:
  struct Call;
  void consume(Call& call, std::size_t number, RangeBytes& bytes);

  const std::filesystem::path directory_;
  // Loaded in place unless it is held by a view: these come and go under the mutex.
  Mutex mutex_;
  std::shared_ptr<StoredCheckpoint> checkpoint_ SHARDWISE_GUARDED_BY(mutex_);
  ReadOptions options_;
  int threads_;
  ScratchPool<Decoder> decoders_;
  ReadBuffers buffers_;
  std::atomic<std::int64_t> chunks_{0};
  std::atomic<std::size_t> stored_bytes_{0}, decoded_bytes_{0};
  Mutex progress_mutex_;
};

}  // namespace shardwise::detail
