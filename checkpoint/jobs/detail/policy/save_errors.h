#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "shardwise/checkpoint/save.h"
#include "shardwise/jobs/policies.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::jobs_detail {

/// Decides whether a job goes on after a save that failed: WriteOptions::on_save_error.
/// Thread-safe.
class SaveErrors {
 public:
  using Tell = std::function<void(const std::string&)>;

  /// Throws invalid_argument, beginning with `what`. tell: gets a line of each save that fails and
  /// the job goes on, on rank 0.
  SaveErrors(OnSaveError on_error, std::int64_t most_failed_saves, const std::string& what,
             Tell tell);

  /// 0: none.
  std::int64_t most() const { return most_; }

  /// Says whether the job may go on after such an error: it is the storage's.
  bool tolerates(ErrorCode code) const;

  /// All ranks agree how a save has ended; `error`: on this one. The rendezvous serves this alone:
  /// an error of a caller ends it. Returns the error that this process is to throw. If that is null
  /// and the save has failed, `stats` says why.
  std::exception_ptr judge(std::int64_t step, const Rendezvous& ranks,
                           const std::exception_ptr& error, SaveStats& stats) noexcept;

  /// Notes that a save has failed on all processes by this error. Returns whether the job goes on;
  /// then the failure is counted and, on rank 0, told.
  bool note_failed(std::int64_t step, ErrorCode code, const std::string& error, int rank = 0);
  void note_saved();

  ManagerStats stats() const;

 private:
  std::string agree(std::int64_t step, const Rendezvous& ranks, const std::exception_ptr& error);

  const std::int64_t most_;
  const Tell tell_;

  mutable Mutex mutex_;
  ManagerStats stats_ SHARDWISE_GUARDED_BY(mutex_);
};

}  // namespace shardwise::jobs_detail
