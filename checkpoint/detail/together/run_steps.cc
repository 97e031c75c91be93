#include "shardwise/checkpoint/detail/together/run_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <limits>
#include <utility>

#include "shardwise/checkpoint/detail/root/set_aside.h"

namespace shardwise::detail {

void RunSteps::note_committed(const StepName& name) {
  const MutexLock lock(mutex_);
  written_.insert(name);
  const std::vector<StepName> names = run_names(files_, root_).own;
  claim_below(name.step, names);
  lease_->renew();
  const bool is_alone = this->is_alone();
  if (has_begun_) return;
  std::vector<StepName> later;
  for (const StepName& other : names) {
    if (is_alone && other.step > name.step && !written_.contains(other)) later.push_back(other);
  }
  set_aside(files_, root_, later);
  has_begun_ = true;
  if (later.empty()) return;
  std::set<std::int64_t> numbers;
  for (const StepName& other : later) numbers.insert(other.step);
  tell(
      fmt::format("{0}: step {1} is saved below the steps {2}, which are set aside: latest follows "
                  "this run, and retention leaves them; `shardwise rm {0} {3}` removes them",
                  root_.string(), name.step, fmt::join(numbers, ", "), fmt::join(numbers, " ")));
}

std::vector<StepName> RunSteps::counted() {
  const MutexLock lock(mutex_);
  const std::vector<StepName> names = run_names(files_, root_).own;
  claim_below(std::numeric_limits<std::int64_t>::max(), names);
  static_cast<void>(is_alone());
  std::vector<StepName> counted;
  for (const StepName& name : names) {
    if (written_.contains(name) || before_.contains(name)) counted.push_back(name);
  }
  return counted;
}

void RunSteps::release() {
  const MutexLock lock(mutex_);
  lease_.reset();
  has_begun_ = false;
}

void RunSteps::tell(const std::string& text) const {
  if (warn_) return warn_(text);
  std::fputs(fmt::format("shardwise: {}\n", text).c_str(), stderr);
}

// Once: what another process commits later is its own.
void RunSteps::claim_below(std::int64_t step, const std::vector<StepName>& names) {
  if (lease_) return;
  lease_.emplace(root_);
  for (const StepName& name : names) {
    if (name.step < step) before_.insert(name);
  }
}

bool RunSteps::is_alone() {
  const std::vector<std::string> others = lease_->others();
  if (others.empty()) return true;
  before_.clear();
  if (!std::exchange(has_told_, true)) {
    tell(
        fmt::format("{0}: another manager saves there: {1}; no step is set aside, and retention "
                    "removes only steps that this one has written. Needed is a root for each "
                    "job; `shardwise gc {0} --dead-host HOST` if that host is gone",
                    root_.string(), fmt::join(others, ", ")));
  }
  return false;
}

}  // namespace shardwise::detail
