#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "shardwise/checkpoint/detail/codec.h"
#include "shardwise/runtime/mutex.h"

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

    DecodeScratch* operator->() const { return scratch_.get(); }

   private:
    ScratchPool& pool_;
    std::unique_ptr<DecodeScratch> scratch_;
  };

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<DecodeScratch>> free_ SHARDWISE_GUARDED_BY(mutex_);
};

}  // namespace shardwise::detail
