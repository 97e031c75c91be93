#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "shardwise/bucket/detail/bucket_root.h"
#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/root/failures.h"
#include "shardwise/checkpoint/detail/root/spare.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/jobs/detail/policy/retention.h"
#include "shardwise/jobs/detail/save/latest_step.h"
#include "shardwise/jobs/detail/save/run_steps.h"
#include "shardwise/jobs/policies.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/file.h"

namespace shardwise::jobs_detail {

using namespace detail;

/// Returns those of the ascending steps of a root that neither the rules nor a name keeps. Files in
/// `bucket`, which may be null, tell their times. A step
/// whose validity cannot be read does not count, and is noted in `failures`. Throws io if a metric
/// cannot be read, and as named_steps() and not_kept() do.
std::vector<std::int64_t> superseded(FileSystem& files, const std::filesystem::path& root,
                                     const std::vector<Step>& steps, const KeepOptions& rules,
                                     const LatestSteps& finder, Failures& failures,
                                     const bucket_detail::BucketRoot* bucket = nullptr);

/// The best of the steps; nothing if none has the metric. Throws io.
std::optional<Step> best_of(FileSystem& files, const std::vector<Step>& steps,
                            const BestSteps& best);

/// Removes leftovers of commits, failures and dead processes from a manager's root, and writes the
/// statistics of saves next to their steps. Each method tries all that it can, and notes failures.
/// Thread-safe.
class RootKeeper {
 public:
  /// Keeps references. `bucket`: the root, if it is in one; or null.
  RootKeeper(FileSystem& files, const std::filesystem::path& root, KeepOptions rules,
             const LatestSteps& finder, RunSteps& run_steps, bucket_detail::BucketRoot* bucket)
      : files_(files),
        root_(root),
        rules_(std::move(rules)),
        finder_(finder),
        run_steps_(run_steps),
        bucket_(bucket) {}

  /// Removes the steps that the commit of this one makes superfluous, and earlier leftovers. Files
  /// go to `spare`, if there is one.
  void clean_up(const StepName& committed, Spare* spare, Failures& failures) noexcept;

  /// Writes a save's statistics next to its step.
  void write_stats(const SaveStats& stats, Failures& failures) const;

  /// Removes the steps that retention does not keep, and those that the committed one replaces.
  void remove_superseded(const std::optional<StepName>& committed, Spare* spare,
                         Failures& failures);

  /// Removes all that dead processes left, and generations that a valid one replaces.
  GarbageReport collect_garbage(const GarbageOptions& options, Failures& failures);

  /// Removes a checkpoint; unless a reader has pinned it, if `when_read` says so. Returns whether
  /// it is gone. Its files go to `spare`, if there is one. Steps in a bucket have no readers' pins.
  bool remove(const StepName& name, WhenRead when_read, Spare* spare = nullptr);

  /// Removes files about steps that are gone.
  void remove_stale() const;

  /// Takes over leases of failed attempts that could not be removed. If there is no memory to note
  /// them, they hold until this process ends.
  void keep_leftovers(std::vector<std::filesystem::path> left) noexcept;

  /// Gives the highest generation of each step. Names ascend.
  std::vector<Step> newest_of(std::span<const StepName> names) const;

 private:
  void remove_replaced_by_valid(GarbageReport& report, Failures& failures);
  GarbageReport collect(const GarbageOptions& options);
  void remove_leftovers(Failures& failures) noexcept;

  FileSystem& files_;
  const std::filesystem::path& root_;
  const KeepOptions rules_;
  const LatestSteps& finder_;
  RunSteps& run_steps_;
  bucket_detail::BucketRoot* const bucket_;

  Mutex mutex_;
  std::vector<std::filesystem::path> leftovers_ SHARDWISE_GUARDED_BY(mutex_);
  bool unclean_ SHARDWISE_GUARDED_BY(mutex_) = false;  // something could not be removed
};

}  // namespace shardwise::jobs_detail
