#pragma once

#include <exception>
#include <utility>

#include "shardwise/jobs/pending_save.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise {

/// The state that the saving thread shares with those that wait for it. Thread-safe.
struct PendingSave::State {
  Mutex mutex;
  CondVar changed;
  bool done SHARDWISE_GUARDED_BY(mutex) = false;
  bool error_seen SHARDWISE_GUARDED_BY(mutex) = false;
  std::exception_ptr error SHARDWISE_GUARDED_BY(mutex);
  SaveStats stats SHARDWISE_GUARDED_BY(mutex);

  /// The save that waited for the end of this one is not to begin any more.
  bool next_is_replaced SHARDWISE_GUARDED_BY(mutex) = false;

  void finish(SaveStats result, std::exception_ptr failure) {
    {
      const MutexLock lock(mutex);
      result.blocked_seconds = stats.blocked_seconds;
      stats = std::move(result);
      error = std::move(failure);
      done = true;
    }
    changed.notify_all();
  }

  bool is_done() {
    const MutexLock lock(mutex);
    return done;
  }

  void wait_until_done() SHARDWISE_REQUIRES(mutex) {
    while (!done) changed.wait(mutex);
  }
};

}  // namespace shardwise
