#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// Memory for workers that encode or decode chunks: lent to one call at a time and kept for the
/// next. Scratch says with held_bytes() how much memory it keeps. Thread-safe.
template <class Scratch>
class ScratchPool {
 public:
  /// Gives the scratch back when it goes. Thread-compatible.
  class Loan {
   public:
    explicit Loan(ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {}
    ~Loan() {
      if (scratch_->held_bytes() > kKeptBytes) scratch_.reset();
      pool_.give_back(std::move(scratch_));
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
    if (free_.empty()) {
      free_.reserve(made_ + 1);  // so that giving it back allocates nothing
      auto made = std::make_unique<Scratch>();
      ++made_;
      return made;
    }
    std::unique_ptr<Scratch> taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }

  // Null for one that is not kept.
  void give_back(std::unique_ptr<Scratch> scratch) {
    const MutexLock lock(mutex_);
    if (scratch) {
      free_.push_back(std::move(scratch));
    } else {
      --made_;
    }
  }

  Mutex mutex_;
  std::size_t made_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Scratch>> free_ SHARDWISE_GUARDED_BY(mutex_);  // room for all made
};

}  // namespace shardwise::detail
