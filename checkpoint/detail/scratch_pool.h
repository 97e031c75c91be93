#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// What workers need while they encode or decode a chunk: lent to one call at a time and kept for
/// the next. Scratch says with held_bytes() how much memory it keeps. Thread-safe.
template <class Scratch>
class ScratchPool {
 public:
  /// Gives the scratch back when it goes. Thread-compatible.
  class Loan {
   public:
    explicit Loan(ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {
      if (!scratch_) scratch_ = std::make_unique<Scratch>();
    }
    ~Loan() {
      if (scratch_->held_bytes() <= kKeptBytes) pool_.keep(std::move(scratch_));
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

    Scratch& operator*() const { return *scratch_; }
    Scratch* operator->() const { return scratch_.get(); }

   private:
    ScratchPool& pool_;
    std::unique_ptr<Scratch> scratch_;
  };

  /// Some scratch for chunks of ours, of 1 MiB. What has grown for larger ones, which other writers
  /// may store, is not kept: it would be outside every memory budget.
  static constexpr std::size_t kKeptBytes = std::size_t{5} << 20;

 private:
  std::unique_ptr<Scratch> take() {
    const MutexLock lock(mutex_);
    if (free_.empty()) return nullptr;
    std::unique_ptr<Scratch> taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }

  void keep(std::unique_ptr<Scratch> scratch) {
    const MutexLock lock(mutex_);
    free_.push_back(std::move(scratch));
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_ SHARDWISE_GUARDED_BY(mutex_);
};

}  // namespace shardwise::detail
