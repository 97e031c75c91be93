#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "shardwise/checkpoint/detail/codec.h"
#include "shardwise/checkpoint/detail/read/read_plan.h"
#include "shardwise/checkpoint/detail/scratch_pool.h"
#include "shardwise/checkpoint/read_options.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// Fills targets from a checkpoint: plans, reads, checks, decodes and scatters. Thread-safe.
class ChunkReader {
 public:
  ChunkReader(StoredCheckpoint checkpoint, const ReadOptions& options);

  const StoredCheckpoint& checkpoint() const { return checkpoint_; }
  void fill(std::span<const ReadTarget> targets);
  ReadStats stats() const;

 private:
  struct Call;
  void consume(Call& call, std::size_t number, RangeBytes& bytes);

  StoredCheckpoint checkpoint_;
  ReadOptions options_;
  int threads_;
  ScratchPool<Decoder> decoders_;
  ReadBuffers buffers_;
  std::atomic<std::int64_t> chunks_{0};
  std::atomic<std::size_t> stored_bytes_{0}, decoded_bytes_{0};
  Mutex progress_mutex_;
};

}  // namespace shardwise::detail
