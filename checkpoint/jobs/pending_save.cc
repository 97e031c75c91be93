#include "shardwise/jobs/detail/pending_state.h"

namespace shardwise {

bool PendingSave::done() const { return !state_ || state_->is_done(); }

SaveStats PendingSave::wait() const {
  if (!state_) return {};
  const MutexLock lock(state_->mutex);
  state_->wait_until_done();
  state_->error_seen = true;
  if (state_->error) std::rethrow_exception(state_->error);
  return state_->stats;
}

bool PendingSave::settle() const {
  if (!state_) return true;
  const MutexLock lock(state_->mutex);
  state_->wait_until_done();
  return state_->error == nullptr;
}

}  // namespace shardwise
