#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/codec.h"
#include "shardwise/checkpoint/detail/read/read_plan.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/runtime/mutex.h"
#include "shardwise/runtime/parallel.h"

namespace shardwise::detail {

/// What one worker needs to decode: a decoder and room for a chunk. Thread-compatible.
struct DecodeScratch {
  Decoder decoder;
  std::vector<std::byte> chunk;
};

/// Scratch that is lent to one call at a time and kept for the next. Thread-safe.
class ScratchPool {
 public:
  /// Gives the scratch back when it goes. Thread-compatible.
  class Loan {
   public:
    explicit Loan(ScratchPool& pool);
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

    DecodeScratch& operator*() const { return *scratch_; }
    DecodeScratch* operator->() const { return scratch_.get(); }

   private:
    ScratchPool& pool_;
    std::unique_ptr<DecodeScratch> scratch_;
  };

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<DecodeScratch>> free_ SHARDWISE_GUARDED_BY(mutex_);
};

/// Fills targets from a checkpoint: plans, reads, checks, decodes and scatters. Thread-safe.
class ChunkReader {
 public:
  ChunkReader(StoredCheckpoint checkpoint, const ReadOptions& options);

  const StoredCheckpoint& checkpoint() const { return checkpoint_; }
  void fill(std::span<const ReadTarget> targets);
  ReadStats stats() const;

 private:
  struct Call;
  void consume(Call& call, const WantedChunk& chunk, std::span<const std::byte> stored);

  StoredCheckpoint checkpoint_;
  ReadOptions options_;
  Executor executor_;
  ScratchPool scratch_;
  std::atomic<std::int64_t> chunks_{0};
  std::atomic<std::size_t> stored_bytes_{0}, decoded_bytes_{0};
  Mutex progress_mutex_;
};

}  // namespace shardwise::detail
