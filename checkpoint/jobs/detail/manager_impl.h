#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/bucket/detail/bucket_root.h"
#include "shardwise/checkpoint/detail/root/failures.h"
#include "shardwise/checkpoint/detail/root/spare.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/detail/write/staging.h"
#include "shardwise/checkpoint/detail/write/unchanged.h"
#include "shardwise/jobs/detail/caller.h"
#include "shardwise/jobs/detail/policy/save_errors.h"
#include "shardwise/jobs/detail/policy/save_schedule.h"
#include "shardwise/jobs/detail/save/damaged_steps.h"
#include "shardwise/jobs/detail/save/latest_step.h"
#include "shardwise/jobs/detail/save/root_keeper.h"
#include "shardwise/jobs/detail/save/run_steps.h"
#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/jobs/detail/save_queue.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise {

/// The parts of a manager, and the saves and restarts that use several of them. Thread-safe.
struct CheckpointManager::Impl {
  Impl(const std::filesystem::path& directory, ManagerOptions manager_options,
       const jobs_detail::RootTerms& terms);

  // Host sources are read in place, or copied before the caller goes on.
  enum class HostMemory { in_place, copied };

  /// A save's state from its caller.
  struct Caller {
    Stopwatch watch;                    // since it called
    ProcessGroup group, ends;           // all save by one, and agree by the other how it has ended
    double before = 0;                  // how long it waited before it called
    std::optional<double> waited = {};  // for copies of the tensors; nothing: for all of the save
    std::size_t copied_bytes = 0;
    bool is_damaged = false;             // the step that is there: rank 0 says so for all
    bool has_told = false;               // all this, so that it is told of no other times
    std::exception_ptr error = nullptr;  // the save ends with it on all processes
  };

  /// Starts a save on the manager's thread: every save() and save_async() begins here. `told`: by
  /// its caller; may be null.
  PendingSave start(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions save_options,
                    HostMemory host_memory, const jobs_detail::CallersPart* told = nullptr);

  /// Throws already_exists if the step is there and not to be replaced. An error that the job may
  /// go on after is returned: the save ends with it on all processes.
  std::exception_ptr refuse_existing(std::int64_t step) const;

  /// CheckpointManager's, by all processes of a rendezvous.
  std::optional<LatestStep> latest(const Rendezvous& ranks, std::int64_t below);

  /// Restores the newest step that all ranks can restore, or this one. `restore` gets the step.
  std::optional<LatestStep> restore(const Rendezvous& ranks, std::optional<std::int64_t> step,
                                    const std::function<void(const Step&)>& restore);

  static std::string opening(const std::filesystem::path& root);
  static std::size_t bytes_of(std::span<const TensorSource> tensors);
  /// Follows a commit: parity, the removal of superseded steps, statistics. All ranks agree on
  /// each. An error does not fail the save: it is told. `mine`: this rank's writers. `blocked`: how
  /// long the caller has waited. Files of removed steps go to `kept`, if it is not null.
  void finish(const Rendezvous& ranks, detail::WriterRange mine, detail::Spare* kept,
              const std::function<double()>& blocked, SaveStats& stats);

  std::vector<Step> steps() const;
  Step find(std::int64_t step) const;

  /// True if this process is the one that makes and removes the root's entries.
  bool owns_root() const { return local_roots || options.group.rank() == 0; }

  /// A bucket has no links: all chunks are written there.
  bool writes_increments() const { return options.write.increments && !bucket; }

  const std::filesystem::path root;
  const ManagerOptions options;
  const std::optional<LocalRoots> local_roots;
  const ProcessGroup calls = options.group.duplicate();     // should_save()'s
  const std::shared_ptr<bucket_detail::BucketRoot> bucket;  // null: the root is a folder
  const std::shared_ptr<FileSystem> files;
  jobs_detail::SaveSchedule schedule;
  jobs_detail::SaveErrors save_errors;
  jobs_detail::DamagedSteps damaged;
  const jobs_detail::LatestSteps finder{*files, root, local_roots.has_value()};
  const Executor executor;
  jobs_detail::RunSteps run_steps;
  jobs_detail::RootKeeper keeper{*files, root, options.keep, finder, run_steps, bucket.get()};

  std::unique_ptr<detail::StagingPool> pool;  // the save thread's
  detail::Spare spare;                        // as well
  detail::EarlierStep earlier;                // as well: the last save

  Mutex starting;
  jobs_detail::SaveQueue queue SHARDWISE_GUARDED_BY(starting);  // last: its threads use the rest

 private:
  PendingSave start(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions save_options,
                    HostMemory host_memory, Caller& caller) SHARDWISE_REQUIRES(starting);
  void run(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions save_options,
           const Caller& caller, PendingSave::State& state) noexcept;
  void protect(const Rendezvous& ranks, detail::WriterRange mine, SaveStats& stats) const;
  Step restore_one(const Rendezvous& ranks, std::int64_t step,
                   const std::function<void(const Step&)>& restore);
  void note(const LatestStep& found, int rank);
  void refuse_parts(const char* what) const;
};

}  // namespace shardwise
