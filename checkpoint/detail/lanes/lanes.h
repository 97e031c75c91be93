#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// Numbered jobs for threads of their own; each moves bytes to or from a disk and computes on them:
/// while some wait for the disk, others compute. (oneTBB's workers must not wait.)
struct LaneWork {
  std::size_t jobs = 0;
  std::size_t lanes = 1;  ///< most threads; if 1, or if none can be started: the caller's own

  /// Called once for each 0 <= job < jobs, begun in this order; `lane` < lanes says whose thread it
  /// is, and so which buffer it may use.
  std::function<void(std::size_t job, std::size_t lane)> run;

  /// Called on the caller's thread: with one lane after each job; with several after each hundredth
  /// of the jobs, and at least once every 64 jobs; and when all have ended. May be null.
  std::function<void()> progress = nullptr;
};

/// Returns when all jobs have ended. Throws the error of the first job that failed, first by its
/// number and not by time, or that of progress; later jobs are not begun then, and nothing is under
/// way any more.
void run_lanes(const LaneWork& work);

/// Runs both at the same time, if the system has threads left, and returns when both have ended.
/// Throws the error of `first`, after which `second` may not be begun, or else that of `second`.
void run_both(const std::function<void()>& first, const std::function<void()>& second);

/// How many lanes do one thing at once, as computing or writing, while the others do another. (Not
/// std::counting_semaphore: with g++ 12 a lane was found asleep in it when nobody was left to
/// release it.) Thread-safe.
class LaneSlots {
 public:
  explicit LaneSlots(std::int64_t count) : free_(count) {}

  /// Takes a slot, waiting for one, and gives it back. Thread-compatible.
  class Use {
   public:
    explicit Use(LaneSlots& slots) : slots_(slots) { slots_.take(); }
    ~Use() { slots_.give_back(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    LaneSlots& slots_;
  };

 private:
  void take();
  void give_back();

  Mutex mutex_;
  CondVar given_back_;
  std::int64_t free_ SHARDWISE_GUARDED_BY(mutex_);
};

}  // namespace shardwise::detail
