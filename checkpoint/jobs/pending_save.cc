#include "shardwise/jobs/detail/pending_state.h"

namespace shardwise {

bool PendingSave::done() const { return !state_ || state_->done; }

SaveStats PendingSave::wait() const {
  if (!state_) return {};
  const MutexLock lock(state_->mutex);
  state_->wait_until_done();
  state_->error_seen = true;
  if (state_->error) std::rethrow_exception(state_->error);
  return state_->stats;
}

std::optional<SaveStats> PendingSave::settle() const {
  if (!state_) return SaveStats();
  const MutexLock lock(state_->mutex);
  state_->wait_until_done();
  return state_->error ? std::nullopt : std::optional(state_->stats);
}

}  // namespace shardwise
