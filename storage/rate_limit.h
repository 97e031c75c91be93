#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise {

/// A clock that never goes back, and can wait. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::chrono::nanoseconds now() = 0;
  virtual void wait_until(std::chrono::nanoseconds time) = 0;
};

/// The machine's clock.
std::shared_ptr<Clock> steady_clock();

/// Admits bytes at a rate, over all threads that ask. Thread-safe.
///
/// Within t seconds it admits at most t x rate bytes plus one request: a request is admitted as a
/// whole, once those before it have used up their time.
class RateLimiter {
 public:
  /// Throws invalid_argument unless the rate is 1 or more.
  explicit RateLimiter(std::int64_t bytes_per_second,
                       std::shared_ptr<Clock> clock = steady_clock());
  ~RateLimiter();
  RateLimiter(const RateLimiter&) = delete;
  RateLimiter& operator=(const RateLimiter&) = delete;

  /// Returns when these bytes are admitted.
  void admit(std::uint64_t bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The file system with a limit on the rate of writes to files. No other operation is slowed.
std::shared_ptr<FileSystem> rate_limited(std::shared_ptr<FileSystem> file_system,
                                         std::shared_ptr<RateLimiter> limiter);

}  // namespace shardwise
