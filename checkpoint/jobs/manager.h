#pragma once

#include <any>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/jobs/pending_save.h"
#include "shardwise/jobs/policies.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/shard/error.h"

namespace shardwise {

class CheckpointManager;

namespace jobs_detail {
struct ManagerInternals;
struct RootTerms;
}  // namespace jobs_detail

struct ManagerOptions {
  KeepOptions keep = {};    ///< which steps stay
  WhenOptions when = {};    ///< when to save
  WriteOptions write = {};  ///< how a save is written

  /// Removes leftovers of dead processes, at construction. Those that cannot be removed stay:
  /// collect_garbage() says why.
  bool collect_garbage = true;

  /// The processes of a job that share the root. All call save, save_async and latest() together,
  /// in the same order, with the same steps, and each gives and writes what its devices hold. Rank
  /// 0 commits and removes checkpoints and collects garbage. Codec, existing, writers, user_json,
  /// objects_json, devices and on_save_error are the same on all; a rank that differs is told which
  /// one before anything is written. A failure on one rank fails all, with that rank's message.
  ProcessGroup group = {};

  /// Devices of the job: process p of P holds those d with d * P / devices == p. 0: one more than
  /// the highest of the meshes of a save, then the same for all processes. At most 2^40.
  std::int64_t devices = 0;

  std::shared_ptr<FileSystem> file_system = nullptr;  ///< for all files; null: posix_file_system()

  /// Gets a line of runs that go back or meet, passed-over steps, failed saves; null: to stderr.
  std::function<void(const std::string&)> warn = nullptr;

  /// Cannot be given: the compiler shows this library's own options.
  [[no_unique_address]] jobs_detail::MaxToKeep max_to_keep = {};
  [[no_unique_address]] jobs_detail::SaveIntervalSteps save_interval_steps = {};
};

/// The names of a root's steps: retention leaves a step alone that has one. A name has letters,
/// digits, '-', '_' and '.', at most 100. Refers to its manager.
class StepPins {
 public:
  /// A name that another step has moves. Throws no_such_name (the step), invalid_argument, io.
  void add(std::int64_t step, const std::string& name);
  void remove(const std::string& name);  ///< throws no_such_name, listing those there are, io
  std::vector<NamedStep> list() const;   ///< sorted by name; throws io, corrupt

 private:
  friend class CheckpointManager;
  explicit StepPins(const CheckpointManager& manager) : manager_(&manager) {}

  const CheckpointManager* manager_;
};

/// By preemption_signals and preemption_grace: a job saves and ends once it is reached.
struct Preemption {
  bool is_reached = false;  ///< a signal had come to any process at the last should_save(), for all
  std::optional<std::chrono::nanoseconds> time_left = {};  ///< since one has come to this process
};

/// The checkpoints of one training run: a root directory of steps.
/// A save is renamed into place, replacing nothing, when every byte is on the disk and the pieces
/// are known to cover every tensor; a failure before leaves older checkpoints as they were. Removal
/// renames to trash first. (docs/checkpoint_format.md) A damaged step that latest() or
/// restore_latest() has passed over is replaced when the job saves it again, once, whatever
/// SaveOptions::existing says. A first save below steps of others sets those aside
/// (docs/checkpoints.md, "A run may go back"). Thread-safe. One save is under way at a time: the
/// next one waits for it first (WriteOptions::when_busy), and throws its error if nobody has seen
/// it.
///   CheckpointManager manager("checkpoints", {.keep = {.last = 3}, .when = {.every = 100}});
///   std::int64_t step = 0;
///   if (auto found = manager.restore_latest([&](const CheckpointReader& reader) {
///         w = reader.restore(devices, "w", w.sharding());
///       })) {
///     step = found->step.step;
///   }
///   for (; step < 1000 && !manager.preemption().is_reached; ++step) {
///     ...                                    // training
///     if (manager.should_save(step + 1)) manager.save_async(step + 1, {tensor_source("w", w)});
///   }
///   manager.close();
class CheckpointManager {
 public:
  /// Makes the root if it is not there. One that is may be read-only: then it serves to read. A
  /// relative path is one of the directory that the program is in now. Throws io, invalid_argument.
  explicit CheckpointManager(const std::filesystem::path& root, ManagerOptions options = {});

  /// As close(), but errors go to stderr, as a destructor cannot throw.
  ~CheckpointManager();
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  /// Returns when the step is committed. Throws invalid_argument (step < 0, bad or repeated names,
  /// user_json that is not JSON), already_exists, io, or the error of a source or of progress.
  SaveStats save(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions options = {});
  template <class = void>
  void save(std::int64_t, std::vector<std::pair<std::string, std::any>>,  // host_source() of each
            SaveOptions = {}) = delete;
  template <class = void>
  void save(std::int64_t, std::vector<TensorSource>, jobs_detail::MapAsJson) = delete;  // .metrics
  template <ProgramTensor T>
  void save(std::int64_t, const std::map<std::string, T>&,  // tensor_sources(tensors)
            SaveOptions = {}) = delete;

  /// Checks its arguments, throws as above for them, copies what host sources refer to, and returns
  /// while the save goes on.
  PendingSave save_async(std::int64_t step, std::vector<TensorSource> tensors,
                         SaveOptions options = {});

  /// Wait for all saves, throw the first error nobody has seen; others may go on after close().
  void wait();
  void close();

  /// True if this step is to be saved: one of save_every, save_interval, request_save() and a
  /// signal says so. Collective: all processes of a group get the same answer, by one all_gather.
  bool should_save(std::int64_t step);

  void request_save();  ///< should_save() is true the next time, on all processes

  Preemption preemption() const;
  ManagerStats stats() const;  ///< how the saves so far have ended: WriteOptions::on_save_error

  /// Calls `restore` with a reader of the newest valid step, and gives that step; nothing if the
  /// root holds no step. If that step turns out to be damaged (`restore` throws corrupt), it is
  /// called again for the step before, and must fill again all that it has filled. The steps that
  /// were passed over, and why, are in `rejected`. Throws as latest() does, and what `restore`
  /// throws. With a group all go to the same step; an Error of another rank is thrown here, too.
  std::optional<LatestStep> restore_latest(
      const std::function<void(const CheckpointReader&)>& restore) const;
  std::optional<LatestStep> restore_latest() = delete;  // with what reads: [](auto& reader) {..}

  StepPins pins() const { return StepPins(*this); }

  /// Committed steps, ascending; of each the highest generation. Says nothing about their bytes.
  std::vector<Step> steps() const;

  /// The newest step, of those before `below`, whose manifest, file sizes and, of 64 shard files
  /// at most, chunk tables are valid; nothing if the root holds no step. Throws corrupt, with
  /// reasons, if no step is valid, unsupported if all are of Orbax, DCP and others, with what makes
  /// steps of them: neither is taken for a fresh start. Throws io, naming the step, if one that may
  /// be the newest cannot be read: it never goes back to an older step for that reason. If another
  /// process removes the step before it is opened, opening it throws not_found: ask again. With a
  /// group, rank 0 looks, and the others check that it is there for them, too; cancelled, with the
  /// reason, if it failed on another rank.
  std::optional<LatestStep> latest(
      std::int64_t below = std::numeric_limits<std::int64_t>::max()) const;

  /// Throws no_such_name, listing the steps there are.
  Step step(std::int64_t step) const;

  /// Removes a step, all its generations; says whether it is gone. Throws no_such_name,
  /// invalid_argument if it is pinned by name, io.
  bool remove(std::int64_t step, WhenRead when_read = WhenRead::remove);

  /// Removes leftovers of dead processes, and generations that a valid one replaces. Goes on if
  /// something cannot be removed, and throws the first error, mostly io, at the end.
  GarbageReport collect_garbage(const GarbageOptions& options = {});

 private:
  friend class StepPins;
  friend struct jobs_detail::ManagerInternals;
  CheckpointManager(const std::filesystem::path& root, ManagerOptions options,
                    const jobs_detail::RootTerms& terms);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The best committed step by KeepOptions::best; nothing if none has the metric.
/// Throws invalid_argument if there is no such rule, io.
std::optional<Step> best_step(const CheckpointManager& manager);

}  // namespace shardwise
