#pragma once

#include <algorithm>
#include <chrono>

#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/rate_limit.h"

namespace shardwise {

/// A clock that goes on only if somebody waits, and then at once. Thread-safe.
class FakeClock final : public Clock {
 public:
  std::chrono::nanoseconds now() override {
    const MutexLock lock(mutex_);
    return now_;
  }
  void wait_until(std::chrono::nanoseconds time) override {
    const MutexLock lock(mutex_);
    now_ = std::max(now_, time);
  }
  double seconds() { return std::chrono::duration<double>(now()).count(); }

 private:
  Mutex mutex_;
  std::chrono::nanoseconds now_ SHARDWISE_GUARDED_BY(mutex_){0};
};

}  // namespace shardwise
