#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/root/marks/writer_lease.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/file.h"

namespace shardwise::jobs_detail {

using namespace detail;

/// Which steps of a root are a manager's run: those that it has committed, and those below its
/// first one, unless another manager that may be alive saves there, too. Thread-safe.
class RunSteps {
 public:
  using Warn = std::function<void(const std::string&)>;

  /// `files` and `root` must outlive it. warn: null: to the standard error. terms: where else
  /// steps are set aside.
  RunSteps(FileSystem& files, const std::filesystem::path& root, Warn warn,
           const RootTerms& terms = {})
      : files_(files), root_(root), warn_(std::move(warn)), others_of_host_(terms.others_of_host) {}

  /// After this manager has committed that step: if it is its first one, or the first new one after
  /// a restore, the later ones are set aside, as the run has gone back, unless another manager may
  /// have saved them. Throws io: then the next step does it.
  void note_committed(const StepName& name);

  /// After this manager has restored that step: the run goes on from there.
  void note_restored(std::int64_t step);

  /// The names that retention counts, and may remove, ascending.
  std::vector<StepName> counted();

  /// Warns of each, once: a run that goes on from an older step is not to do so in silence.
  void tell_passed_over(std::span<const RejectedStep> rejected);

  void tell(const std::string& text) const;

  /// No more steps are committed for now: others may take the run up.
  void release();

 private:
  void tell_set_aside(std::int64_t step, const std::set<std::int64_t>& later) const;
  bool is_alone() SHARDWISE_REQUIRES(mutex_);
  void claim_below(std::int64_t step, const std::vector<StepName>& names)
      SHARDWISE_REQUIRES(mutex_);

  FileSystem& files_;
  const std::filesystem::path& root_;
  const Warn warn_;
  const std::function<std::vector<std::filesystem::path>()> others_of_host_;

  Mutex mutex_;
  std::optional<WriterLease> lease_ SHARDWISE_GUARDED_BY(mutex_);  // from the first commit on
  std::set<StepName> written_ SHARDWISE_GUARDED_BY(mutex_);
  std::set<StepName> before_ SHARDWISE_GUARDED_BY(mutex_);  // empty once there is another manager
  std::optional<std::int64_t> restored_ SHARDWISE_GUARDED_BY(mutex_);  // until the run has gone on
  bool has_begun_ SHARDWISE_GUARDED_BY(mutex_) = false;                // later steps are set aside
  std::set<std::filesystem::path> passed_over_ SHARDWISE_GUARDED_BY(mutex_);
  bool has_told_ SHARDWISE_GUARDED_BY(mutex_) = false;  // of that
};

}  // namespace shardwise::jobs_detail
