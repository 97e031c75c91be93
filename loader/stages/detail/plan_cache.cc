#include "shardwise/loader/stages/detail/plan_cache.h"

namespace shardwise::detail {

PlanCache::Plan PlanCache::find(std::int64_t window) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(window);
  if (found == entries_.end()) return nullptr;
  used_.splice(used_.begin(), used_, found->second);
  return found->second->plan;
}

void PlanCache::add(std::int64_t window, const Plan& plan) {
  const std::lock_guard lock(mutex_);
  if (entries_.contains(window)) return;  // another thread was faster
  used_.push_front({window, plan});
  entries_.emplace(window, used_.begin());
  bytes_ += plan->memory_bytes();
  while (bytes_ > most_bytes_ && used_.size() > 1) {
    bytes_ -= used_.back().plan->memory_bytes();
    entries_.erase(used_.back().window);
    used_.pop_back();
  }
}

std::size_t PlanCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace shardwise::detail
