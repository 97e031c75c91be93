#include "shardwise/jobs/detail/save/run_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include "shardwise/checkpoint/detail/root/marks/set_aside.h"

namespace shardwise::jobs_detail {

void RunSteps::note_committed(const StepName& name) {
  const MutexLock lock(mutex_);
  const bool is_written = !written_.insert(name).second;  // also if what follows fails
  const std::vector<StepName> names = run_names(files_, root_).own;
  const auto is_older = [&](const StepName& other) {
    return other.step == name.step && other.generation < name.generation;
  };
  claim_below(name.step, names);
  lease_->renew();
  const bool is_alone = this->is_alone();
  // A step of the run that is replaced is no way back: metrics may come late.
  const bool is_back =
      restored_ && name.step != *restored_ && std::ranges::none_of(names, is_older);
  if (has_begun_ && !is_back) return;
  std::set<std::int64_t> later;
  const auto leave = [&](const std::filesystem::path& root, std::vector<StepName> others) {
    std::erase_if(others, [&](const StepName& other) { return other.step <= name.step; });
    set_aside(files_, root, others);
    for (const StepName& other : others) later.insert(other.step);
  };
  if (is_alone) {
    std::vector<StepName> others;
    for (const StepName& other : names) {
      if (is_back || !written_.contains(other)) others.push_back(other);
    }
    leave(root_, std::move(others));
    if (others_of_host_) {
      for (const std::filesystem::path& root : others_of_host_()) {
        leave(root, run_names(files_, root).own);
      }
    }
  }
  has_begun_ = true;
  if (is_back && !(is_written && later.empty())) restored_.reset();
  if (!later.empty()) tell_set_aside(name.step, later);
}

void RunSteps::note_restored(std::int64_t step) {
  const MutexLock lock(mutex_);
  restored_ = step;
}

void RunSteps::tell_set_aside(std::int64_t step, const std::set<std::int64_t>& later) const {
  const std::string fate =
      others_of_host_ ? "they go once it has saved two steps, if keep_fast says that any go"
                      : fmt::format("retention leaves them; `shardwise rm {} {}` removes them",
                                    root_.string(), fmt::join(later, " "));
  tell(
      fmt::format("{}: step {} is saved below the steps {}, which are set aside: latest follows "
                  "this run, and {}",
                  root_.string(), step, fmt::join(later, ", "), fate));
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

void RunSteps::tell_passed_over(std::span<const RejectedStep> rejected) {
  const MutexLock lock(mutex_);
  for (const RejectedStep& one : rejected) {
    if (!passed_over_.insert(one.directory).second) continue;
    tell(fmt::format("passed over {}: {}", one.directory.string(), one.reason));
  }
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

// Acts once: steps that another process commits later are its own.
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

}  // namespace shardwise::jobs_detail
