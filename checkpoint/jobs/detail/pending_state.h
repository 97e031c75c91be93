#pragma once

#include <exception>
#include <utility>

#include "shardwise/jobs/detail/save_turns.h"
#include "shardwise/jobs/pending_save.h"

namespace shardwise {

/// The state that the saving thread shares with those that wait for it. Thread-safe.
struct PendingSave::State : jobs_detail::Saving {
  SaveStats stats SHARDWISE_GUARDED_BY(mutex);

  void finish(SaveStats result, std::exception_ptr failure) {
    {
      const MutexLock lock(mutex);
      result.blocked_seconds = stats.blocked_seconds;
      stats = std::move(result);
    }
    end(std::move(failure));
  }
};

}  // namespace shardwise
