#include "shardwise/checkpoint/manager.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "shardwise/checkpoint/detail/read/directory_state.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/failures.h"
#include "shardwise/checkpoint/detail/root/pin.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/together/group_save.h"
#include "shardwise/checkpoint/detail/together/messages.h"
#include "shardwise/checkpoint/detail/together/terms.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/checkpoint/detail/write/host_snapshot.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise {
namespace {

// How often latest() looks again if steps come and go while it looks.
constexpr int kMostLooks = 100;

// What becomes of host sources: read where they are, or copied before the caller goes on.
enum class HostMemory { in_place, copied };

void check_arguments(std::int64_t step, std::span<const TensorSource> tensors,
                     const SaveOptions& options, int threads, int processes) {
  if (step < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save: step is {}, needed 0 or more", step));
  }
  if (options.writers < 1 || options.writers > detail::kMostWriters / processes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save: writers is {}, needed 1 to {}", options.writers,
                            detail::kMostWriters / processes));
  }
  if (options.processes_per_file < 1 || processes % options.processes_per_file != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save: processes_per_file is {}, needed is a divisor of the number of "
                            "processes, {}",
                            options.processes_per_file, processes));
  }
  detail::check_sources(tensors);
  for (const TensorSource& tensor : tensors) {
    if (!tensor.boxes) continue;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("save: tensor {:?} has boxes, which only write_shards takes", tensor.name));
  }
  detail::check_json({.user_json = options.user_json, .objects_json = options.objects_json});
  static_cast<void>(detail::staging_sizes(options.memory_budget_bytes, threads, 0));
}

void check_local_roots(const std::filesystem::path& root, const ManagerOptions& options,
                       const detail::RootTerms& terms) {
  if (!terms.local_roots) return;
  const LocalRoots& local = *terms.local_roots;
  const int processes = options.group.size();
  const char* problem = nullptr;
  if (options.keep_last == 1) problem = "keep_last is 1, needed is 0 (all), or 2 or more";
  if (!terms.resume_key.empty()) problem = "there is a resume_key, needed is none";
  if (local.copies < 0 || local.processes_per_host < 1) {
    problem = "needed are 0 copies or more, and 1 process per host or more";
  } else if (processes % local.processes_per_host != 0 ||
             local.copies >= processes / local.processes_per_host) {
    problem = "needed are whole hosts, and more of them than copies";
  }
  if (problem == nullptr) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("open checkpoint root {}: local_roots with {} copies, {} processes per "
                  "host, {} processes: {}",
                  root.string(), local.copies, local.processes_per_host, processes, problem));
}

std::string steps_text(const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) text += fmt::format("{}{}", text.empty() ? "" : ", ", step.step);
  return text.empty() ? "none" : text;
}

Error none_valid(const std::filesystem::path& root, const std::vector<RejectedStep>& rejected) {
  std::vector<std::string> reasons;
  reasons.reserve(rejected.size());
  for (const RejectedStep& step : rejected) {
    reasons.push_back(fmt::format("{}: {}", step.directory.filename().string(), step.reason));
  }
  return Error(ErrorCode::corrupt, fmt::format("find the latest checkpoint in {}: none of {} is "
                                               "valid; {}",
                                               root.string(), rejected.size(),
                                               detail::join_few(reasons, reasons.size())));
}

// If the program goes to another directory, its root stays.
std::filesystem::path absolute_root(const std::filesystem::path& root) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(root, error);
  if (error) {
    throw Error(ErrorCode::io,
                fmt::format("open checkpoint root {:?}: {}", root.string(), error.message()),
                error.value());
  }
  return absolute;
}

}  // namespace

struct PendingSave::State {
  Mutex mutex;
  CondVar changed;
  bool done SHARDWISE_GUARDED_BY(mutex) = false;
  bool error_seen SHARDWISE_GUARDED_BY(mutex) = false;
  std::exception_ptr error SHARDWISE_GUARDED_BY(mutex);
  SaveStats stats SHARDWISE_GUARDED_BY(mutex);

  void finish(SaveStats result, std::exception_ptr failure) {
    {
      const MutexLock lock(mutex);
      result.blocked_seconds = stats.blocked_seconds;
      stats = std::move(result);
      error = std::move(failure);
      done = true;
    }
    changed.notify_all();
  }

  void wait_until_done() SHARDWISE_REQUIRES(mutex) {
    while (!done) changed.wait(mutex);
  }
};

bool PendingSave::done() const {
  if (!state_) return true;
  const MutexLock lock(state_->mutex);
  return state_->done;
}

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

struct CheckpointManager::Impl {
  Impl(const std::filesystem::path& directory, ManagerOptions manager_options,
       const detail::RootTerms& terms)
      : root(absolute_root(directory)),
        options(std::move(manager_options)),
        local_roots(terms.local_roots),
        files(options.file_system ? options.file_system : posix_file_system()),
        executor(options.threads),
        resume_key(detail::resume_text(terms.resume_key)),
        spare(*files) {}

  // Starts a save that the caller did not ask for.
  PendingSave start(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions save_options,
                    HostMemory host_memory) {
    const Stopwatch watch;
    const MutexLock lock(starting);
    const ProcessGroup group = options.group.duplicate();
    try {
      return start(step, std::move(tensors), std::move(save_options), host_memory, group, watch);
    } catch (...) {
      detail::abort_group(group, fmt::format("save step {}", step));
      throw;
    }
  }

  PendingSave start(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions save_options,
                    HostMemory host_memory, const ProcessGroup& group, const Stopwatch& watch)
      SHARDWISE_REQUIRES(starting) {
    check_arguments(step, tensors, save_options, executor.threads(), group.size());
    finish_current();
    if (save_options.existing == Existing::fail && owns_root()) refuse_existing(step);
    // Under the lock: no body of this executor wants it, and no save reads the snapshot now.
    if (host_memory == HostMemory::copied) snapshot.take(tensors, executor);
    PendingSave pending;
    pending.state_ = std::make_shared<PendingSave::State>();
    try {
      thread =
          std::jthread([this, state = pending.state_, step, group, tensors = std::move(tensors),
                        save_options = std::move(save_options)]() mutable {
            run(step, group, std::move(tensors), save_options, *state);
          });
    } catch (const std::system_error& e) {
      throw Error(ErrorCode::io, fmt::format("save step {}: start the thread that saves: {}", step,
                                             e.code().message()));
    }
    current = pending.state_;
    const MutexLock state_lock(pending.state_->mutex);
    pending.state_->stats.blocked_seconds = watch.seconds();
    return pending;
  }

  /// Whether this process is the one that makes and removes what is in the root.
  bool owns_root() const { return local_roots || options.group.rank() == 0; }

  void refuse_existing(std::int64_t step) const {
    for (const detail::StepName& name : detail::committed_names(*files, root)) {
      if (name.step != step) continue;
      throw Error(ErrorCode::already_exists, fmt::format("save step {}: {} is already there", step,
                                                         (root / to_string(name)).string()));
    }
  }

  // Waits for the save under way; throws its error if nobody has seen it.
  void finish_current() SHARDWISE_REQUIRES(starting) {
    if (!current) return;
    const std::shared_ptr<PendingSave::State> last = std::exchange(current, nullptr);
    thread.join();
    const MutexLock lock(last->mutex);
    if (last->error && !std::exchange(last->error_seen, true)) {
      std::rethrow_exception(last->error);
    }
  }

  void run(std::int64_t step, const ProcessGroup& group, std::vector<TensorSource> tensors,
           const SaveOptions& save_options, PendingSave::State& state) noexcept {
    const Stopwatch watch;
    SaveStats stats;
    std::exception_ptr error;
    std::vector<std::filesystem::path> left;
    try {
      const detail::SaveContext context{*files,          root,       executor,   pool, left, spare,
                                        options.devices, resume_key, local_roots};
      stats = detail::run_save(context, group, step, std::move(tensors), save_options);
      stats.total_seconds = watch.seconds();
    } catch (...) {
      error = std::current_exception();
    }
    keep_leftovers(std::move(left));
    if (!error && owns_root()) clean_up(stats);
    state.finish(std::move(stats), error);
  }

  // Removes what a commit makes superfluous, and what could not be removed before. An error here is
  // not the save's, which is committed: it is told, and the next save tries again.
  void clean_up(SaveStats& stats) noexcept {
    detail::Failures failures;
    remove_leftovers(failures);
    if (std::exchange(unclean, false)) {
      failures.attempt(
          [&] { static_cast<void>(detail::collect_root_garbage(*files, root, {}, resume_key)); });
    }
    failures.attempt([&] { remove_superseded(stats.directory.filename().string(), failures); });
    unclean = !failures.none();
    try {
      stats.cleanup_error = failures.text();
    } catch (...) {
      stats.cleanup_error = "out of memory";  // so short that it needs none
    }
  }

  void remove_superseded(const std::string& committed, detail::Failures& failures) {
    const detail::StepName name = *detail::parse_step_name(committed);
    const std::vector<detail::StepName> names = detail::committed_names(*files, root);
    const std::int64_t oldest = oldest_kept(names, failures);
    std::vector<std::int64_t> named;
    if (options.retired) {
      failures.attempt([&] { named = options.retired(newest_of(names)); });
      std::ranges::sort(named);
    }
    for (const detail::StepName& other : names) {
      const bool replaced = other.step == name.step && other.generation < name.generation;
      const bool retired = other.step != name.step &&
                           (other.step < oldest || std::ranges::binary_search(named, other.step));
      if (!replaced && !retired) continue;
      const bool removed = failures.attempt([&] {
        detail::remove_unless_pinned(*files, root, other, options.reuse_files ? &spare : nullptr);
      });
      // Synced before the next one is removed: steps disappear oldest first, also in a crash.
      if (!removed && !failures.attempt([&] { files->sync_directory(root); })) return;
    }
  }

  // The oldest of the steps that retention keeps; 0, as all are, if there are no more than
  // those. One of which it is not known whether it is valid does not count.
  std::int64_t oldest_kept(const std::vector<detail::StepName>& names,
                           detail::Failures& failures) const {
    if (options.keep_last == 0) return 0;
    std::int64_t valid_steps = 0, oldest = 0;
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      if (valid_steps > 0 && name->step == oldest) continue;
      bool valid = false;
      failures.attempt([&] { valid = why_invalid(*name).empty(); });
      if (!valid) continue;
      oldest = name->step;
      if (++valid_steps == options.keep_last) return oldest;
    }
    return 0;
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
        if (names[i].step != names[i + 1].step || !why_invalid(names[i + 1]).empty()) return;
        const bool gone = detail::remove_unless_pinned(*files, root, names[i]);
        (gone ? report.removed : report.kept).push_back(to_string(names[i]));
      });
    }
  }

  // Empty if a reader takes it, as this step. That it cannot be read now does not say that it is
  // not valid: throws io.
  std::string why_invalid(const detail::StepName& name) const {
    try {
      const std::filesystem::path directory = root / to_string(name);
      if (local_roots) {  // which has some of its files only
        return why_not_step(name,
                            detail::read_manifest(detail::open_directory(*files, directory)).step);
      }
      const detail::StoredCheckpoint checkpoint = detail::open_checkpoint(*files, directory);
      for (std::size_t f = 0; f < checkpoint.is_loaded.size(); ++f) checkpoint.files->at(f);
      return why_not_step(name, checkpoint.manifest.step);
    } catch (const Error& e) {
      if (e.code() == ErrorCode::io) throw;
      return e.what();
    }
  }

  std::string why_not_step(const detail::StepName& name, std::int64_t step) const {
    if (step == name.step) return {};
    return fmt::format("{} is of step {}", (root / to_string(name)).string(), step);
  }

  // What latest() finds at one look.
  struct Look {
    std::optional<Step> newest;  // the last valid one; absent if there is none
    std::vector<RejectedStep> rejected;
    bool changed = false;  // a step has come or gone meanwhile: it says nothing
  };

  // Throws io.
  Look look_at(const std::vector<detail::StepName>& names) const {
    Look look;
    for (auto name = names.rbegin(); name != names.rend() && !look.newest; ++name) {
      const detail::DirectoryState before(root / to_string(*name));
      std::string reason;
      try {
        reason = why_invalid(*name);
      } catch (const Error& e) {
        throw Error(e, fmt::format("find the latest checkpoint in {}: {} cannot be read: {}",
                                   root.string(), to_string(*name), e.what()));
      }
      if (reason.empty()) {
        look.newest = step_of(*name);
        continue;
      }
      const detail::DirectoryState now(root / to_string(*name));
      look.changed = look.changed || !before.exists() || now != before;
      look.rejected.push_back({root / to_string(*name), reason});
    }
    return look;
  }

  std::optional<LatestStep> find_latest() const {
    std::vector<detail::StepName> names = detail::committed_names(*files, root);
    for (int looks = 1;; ++looks) {
      Look look = look_at(names);
      // Another process may have replaced a step since it was listed: then neither an error nor
      // what was found says which is the newest.
      std::vector<detail::StepName> now = detail::committed_names(*files, root);
      if ((look.changed || now != names) && looks < kMostLooks) {
        names = std::move(now);
        continue;
      }
      if (look.newest) return LatestStep{*look.newest, std::move(look.rejected)};
      if (look.rejected.empty()) return std::nullopt;
      throw none_valid(root, look.rejected);
    }
  }

  // Rank 0 looks; the others look whether they see the same.
  std::optional<LatestStep> agree_on_latest(const ProcessGroup& group) const {
    try {
      if (group.rank() == 0) {
        std::optional<LatestStep> latest = find_latest();
        group.broadcast(detail::encode(latest, latest ? id_of(latest->step.directory) : ""));
        group.barrier();
        return latest;
      }
      const auto [latest, id] = detail::decode_latest(group.broadcast({}), root);
      if (latest && id_of(latest->step.directory) != id) {
        throw Error(ErrorCode::io, fmt::format("find the latest checkpoint: {} is another one for "
                                               "rank {} than for rank 0, needed is one root for "
                                               "all processes, on a file system that they share",
                                               latest->step.directory.string(), group.rank()));
      }
      group.barrier();
      return latest;
    } catch (...) {
      detail::abort_group(group, "");
      throw;
    }
  }

  // Which attempt it was; empty if it is not there.
  std::string id_of(const std::filesystem::path& directory) const {
    try {
      return detail::read_manifest(detail::open_directory(*files, directory)).id;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::not_found) throw;
      return {};
    }
  }

  // Of each step its highest generation, ascending. Names come so.
  std::vector<Step> newest_of(std::span<const detail::StepName> names) const {
    std::vector<Step> steps;
    for (const detail::StepName& name : names) {
      if (!steps.empty() && steps.back().step == name.step) steps.pop_back();
      steps.push_back(step_of(name));
    }
    return steps;
  }

  Step step_of(const detail::StepName& name) const {
    return {name.step, name.generation, root / to_string(name)};
  }

  const std::filesystem::path root;
  const ManagerOptions options;
  const std::optional<LocalRoots> local_roots;
  const std::shared_ptr<FileSystem> files;
  const Executor executor;
  const std::string resume_key;  // resume_text()

  Mutex mutex;
  std::vector<std::filesystem::path> leftovers SHARDWISE_GUARDED_BY(mutex);

  std::unique_ptr<detail::StagingPool> pool;  // the save thread's
  detail::Spare spare;                        // as well
  bool unclean = false;                       // as well: something could not be removed

  Mutex starting;
  detail::HostSnapshot snapshot SHARDWISE_GUARDED_BY(starting);  // read by the save thread, too
  std::shared_ptr<PendingSave::State> current SHARDWISE_GUARDED_BY(starting);
  std::jthread thread SHARDWISE_GUARDED_BY(starting);
};

CheckpointManager::CheckpointManager(const std::filesystem::path& root, ManagerOptions options)
    : CheckpointManager(root, std::move(options), detail::RootTerms()) {}

CheckpointManager::CheckpointManager(const std::filesystem::path& root, ManagerOptions options,
                                     const detail::RootTerms& terms) {
  if (options.keep_last < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("open checkpoint root {}: keep_last is {}, needed 0 (all) or more",
                            root.string(), options.keep_last));
  }
  if (options.devices < 0 || options.devices > detail::kMostDevices) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("open checkpoint root {}: devices is {}, needed 0 (those of the meshes) "
                    "to {}",
                    root.string(), options.devices, detail::kMostDevices));
  }
  check_local_roots(root, options, terms);
  const bool collect = options.collect_garbage;
  impl_ = std::make_unique<Impl>(root, std::move(options), terms);
  detail::make_root(*impl_->files, impl_->root);
  if (!collect || !impl_->owns_root()) return;
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

void CheckpointManager::close() {
  const MutexLock lock(impl_->starting);
  impl_->finish_current();
}

std::vector<Step> CheckpointManager::steps() const {
  return impl_->newest_of(detail::committed_names(*impl_->files, impl_->root));
}

std::optional<LatestStep> CheckpointManager::latest() const {
  const ProcessGroup& group = impl_->options.group;
  if (impl_->local_roots) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("find the latest checkpoint in {}: its files are in the roots of several "
                    "processes: TieredManager finds it",
                    impl_->root.string()));
  }
  return group.size() == 1 ? impl_->find_latest() : impl_->agree_on_latest(group.duplicate());
}

Step CheckpointManager::step(std::int64_t step) const {
  const std::vector<Step> there = steps();
  for (const Step& candidate : there) {
    if (candidate.step == step) return candidate;
  }
  throw Error(ErrorCode::no_such_name, fmt::format("find step {} in {}: there are {}", step,
                                                   impl_->root.string(), steps_text(there)));
}

void CheckpointManager::remove(std::int64_t step) {
  static_cast<void>(this->step(step));
  // The newest generation last, so that no older one ever stands in for it.
  for (const detail::StepName& name : detail::committed_names(*impl_->files, impl_->root)) {
    if (name.step == step) detail::remove_checkpoint(*impl_->files, impl_->root, name);
  }
}

bool CheckpointManager::retire(std::int64_t step) {
  static_cast<void>(this->step(step));
  bool is_gone = true;
  for (const detail::StepName& name : detail::committed_names(*impl_->files, impl_->root)) {
    if (name.step != step) continue;
    is_gone = detail::remove_unless_pinned(*impl_->files, impl_->root, name) && is_gone;
  }
  return is_gone;
}

GarbageReport CheckpointManager::collect_garbage(const GarbageOptions& options) {
  GarbageReport report;
  detail::Failures failures;
  impl_->remove_leftovers(failures);
  failures.attempt([&] {
    report = detail::collect_root_garbage(*impl_->files, impl_->root, options, impl_->resume_key);
  });
  failures.attempt([&] { impl_->remove_replaced_by_valid(report, failures); });
  failures.rethrow_first();
  return report;
}

}  // namespace shardwise
