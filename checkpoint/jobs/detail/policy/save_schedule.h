#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/jobs/detail/policy/stop_signals.h"
#include "shardwise/jobs/policies.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/rate_limit.h"

namespace shardwise::jobs_detail {

/// When a job saves, and whether a save can end before the process does. Thread-safe.
class SaveSchedule {
 public:
  /// Throws invalid_argument, beginning with `what`.
  SaveSchedule(const WhenOptions& rules, const std::string& what);

  /// CheckpointManager's. Every rank calls it. is_told: something other than a signal tells this
  /// process that it ends.
  bool should_save(std::int64_t step, const Rendezvous& ranks, bool is_told = false);
  void request_save() { requested_ = true; }
  bool reached_preemption() const { return preempted_; }

  std::optional<std::chrono::nanoseconds> time_left() const;

  /// A save of this number of bytes begins. Throws cancelled if the save before was so slow that it
  /// cannot end in time; one that was far smaller, and quick, says nothing of that.
  void begin(std::int64_t step, std::size_t bytes);

  /// Its bytes are written from now on. Gives a function that calls `own`, if there is one, and
  /// throws cancelled as soon as this save is too slow; the schedule must outlive it.
  ProgressFunction watch(std::int64_t step, ProgressFunction own) const;

  /// It was committed after this time.
  void end(std::size_t bytes, double seconds);

 private:
  [[noreturn]] void refuse(std::int64_t step, std::chrono::nanoseconds needed,
                           std::chrono::nanoseconds left) const;

  const WhenOptions rules_;
  const std::shared_ptr<Clock> clock_;
  const StopSignals signals_;
  std::atomic<bool> requested_ = false, preempted_ = false;

  mutable Mutex mutex_;
  std::chrono::nanoseconds last_begun_ SHARDWISE_GUARDED_BY(mutex_);
  std::size_t last_bytes_ SHARDWISE_GUARDED_BY(mutex_) = 0;  // of the last save; 0: there was none
  double last_seconds_ SHARDWISE_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardwise::jobs_detail
