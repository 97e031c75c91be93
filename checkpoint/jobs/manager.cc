#include "shardwise/jobs/manager.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/directory_state.h"
#include "shardwise/checkpoint/detail/root/failures.h"
#include "shardwise/checkpoint/detail/root/marks/named_steps.h"
#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/checkpoint/detail/root/marks/set_aside.h"
#include "shardwise/checkpoint/detail/root/marks/stats_file.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/detail/pending_state.h"
#include "shardwise/jobs/detail/policy/retention.h"
#include "shardwise/jobs/detail/policy/save_errors.h"
#include "shardwise/jobs/detail/policy/save_schedule.h"
#include "shardwise/jobs/detail/save/damaged_steps.h"
#include "shardwise/jobs/detail/save/group_save.h"
#include "shardwise/jobs/detail/save/latest_step.h"
#include "shardwise/jobs/detail/save/run_steps.h"
#include "shardwise/jobs/detail/save/save_together.h"
#include "shardwise/jobs/detail/save/superseded.h"
#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/jobs/detail/save_queue.h"
#include "shardwise/mend/detail/parity_writer.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise {
namespace {

// What becomes of host sources: read where they are, or copied before the caller goes on.
enum class HostMemory { in_place, copied };

std::string steps_text(const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) text += fmt::format("{}{}", text.empty() ? "" : ", ", step.step);
  return text.empty() ? "none" : text;
}

std::string opening(const std::filesystem::path& root) {
  return fmt::format("open checkpoint root {}", root.string());
}

std::size_t bytes_of(std::span<const TensorSource> tensors) {
  std::size_t bytes = 0;
  for (const auto& one : tensors) bytes += one.reader->tensors()[one.tensor].logical_bytes;
  return bytes;
}

}  // namespace

struct CheckpointManager::Impl {
  Impl(const std::filesystem::path& directory, ManagerOptions manager_options,
       const jobs_detail::RootTerms& terms)
      : root(detail::absolute_root(directory)),
        options(std::move(manager_options)),
        local_roots(terms.local_roots),
        files(options.file_system ? options.file_system : posix_file_system()),
        schedule(options.when, opening(root)),
        save_errors(options.write.on_save_error, options.write.most_failed_saves, opening(root),
                    [this](const std::string& text) {
                      schedule.request_save();
                      run_steps.tell(text);
                    }),
        executor(options.write.threads),
        run_steps(*files, root, options.warn, terms),
        spare(*files),
        queue(options.write.when_busy) {}

  /// A save's state from its caller.
  struct Caller {
    Stopwatch watch;                    // since it called
    ProcessGroup group, ends;           // all save by one, and agree by the other how it has ended
    std::optional<double> waited = {};  // for copies of the tensors; nothing: for all of the save
    std::size_t copied_bytes = 0;
    std::exception_ptr error = nullptr;  // the save ends with it on all processes
  };

  // Starts a save on the manager's thread: every save() and save_async() begins here.
  PendingSave start(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions save_options,
                    HostMemory host_memory) {
    const Stopwatch watch;
    const MutexLock lock(starting);
    Caller caller{watch, options.group.duplicate(), options.group.duplicate()};
    try {
      return start(step, std::move(tensors), std::move(save_options), host_memory, caller);
    } catch (const jobs_detail::EarlierSaveFailed& e) {  // on all ranks
      std::rethrow_exception(e.error);
    } catch (...) {
      jobs_detail::abort_group(caller.group, fmt::format("save step {}", step));
      jobs_detail::abort_group(caller.ends, fmt::format("save step {}", step));
      throw;
    }
  }

  PendingSave start(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions save_options,
                    HostMemory host_memory, Caller& caller) SHARDWISE_REQUIRES(starting) {
    jobs_detail::check_save(step, tensors, save_options, executor.threads(), options.group.size());
    if (damaged.contains(step)) save_options.existing = Existing::replace;
    const auto refuse_existing = [&] {
      if (save_options.existing != Existing::fail || !owns_root()) return;
      try {
        detail::refuse_existing(*files, root, step);
      } catch (const Error& e) {
        if (!save_errors.tolerates(e.code())) throw;
        caller.error =
            std::make_exception_ptr(Error(e, fmt::format("save step {}: {}", step, e.what())));
      }
    };
    // First, so that what cannot be saved replaces nothing.
    if (options.write.when_busy == WhenBusy::replace) refuse_existing();
    auto turn = jobs_detail::SaveQueue::Turn::now;
    if (host_memory == HostMemory::copied) {
      turn = queue.next_turn(caller.group);
    } else {
      queue.finish();
    }
    if (turn == jobs_detail::SaveQueue::Turn::skipped) return jobs_detail::SaveQueue::skipped();
    refuse_existing();
    schedule.begin(step, bytes_of(tensors));
    // Under the lock: no body of this executor wants it, and no save reads the snapshot now.
    if (host_memory == HostMemory::copied) {
      caller.copied_bytes = queue.copy(tensors, executor);
      caller.waited = caller.watch.seconds();
    }
    PendingSave pending = queue.start(
        turn, step, caller.group,
        [this, step, tensors = std::move(tensors), save_options = std::move(save_options),
         caller](PendingSave::State& state) mutable {
          run(step, std::move(tensors), std::move(save_options), caller, state);
        });
    const MutexLock state_lock(pending.state_->mutex);
    pending.state_->stats.blocked_seconds = caller.watch.seconds();
    return pending;
  }

  /// Whether this process is the one that makes and removes what is in the root.
  bool owns_root() const { return local_roots || options.group.rank() == 0; }

  void run(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions save_options,
           const Caller& caller, PendingSave::State& state) noexcept {
    const Stopwatch watch;
    SaveStats stats;
    std::exception_ptr error;
    std::vector<std::filesystem::path> left;
    try {
      if (caller.error) std::rethrow_exception(caller.error);
      jobs_detail::SaveContext context{*files, root,  executor,        pool,
                                       left,   spare, options.devices, local_roots};
      context.most_failed_saves = save_errors.most();
      if (options.write.increments) {
        context.earlier = &earlier;
        context.find_earlier = [this, step] { return damaged.find_earlier(*files, root, step); };
        if (!damaged.may_be_built_on(earlier, step)) earlier = {};
      }
      save_options.progress = schedule.watch(step, std::move(save_options.progress));
      stats = jobs_detail::run_save(context, caller.group, step, std::move(tensors), save_options);
      stats.total_seconds = watch.seconds();
      stats.publish_seconds = stats.total_seconds - stats.plan_seconds - stats.write_seconds;
      stats.memory_bytes = caller.copied_bytes;
      if (pool) stats.memory_bytes += pool->held_bytes();
      if (!stats.skipped) schedule.end(stats.logical_bytes, stats.total_seconds);
    } catch (const Error& e) {
      error = std::current_exception();
      jobs_detail::abort_group(caller.group,
                               fmt::format("save step {}", step));  // unless that is done
      // It may be what the step before has.
      if (e.code() == ErrorCode::corrupt) damaged.note(std::exchange(earlier, {}));
    } catch (...) {
      error = std::current_exception();
    }
    keep_leftovers(std::move(left));
    error = save_errors.judge(step, caller.ends, error, stats);
    if (!error && stats.error.empty()) {
      damaged.forget(step);
      if (!stats.skipped) finish(stats, save_options, caller);
    }
    state.finish(std::move(stats), error);
  }

  // Follows a commit. An error here does not fail the save: it is told.
  void finish(SaveStats& stats, const SaveOptions& save_options, const Caller& caller) noexcept {
    save_errors.note_saved();
    detail::Failures of_parity, of_cleaning, of_telling;
    if (options.write.parity_blocks > 0) of_parity.attempt([&] { protect(stats, save_options); });
    tell_failures(of_parity, stats);
    if (!owns_root()) return;
    clean_up(stats.directory, of_cleaning);
    tell_failures(of_cleaning, stats);
    of_telling.attempt([&] {
      if (!options.write.stats) return;
      SaveStats told = stats;
      told.blocked_seconds = caller.waited.value_or(caller.watch.seconds());
      write_stats(told, of_telling);
    });
    tell_failures(of_telling, stats);
  }

  void protect(SaveStats& stats, const SaveOptions& save_options) const {
    const detail::Pin pin(*files, stats.directory);
    const detail::WriterRange mine = detail::writers_of(options.group.rank(), save_options.writers);
    const auto is_mine = [mine](const detail::FileEntry& file) {
      return mine.first <= file.writer && file.writer < mine.end;
    };
    stats.parity_bytes = mend_detail::write_parity_files(*files, stats.directory,
                                                         {.blocks = options.write.parity_blocks,
                                                          .threads = options.write.threads,
                                                          .is_mine = is_mine})
                             .parity_bytes;
  }

  static void tell_failures(const detail::Failures& failures, SaveStats& stats) noexcept {
    if (failures.none()) return;
    try {
      const std::string before = stats.cleanup_error.empty() ? "" : stats.cleanup_error + "; ";
      stats.cleanup_error = before + failures.text();
    } catch (...) {
      stats.cleanup_error = "out of memory";  // so short that it needs none
    }
  }

  // What says something of steps that are gone.
  void remove_stale() const {
    detail::remove_stale_stats(*files, root);
    detail::remove_stale_marks(*files, root);
  }

  void write_stats(const SaveStats& stats, detail::Failures& failures) const {
    failures.attempt([&] { remove_stale(); });
    failures.attempt([&] { detail::write_stats(*files, stats); });
  }

  // Removes the steps that a commit makes superfluous, and earlier leftovers.
  void clean_up(const std::filesystem::path& directory, detail::Failures& failures) noexcept {
    remove_leftovers(failures);
    if (std::exchange(unclean, false)) {
      failures.attempt([&] { static_cast<void>(detail::collect_root_garbage(*files, root)); });
    }
    const detail::StepName name = *detail::parse_step_name(directory.filename().string());
    failures.attempt([&] { run_steps.note_committed(name); });
    failures.attempt([&] { remove_superseded(name, failures); });
    unclean = !failures.none();
  }

  void remove_superseded(const detail::StepName& name, detail::Failures& failures) {
    const std::vector<detail::StepName> names = detail::committed_names(*files, root);
    std::vector<std::int64_t> retired;
    failures.attempt([&] { retired = superseded(failures); });
    for (const detail::StepName& other : names) {
      const bool is_replaced = other.step == name.step && other.generation < name.generation;
      const bool is_retired =
          other.step != name.step && std::ranges::binary_search(retired, other.step);
      if (!is_replaced && !is_retired) continue;
      const bool removed = failures.attempt([&] {
        detail::remove_unless_pinned(*files, root, other,
                                     options.write.reuse_files ? &spare : nullptr);
      });
      // Synced before the next one is removed: steps disappear oldest first, also in a crash.
      if (!removed && !failures.attempt([&] { files->sync_directory(root); })) return;
    }
  }

  // The steps that retention does not keep, ascending.
  std::vector<std::int64_t> superseded(detail::Failures& failures) {
    return jobs_detail::superseded(*files, root, newest_of(run_steps.counted()), options.keep,
                                   finder, failures);
  }

  // Leases of our own failed attempts. If there is no memory to note them, they hold until this
  // process ends.
  void keep_leftovers(std::vector<std::filesystem::path> left) noexcept {
    const MutexLock lock(mutex);
    if (leftovers.empty()) return leftovers.swap(left);
    try {
      leftovers.insert(leftovers.end(), left.begin(), left.end());
    } catch (...) {
    }
  }

  void remove_leftovers(detail::Failures& failures) noexcept {
    const MutexLock lock(mutex);
    std::erase_if(leftovers, [&](const std::filesystem::path& path) {
      return failures.attempt([&] { files->remove(path); });
    });
  }

  // What a process that died after its commit has left: generations that a valid one replaces.
  void remove_replaced_by_valid(GarbageReport& report, detail::Failures& failures) {
    const std::vector<detail::StepName> names = detail::committed_names(*files, root);
    for (std::size_t i = 0; i + 1 < names.size(); ++i) {
      failures.attempt([&] {
        if (names[i].step != names[i + 1].step || !finder.why_invalid(names[i + 1]).empty()) return;
        const bool gone = detail::remove_unless_pinned(*files, root, names[i]);
        (gone ? report.removed : report.kept).push_back(to_string(names[i]));
      });
    }
  }

  void note(const LatestStep& found) {
    damaged.note(found.rejected);
    if (options.group.rank() == 0) run_steps.tell_passed_over(found.rejected);
  }

  void refuse_parts(const char* what) const {
    if (!local_roots) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} in {}: its files are in the roots of several processes: "
                            "TieredManager finds it",
                            what, root.string()));
  }

  // Of each step its highest generation, ascending. Names come so.
  std::vector<Step> newest_of(std::span<const detail::StepName> names) const {
    std::vector<Step> steps;
    for (const detail::StepName& name : names) {
      if (!steps.empty() && steps.back().step == name.step) steps.pop_back();
      steps.push_back({name.step, name.generation, root / to_string(name)});
    }
    return steps;
  }

  const std::filesystem::path root;
  const ManagerOptions options;
  const std::optional<LocalRoots> local_roots;
  const ProcessGroup calls = options.group.duplicate();  // should_save()'s
  const std::shared_ptr<FileSystem> files;
  jobs_detail::SaveSchedule schedule;
  jobs_detail::SaveErrors save_errors;
  jobs_detail::DamagedSteps damaged;
  const jobs_detail::LatestSteps finder{*files, root, local_roots.has_value()};
  const Executor executor;
  jobs_detail::RunSteps run_steps;

  Mutex mutex;
  std::vector<std::filesystem::path> leftovers SHARDWISE_GUARDED_BY(mutex);

  std::unique_ptr<detail::StagingPool> pool;  // the save thread's
  detail::Spare spare;                        // as well
  bool unclean = false;                       // as well: something could not be removed
  detail::EarlierStep earlier;                // as well: what was saved last

  Mutex starting;
  jobs_detail::SaveQueue queue SHARDWISE_GUARDED_BY(starting);  // last: its threads use the rest
};

CheckpointManager::CheckpointManager(const std::filesystem::path& root, ManagerOptions options)
    : CheckpointManager(root, std::move(options), jobs_detail::RootTerms()) {}

CheckpointManager::CheckpointManager(const std::filesystem::path& root, ManagerOptions options,
                                     const jobs_detail::RootTerms& terms) {
  jobs_detail::check_retention(options.keep, opening(root));
  if (options.devices < 0 || options.devices > detail::kMostDevices) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: devices is {}, needed 0 (those of the meshes) to {}",
                            opening(root), options.devices, detail::kMostDevices));
  }
  if (options.write.parity_blocks != 0) {
    mend_detail::check_parity_blocks(opening(root), options.write.parity_blocks);
  }
  jobs_detail::check_local_roots(opening(root), terms, options.keep.last, options.group.size());
  impl_ = std::make_unique<Impl>(root, std::move(options), terms);
  detail::make_root(*impl_->files, impl_->root);
  if (!impl_->options.collect_garbage || !impl_->owns_root()) return;
  try {
    collect_garbage();
  } catch (const Error&) {
    // What cannot be removed, on a read-only root say, is in nobody's way.
  }
}

CheckpointManager::~CheckpointManager() = default;

SaveStats CheckpointManager::save(std::int64_t step, std::vector<TensorSource> tensors,
                                  SaveOptions options) {
  const Stopwatch watch;
  SaveStats stats =
      impl_->start(step, std::move(tensors), std::move(options), HostMemory::in_place).wait();
  stats.blocked_seconds = watch.seconds();
  return stats;
}

PendingSave CheckpointManager::save_async(std::int64_t step, std::vector<TensorSource> tensors,
                                          SaveOptions options) {
  return impl_->start(step, std::move(tensors), std::move(options), HostMemory::copied);
}

void CheckpointManager::wait() {
  const MutexLock lock(impl_->starting);
  impl_->queue.finish();
}

void CheckpointManager::close() {
  wait();
  impl_->run_steps.release();
}

std::vector<Step> CheckpointManager::steps() const {
  const detail::RunNames names = detail::run_names(*impl_->files, impl_->root);
  std::vector<Step> steps = impl_->newest_of(names.all());
  for (Step& step : steps) {
    step.is_set_aside =
        std::ranges::find(names.own, step.step, &detail::StepName::step) == names.own.end();
  }
  return steps;
}

std::optional<LatestStep> CheckpointManager::latest(std::int64_t below) const {
  const ProcessGroup& group = impl_->options.group;
  impl_->refuse_parts("find the latest checkpoint");
  auto found =
      group.size() == 1 ? impl_->finder.find(below) : impl_->finder.agree(group.duplicate(), below);
  if (found) impl_->note(*found);
  return found;
}

Step CheckpointManager::step(std::int64_t step) const {
  const std::vector<Step> there = steps();
  const auto found = std::ranges::find(there, step, &Step::step);
  if (found != there.end()) return *found;
  throw Error(ErrorCode::no_such_name,
              fmt::format("find step {} in {}: {} {}", step, impl_->root.string(),
                          there.empty() ? "there are" : "its steps are", steps_text(there)));
}

bool CheckpointManager::should_save(std::int64_t step) {
  return impl_->schedule.should_save(step, impl_->calls);
}

void CheckpointManager::request_save() { impl_->schedule.request_save(); }

bool CheckpointManager::reached_preemption() const { return impl_->schedule.reached_preemption(); }

std::optional<std::chrono::nanoseconds> CheckpointManager::time_left() const {
  return impl_->schedule.time_left();
}

std::optional<LatestStep> CheckpointManager::restore_latest(
    const std::function<void(const CheckpointReader&)>& restore) const {
  impl_->refuse_parts("restore the latest checkpoint");
  const ProcessGroup group = impl_->options.group.duplicate();
  try {
    auto found =
        jobs_detail::restore_newest(impl_->finder, impl_->root, group, [&](const Step& step) {
          restore(CheckpointReader(step.directory, {.file_system = impl_->files}));
        });
    if (found) {
      impl_->note(*found);
      impl_->run_steps.note_restored(found->step.step);
    }
    return found;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::corrupt) {  // all of them are damaged
      for (const Step& step : steps()) impl_->damaged.note(step.step);
    }
    throw;
  }
}

void CheckpointManager::note_damaged(std::int64_t step) { impl_->damaged.note(step); }

void CheckpointManager::note_restored(std::int64_t step) { impl_->run_steps.note_restored(step); }

ProgressFunction CheckpointManager::begin_save(std::int64_t step, std::size_t bytes,
                                               ProgressFunction progress) {
  impl_->schedule.begin(step, bytes);
  return impl_->schedule.watch(step, std::move(progress));
}

void CheckpointManager::end_save(std::size_t bytes, double seconds) {
  impl_->schedule.end(bytes, seconds);
  impl_->save_errors.note_saved();
}

bool CheckpointManager::note_failed(std::int64_t step, const Error& error) {
  return impl_->save_errors.note_failed(step, error.code(), error.what());
}

ManagerStats CheckpointManager::stats() const { return impl_->save_errors.stats(); }

std::optional<Step> CheckpointManager::best() const {
  if (!impl_->options.keep.best) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("find the best step in {}: needed is KeepOptions::best, which says "
                            "by which metric",
                            impl_->root.string()));
  }
  const std::vector<detail::StepName> own = detail::run_names(*impl_->files, impl_->root).own;
  return jobs_detail::best_of(*impl_->files, impl_->newest_of(own), *impl_->options.keep.best);
}

void CheckpointManager::pin(std::int64_t step, const std::string& name) {
  static_cast<void>(this->step(step));
  detail::name_step(*impl_->files, impl_->root, {name, step});
}

void CheckpointManager::unpin(const std::string& name) {
  if (detail::remove_name(*impl_->files, impl_->root, name)) return;
  std::string names;
  for (const NamedStep& one : pinned()) names += (names.empty() ? "" : ", ") + one.name;
  throw Error(ErrorCode::no_such_name,
              fmt::format("unpin {:?} in {}: there are {}", name, impl_->root.string(),
                          names.empty() ? "none" : names));
}

std::vector<NamedStep> CheckpointManager::pinned() const {
  return detail::named_steps(*impl_->files, impl_->root);
}

void CheckpointManager::remove(std::int64_t step) {
  static_cast<void>(this->step(step));
  for (const NamedStep& one : pinned()) {
    if (one.step != step) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("remove step {} of {}: it is pinned as {:?}: unpin that first", step,
                            impl_->root.string(), one.name));
  }
  // The newest generation last, so that no older one ever stands in for it.
  for (const detail::StepName& name : detail::committed_names(*impl_->files, impl_->root)) {
    if (name.step == step) detail::remove_checkpoint(*impl_->files, impl_->root, name);
  }
  impl_->remove_stale();
}

bool CheckpointManager::retire(std::int64_t step) {
  static_cast<void>(this->step(step));
  const std::vector<NamedStep> named = pinned();
  bool is_gone = std::ranges::find(named, step, &NamedStep::step) == named.end();
  if (!is_gone) return false;
  for (const detail::StepName& name : detail::committed_names(*impl_->files, impl_->root)) {
    if (name.step != step) continue;
    is_gone = detail::remove_unless_pinned(*impl_->files, impl_->root, name) && is_gone;
  }
  impl_->remove_stale();
  return is_gone;
}

std::vector<std::int64_t> CheckpointManager::retire_superseded(
    std::optional<std::int64_t> committed) {
  detail::Failures failures;
  if (committed) {
    failures.attempt([&] {
      const std::string name = this->step(*committed).directory.filename().string();
      impl_->run_steps.note_committed(*detail::parse_step_name(name));
      GarbageReport replaced;
      impl_->remove_replaced_by_valid(replaced, failures);
    });
  }
  std::vector<std::int64_t> gone;
  for (const std::int64_t step : impl_->superseded(failures)) {
    if (step == committed) continue;
    failures.attempt([&] {
      if (retire(step)) gone.push_back(step);
    });
  }
  failures.rethrow_first();
  return gone;
}

void CheckpointManager::write_stats(const SaveStats& stats) {
  const std::filesystem::path name = stats.directory.filename();
  if (stats.directory.lexically_normal() != (impl_->root / name).lexically_normal() ||
      !detail::parse_step_name(name.string())) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("keep the statistics of a save: found the directory {}, needed one of "
                            "a step in {}",
                            stats.directory.string(), impl_->root.string()));
  }
  detail::Failures failures;
  impl_->write_stats(stats, failures);
  failures.rethrow_first();
}

GarbageReport CheckpointManager::collect_garbage(const GarbageOptions& options) {
  GarbageReport report;
  detail::Failures failures;
  impl_->remove_leftovers(failures);
  failures.attempt(
      [&] { report = detail::collect_root_garbage(*impl_->files, impl_->root, options); });
  failures.attempt([&] { impl_->remove_replaced_by_valid(report, failures); });
  failures.attempt([&] { impl_->remove_stale(); });
  failures.rethrow_first();
  return report;
}

}  // namespace shardwise
