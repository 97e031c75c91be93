#include "shardwise/jobs/manager.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "shardwise/checkpoint/detail/root/failures.h"
#include "shardwise/checkpoint/detail/root/marks/named_steps.h"
#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/checkpoint/detail/root/marks/set_aside.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/detail/internals.h"
#include "shardwise/jobs/detail/manager_impl.h"
#include "shardwise/jobs/detail/save/root_keeper.h"
#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/mend/detail/parity_writer.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise {
namespace {

// For a root in a bucket.
void refuse_in_bucket(const std::string& what, const ManagerOptions& options,
                      bool has_local_roots) {
  std::string found;
  if (has_local_roots) found = "roots of single processes";
  if (options.file_system) found = "a file system of the caller's, as of a fast tier";
  if (options.write.parity_blocks != 0) {
    found = fmt::format("{} parity blocks", options.write.parity_blocks);
  }
  if (found.empty()) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("{}: found {}, needed is a folder for that", what, found));
}

}  // namespace

CheckpointManager::CheckpointManager(const std::filesystem::path& root, ManagerOptions options)
    : CheckpointManager(root, std::move(options), jobs_detail::RootTerms()) {}

CheckpointManager::CheckpointManager(const std::filesystem::path& root, ManagerOptions options,
                                     const jobs_detail::RootTerms& terms) {
  jobs_detail::check_retention(options.keep, Impl::opening(root));
  if (options.devices < 0 || options.devices > detail::kMostDevices) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: devices is {}, needed 0 (those of the meshes) to {}",
                            Impl::opening(root), options.devices, detail::kMostDevices));
  }
  if (options.write.parity_blocks != 0) {
    mend_detail::check_parity_blocks(Impl::opening(root), options.write.parity_blocks);
  }
  if (in_bucket(root))
    refuse_in_bucket(Impl::opening(root), options, terms.local_roots.has_value());
  jobs_detail::check_local_roots(Impl::opening(root), terms, options.keep.last,
                                 options.group.size());
  impl_ = std::make_unique<Impl>(root, std::move(options), terms);
  detail::make_root(*impl_->files, impl_->root);
  if (!impl_->options.collect_garbage || !impl_->owns_root()) return;
  try {
    collect_garbage();
  } catch (const Error&) {
    // Garbage that cannot be removed, on a read-only root say, is in nobody's way.
  }
}

CheckpointManager::~CheckpointManager() = default;

SaveStats CheckpointManager::save(std::int64_t step, std::vector<TensorSource> tensors,
                                  SaveOptions options) {
  const Stopwatch watch;
  SaveStats stats =
      impl_->start(step, std::move(tensors), std::move(options), Impl::HostMemory::in_place).wait();
  stats.blocked_seconds = watch.seconds();
  return stats;
}

PendingSave CheckpointManager::save_async(std::int64_t step, std::vector<TensorSource> tensors,
                                          SaveOptions options) {
  return impl_->start(step, std::move(tensors), std::move(options), Impl::HostMemory::copied);
}

void CheckpointManager::wait() {
  const MutexLock lock(impl_->starting);
  impl_->queue.finish();
}

void CheckpointManager::close() {
  wait();
  impl_->run_steps.release();
}

std::vector<Step> CheckpointManager::steps() const { return impl_->steps(); }

std::optional<LatestStep> CheckpointManager::latest(std::int64_t below) const {
  return impl_->latest(GroupRendezvous(impl_->options.group.duplicate(), ""), below);
}

Step CheckpointManager::step(std::int64_t step) const { return impl_->find(step); }

bool CheckpointManager::should_save(std::int64_t step) {
  return impl_->schedule.should_save(step, GroupRendezvous(impl_->calls, ""));
}

void CheckpointManager::request_save() { impl_->schedule.request_save(); }

Preemption CheckpointManager::preemption() const {
  return {impl_->schedule.reached_preemption(), impl_->schedule.time_left()};
}

std::optional<LatestStep> CheckpointManager::restore_latest(
    const std::function<void(const CheckpointReader&)>& restore) const {
  const GroupRendezvous ranks(impl_->options.group.duplicate(), "");
  return impl_->restore(ranks, {}, [&](const Step& step) {
    restore(CheckpointReader(step.directory, {.file_system = impl_->files}));
  });
}

ManagerStats CheckpointManager::stats() const { return impl_->save_errors.stats(); }

std::optional<Step> best_step(const CheckpointManager& manager) {
  const auto& impl = jobs_detail::ManagerInternals::impl(manager);
  if (!impl.options.keep.best) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("find the best step in {}: needed is KeepOptions::best, which says "
                            "by which metric",
                            impl.root.string()));
  }
  const std::vector<detail::StepName> own = detail::run_names(*impl.files, impl.root).own;
  return jobs_detail::best_of(*impl.files, impl.keeper.newest_of(own), *impl.options.keep.best);
}

void StepPins::add(std::int64_t step, const std::string& name) {
  static_cast<void>(manager_->step(step));
  detail::name_step(*manager_->impl_->files, manager_->impl_->root, {name, step});
}

void StepPins::remove(const std::string& name) {
  const auto& impl = *manager_->impl_;
  if (detail::remove_name(*impl.files, impl.root, name)) return;
  std::string names;
  for (const NamedStep& one : list()) names += (names.empty() ? "" : ", ") + one.name;
  throw Error(ErrorCode::no_such_name,
              fmt::format("unpin {:?} in {}: there are {}", name, impl.root.string(),
                          names.empty() ? "none" : names));
}

std::vector<NamedStep> StepPins::list() const {
  return detail::named_steps(*manager_->impl_->files, manager_->impl_->root);
}

bool CheckpointManager::remove(std::int64_t step, WhenRead when_read) {
  static_cast<void>(this->step(step));
  for (const NamedStep& one : pins().list()) {
    if (one.step != step) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("remove step {} of {}: it is pinned as {:?}: unpin that first", step,
                            impl_->root.string(), one.name));
  }
  bool is_gone = true;
  // The newest generation last, so that no older one ever stands in for it.
  for (const detail::StepName& name : detail::committed_names(*impl_->files, impl_->root)) {
    if (name.step != step) continue;
    is_gone = impl_->keeper.remove(name, when_read) && is_gone;
  }
  impl_->keeper.remove_stale();
  return is_gone;
}

GarbageReport CheckpointManager::collect_garbage(const GarbageOptions& options) {
  detail::Failures failures;
  GarbageReport report = impl_->keeper.collect_garbage(options, failures);
  failures.rethrow_first();
  return report;
}

}  // namespace shardwise
