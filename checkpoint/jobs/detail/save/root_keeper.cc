#include "shardwise/jobs/detail/save/root_keeper.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "shardwise/checkpoint/detail/format/metrics.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/directory_state.h"
#include "shardwise/checkpoint/detail/root/marks/named_steps.h"
#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/checkpoint/detail/root/marks/set_aside.h"
#include "shardwise/checkpoint/detail/root/marks/stats_file.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {
namespace {

std::vector<std::int64_t> numbers_of(const std::vector<Step>& steps) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(steps.size());
  for (const Step& step : steps) numbers.push_back(step.step);
  return numbers;
}

const Step& find(const std::vector<Step>& steps, std::int64_t number) {
  return *std::ranges::lower_bound(steps, number, {}, &Step::step);
}

std::optional<double> metric_of(FileSystem& files, const Step& step, const std::string& name) {
  std::map<std::string, double> metrics;
  try {
    metrics = metrics_of(read_manifest(open_directory(files, step.directory)).objects_json);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    return std::nullopt;  // damaged, or removed since
  }
  const auto found = metrics.find(name);
  if (found == metrics.end()) return std::nullopt;
  return found->second;
}

}  // namespace

std::vector<std::int64_t> superseded(FileSystem& files, const std::filesystem::path& root,
                                     const std::vector<Step>& steps, const KeepOptions& rules,
                                     const LatestSteps& finder, Failures& failures,
                                     const bucket_detail::BucketRoot* bucket) {
  std::set<std::int64_t> named;
  for (const NamedStep& one : named_steps(files, root)) named.insert(one.step);
  const auto is_valid = [&](std::int64_t number) {
    const Step& step = find(steps, number);
    bool valid = false;
    failures.attempt([&] { valid = finder.why_invalid({step.step, step.generation}).empty(); });
    return valid;
  };
  const auto value = [&](std::int64_t number) {
    return metric_of(files, find(steps, number), rules.best->metric);
  };
  const auto time = [&](std::int64_t number) {
    const Step& step = find(steps, number);
    if (bucket != nullptr) return bucket->published_seconds({step.step, step.generation});
    return DirectoryState(step.directory / kManifestName).modified_seconds();
  };
  return not_kept(numbers_of(steps), rules, named,
                  {.is_valid = is_valid, .value = value, .time = time});
}

std::optional<Step> best_of(FileSystem& files, const std::vector<Step>& steps,
                            const BestSteps& best) {
  const auto value = [&](std::int64_t number) {
    return metric_of(files, find(steps, number), best.metric);
  };
  const std::vector<std::int64_t> ranked =
      ranked_by(numbers_of(steps), best, {.is_valid = {}, .value = value, .time = {}});
  if (ranked.empty()) return std::nullopt;
  return find(steps, ranked.front());
}

void RootKeeper::clean_up(const StepName& committed, Spare* spare, Failures& failures) noexcept {
  remove_leftovers(failures);
  bool was_unclean = false;
  {
    const MutexLock lock(mutex_);
    was_unclean = std::exchange(unclean_, false);
  }
  if (was_unclean) {
    failures.attempt([&] { static_cast<void>(collect({})); });
  }
  failures.attempt([&] { run_steps_.note_committed(committed); });
  failures.attempt([&] { remove_superseded(committed, spare, failures); });
  if (failures.none()) return;
  const MutexLock lock(mutex_);
  unclean_ = true;
}

void RootKeeper::remove_superseded(const std::optional<StepName>& committed, Spare* spare,
                                   Failures& failures) {
  const std::vector<StepName> names = committed_names(files_, root_);
  std::vector<std::int64_t> retired;
  failures.attempt([&] {
    retired = superseded(files_, root_, newest_of(run_steps_.counted()), rules_, finder_, failures,
                         bucket_);
  });
  for (const StepName& other : names) {
    const bool is_same = committed && other.step == committed->step;
    const bool is_replaced = is_same && other.generation < committed->generation;
    const bool is_retired = !is_same && std::ranges::binary_search(retired, other.step);
    if (!is_replaced && !is_retired) continue;
    const bool removed = failures.attempt([&] { remove(other, WhenRead::keep, spare); });
    // Synced before the next one is removed: steps disappear oldest first, also in a crash.
    if (!removed && !failures.attempt([&] { files_.sync_directory(root_); })) return;
  }
}

GarbageReport RootKeeper::collect_garbage(const GarbageOptions& options, Failures& failures) {
  GarbageReport report;
  remove_leftovers(failures);
  failures.attempt([&] { report = collect(options); });
  failures.attempt([&] { remove_replaced_by_valid(report, failures); });
  failures.attempt([&] { remove_stale(); });
  return report;
}

GarbageReport RootKeeper::collect(const GarbageOptions& options) {
  return bucket_ != nullptr ? bucket_->collect_garbage()
                            : collect_root_garbage(files_, root_, options);
}

bool RootKeeper::remove(const StepName& name, WhenRead when_read, Spare* spare) {
  if (bucket_ != nullptr) {
    bucket_->remove(name);
    return true;
  }
  if (when_read == WhenRead::keep) return remove_unless_pinned(files_, root_, name, spare);
  remove_checkpoint(files_, root_, name);
  return true;
}

// A process that died after its commit leaves generations that a valid one replaces.
void RootKeeper::remove_replaced_by_valid(GarbageReport& report, Failures& failures) {
  const std::vector<StepName> names = committed_names(files_, root_);
  for (std::size_t i = 0; i + 1 < names.size(); ++i) {
    failures.attempt([&] {
      if (names[i].step != names[i + 1].step || !finder_.why_invalid(names[i + 1]).empty()) return;
      const bool gone = remove(names[i], WhenRead::keep);
      (gone ? report.removed : report.kept).push_back(to_string(names[i]));
    });
  }
}

void RootKeeper::remove_stale() const {
  remove_stale_stats(files_, root_);
  remove_stale_marks(files_, root_);
}

void RootKeeper::write_stats(const SaveStats& stats, Failures& failures) const {
  failures.attempt([&] { remove_stale(); });
  failures.attempt([&] { detail::write_stats(files_, stats); });
}

void RootKeeper::keep_leftovers(std::vector<std::filesystem::path> left) noexcept {
  const MutexLock lock(mutex_);
  if (leftovers_.empty()) return leftovers_.swap(left);
  try {
    leftovers_.insert(leftovers_.end(), left.begin(), left.end());
  } catch (...) {
  }
}

void RootKeeper::remove_leftovers(Failures& failures) noexcept {
  const MutexLock lock(mutex_);
  std::erase_if(leftovers_, [&](const std::filesystem::path& path) {
    return failures.attempt([&] { files_.remove(path); });
  });
}

std::vector<Step> RootKeeper::newest_of(std::span<const StepName> names) const {
  std::vector<Step> steps;
  for (const StepName& name : names) {
    if (!steps.empty() && steps.back().step == name.step) steps.pop_back();
    steps.push_back({name.step, name.generation, root_ / to_string(name)});
  }
  return steps;
}

}  // namespace shardwise::jobs_detail
