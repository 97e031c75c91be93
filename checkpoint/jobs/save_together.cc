#include "shardwise/jobs/save_together.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "shardwise/bucket/detail/bucket_root.h"
#include "shardwise/checkpoint/detail/record/save_halves.h"
#include "shardwise/checkpoint/detail/record/target.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/checkpoint/detail/write/staging.h"
#include "shardwise/checkpoint/detail/write/unchanged.h"
#include "shardwise/jobs/detail/caller.h"
#include "shardwise/jobs/detail/internals.h"
#include "shardwise/jobs/detail/manager_impl.h"
#include "shardwise/jobs/detail/save/bucket_target.h"
#include "shardwise/jobs/detail/save/save_place.h"
#include "shardwise/jobs/detail/save/save_together.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/runtime/process/call_group.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise {
namespace {

using Manager = jobs_detail::ManagerInternals::Impl;

/// A target, in a folder that all ranks share. Keeps references.
class SharedTarget : public jobs_detail::SharedFolder {
 public:
  SharedTarget(FileSystem& files, std::filesystem::path root, Existing existing,
               std::vector<std::filesystem::path>& leftovers)
      : SharedFolder(files, std::move(root)), existing_(existing), leftovers_(leftovers) {}

  std::optional<std::string> find_valid() const override {
    const std::filesystem::path there = target();
    if (!detail::is_saved_target(file_system_, there)) return std::nullopt;
    return there.filename().string();
  }

 protected:
  virtual std::filesystem::path target() const = 0;

  std::unique_ptr<detail::Attempt> make_attempt() override {
    return std::make_unique<detail::Attempt>(
        file_system_, detail::ready_target(file_system_, target(), existing_), leftovers_);
  }

 private:
  const Existing existing_;
  std::vector<std::filesystem::path>& leftovers_;
};

/// A target with any name.
class NamedTarget final : public SharedTarget {
 public:
  NamedTarget(FileSystem& files, std::filesystem::path target, Existing existing,
              std::vector<std::filesystem::path>& leftovers)
      : SharedTarget(files, target.parent_path(), existing, leftovers),
        target_(std::move(target)) {}

 protected:
  std::filesystem::path target() const override { return target_; }
  std::vector<std::string> names() const override { return {target_.filename().string()}; }

 private:
  const std::filesystem::path target_;
};

/// A step of a manager: a new one, or the one that is there, which a later generation follows if it
/// is damaged or set aside.
class StepTarget final : public SharedTarget {
 public:
  StepTarget(const Manager& manager, std::int64_t step, Existing existing,
             std::vector<std::filesystem::path>& leftovers)
      : SharedTarget(*manager.files, manager.root, existing, leftovers),
        manager_(manager),
        step_(step) {}

 protected:
  std::filesystem::path target() const override {
    const std::vector<Step> steps = manager_.steps();
    const auto there = std::ranges::find(steps, step_, &Step::step);
    if (there == steps.end()) return root_ / to_string(detail::StepName{step_});
    const bool is_replaced = there->is_damaged || there->is_set_aside;
    return root_ / to_string(detail::StepName{step_, there->generation + (is_replaced ? 1 : 0)});
  }

  std::vector<std::string> names() const override { return names_of(step_); }

 private:
  const Manager& manager_;
  const std::int64_t step_;
};

/// Keeps references to all.
jobs_detail::SaveRequest request_of(const Rendezvous& ranks, const Executor& executor,
                                    const JobSave& job, const EncodeOptions& encode,
                                    const PublishOptions& publish) {
  jobs_detail::SaveRequest request;
  request.terms =
      jobs_detail::terms_of(0, {.codec = encode.codec, .existing = job.existing},
                            job.starts.empty() ? 0 : job.starts.back(), std::nullopt, 0);
  request.publish = publish;
  request.encode = encode;
  request.writers = [&](std::span<const TensorSource> given) {
    detail::check_sources(given);
    static_cast<void>(detail::staging_sizes(encode.memory_budget_bytes, executor.threads(), 0));
    return detail::checked_writers(given, ranks.rank(), job.starts);
  };
  request.describe = job.describe;
  request.document = [&](std::vector<Bytes> described) {
    PublishOptions all = publish;
    if (job.document) all.objects_json = job.document(std::move(described));
    detail::check_json(all);
    return all.objects_json;
  };
  return request;
}

void set_seconds(SaveStats& stats, double seconds) {
  stats.total_seconds = stats.blocked_seconds = seconds;
  stats.publish_seconds =
      std::max(0.0, stats.total_seconds - stats.plan_seconds - stats.write_seconds);
}

// Writes and commits the step. Rethrows failures; if one is damage, it may be that of the step
// before, and no step is built on that then.
SaveStats write_step(const Rendezvous& ranks, Manager& manager, std::int64_t step,
                     std::vector<TensorSource> sources, const JobSave& job,
                     const EncodeOptions& encode, const PublishOptions& publish) {
  struct Leftovers {
    ~Leftovers() { keeper.keep_leftovers(std::move(paths)); }
    jobs_detail::RootKeeper& keeper;
    std::vector<std::filesystem::path> paths = {};
  } leftovers{manager.keeper};
  std::unique_ptr<detail::StagingPool> pool;
  detail::EarlierStep earlier;
  jobs_detail::SaveRequest request = request_of(ranks, manager.executor, job, encode, publish);
  request.terms.step = step;
  std::unique_ptr<jobs_detail::SavePlace> place;
  if (manager.bucket) {
    place = std::make_unique<jobs_detail::BucketStep>(*manager.files, *manager.bucket, manager.root,
                                                      step);
    request.is_damaged = manager.damaged.contains(step);
  } else {
    place = std::make_unique<StepTarget>(manager, step, job.existing, leftovers.paths);
  }
  request.terms.most_failed_saves = manager.save_errors.most();
  request.describe = [&, bytes = Manager::bytes_of(sources)] {
    manager.schedule.begin(step, bytes);
    return job.describe ? job.describe() : Bytes();
  };
  request.encode.progress = manager.schedule.watch(step, encode.progress);
  if (manager.writes_increments()) {
    request.find_earlier = [&](const std::string&) {
      return earlier = manager.damaged.find_earlier(*manager.files, manager.root, step);
    };
  }
  const detail::PartTools tools{*manager.files, manager.executor, pool};
  try {
    return jobs_detail::SaveTogether(ranks, *place, tools, std::move(request))
        .run(std::move(sources));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::corrupt) manager.damaged.note(earlier);
    throw;
  }
}

// A step by its path, without a manager.
SaveStats save_in_bucket(const Rendezvous& ranks, const std::filesystem::path& target,
                         std::vector<TensorSource> sources, const JobSave& job,
                         const EncodeOptions& encode, const PublishOptions& publish) {
  const Stopwatch watch;
  const jobs_detail::BucketTarget opened(target);
  jobs_detail::BucketStep place(*opened.files, *opened.bucket, opened.root, opened.step);
  const Executor executor(encode.threads);
  std::unique_ptr<detail::StagingPool> pool;
  const detail::PartTools tools{*opened.files, executor, pool};
  jobs_detail::SaveRequest request = request_of(ranks, executor, job, encode, publish);
  request.base = [&] {
    const bool has_earlier = job.unchanged_since && !job.unchanged_since().empty();
    if (has_earlier || !encode.unchanged_since.empty()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("save {}: found a step before, needed none: chunks cannot be linked "
                              "in a bucket",
                              target.string()));
    }
    return std::string();
  };
  SaveStats stats =
      jobs_detail::SaveTogether(ranks, place, tools, std::move(request)).run(std::move(sources));
  set_seconds(stats, watch.seconds());
  if (ranks.rank() == 0 && !stats.skipped) opened.remove_replaced(stats);
  return stats;
}

}  // namespace

SaveStats save_together(const Rendezvous& ranks, const std::filesystem::path& target,
                        std::vector<TensorSource> sources, JobSave job, const EncodeOptions& encode,
                        const PublishOptions& publish) {
  const Stopwatch watch;
  if (in_bucket(target))
    return save_in_bucket(ranks, target, std::move(sources), job, encode, publish);
  const auto files = encode.file_system ? encode.file_system : posix_file_system();
  std::vector<std::filesystem::path> leftovers;
  NamedTarget place(*files, detail::absolute_target(target), job.existing, leftovers);
  const Executor executor(encode.threads);
  std::unique_ptr<detail::StagingPool> pool;
  jobs_detail::SaveRequest request = request_of(ranks, executor, job, encode, publish);
  if (job.unchanged_since) request.base = [&] { return job.unchanged_since().string(); };
  request.find_earlier = [&](const std::string& base) {
    return detail::earlier_step_at(
        *files, base.empty() ? encode.unchanged_since : std::filesystem::path(base));
  };
  const detail::PartTools tools{*files, executor, pool};
  SaveStats stats =
      jobs_detail::SaveTogether(ranks, place, tools, std::move(request)).run(std::move(sources));
  set_seconds(stats, watch.seconds());
  return stats;
}

SaveStats save_together(const Rendezvous& ranks, const JobStep& step,
                        std::vector<TensorSource> sources, const JobSave& job,
                        const EncodeOptions& encode, const PublishOptions& publish) {
  return jobs_detail::save_together(ranks, step, {}, std::move(sources), job, encode, publish);
}

SaveStats jobs_detail::save_together(const Rendezvous& ranks, const JobStep& step,
                                     const CallersPart& caller, std::vector<TensorSource> sources,
                                     const JobSave& job, const EncodeOptions& encode,
                                     const PublishOptions& publish) {
  const Stopwatch watch;
  Manager& manager = jobs_detail::ManagerInternals::impl(step.manager);
  SaveStats stats;
  std::exception_ptr error;
  try {
    stats = write_step(ranks, manager, step.step, std::move(sources), job, encode, publish);
    set_seconds(stats, watch.seconds());
  } catch (const GroupError&) {  // nobody comes to agree on it
    throw;
  } catch (const Error&) {
    if (manager.save_errors.most() == 0) throw;
    error = std::current_exception();
  }
  error = manager.save_errors.judge(step.step, step.ends, error, stats);
  if (error) std::rethrow_exception(error);
  const auto blocked = [&] {
    return caller.waited_seconds + (caller.is_waiting ? watch.seconds() : 0);
  };
  stats.blocked_seconds = blocked();
  if (!stats.error.empty()) return stats;
  manager.damaged.forget(step.step);
  if (stats.skipped) return stats;
  manager.schedule.end(stats.logical_bytes, stats.total_seconds);
  stats.memory_bytes += caller.copied_bytes;
  manager.finish(ranks, detail::writers_of(ranks.rank(), 1), nullptr, blocked, stats);
  return stats;
}

SaveStats jobs_detail::save_for_caller(CheckpointManager& manager, std::int64_t step,
                                       std::vector<TensorSource> sources, SaveOptions options,
                                       const CallersPart& caller) {
  return ManagerInternals::impl(manager)
      .start(step, std::move(sources), std::move(options), Manager::HostMemory::in_place, &caller)
      .wait();
}

void jobs_detail::refuse_existing(CheckpointManager& manager, std::int64_t step) {
  static_cast<void>(ManagerInternals::impl(manager).refuse_existing(step));
}

void jobs_detail::begin_later(CheckpointManager& manager, std::int64_t step) {
  ManagerInternals::impl(manager).schedule.begin(step, 0);
}

bool jobs_detail::should_save_together(const Rendezvous& ranks, CheckpointManager& manager,
                                       std::int64_t step, bool is_told) {
  return ManagerInternals::impl(manager).schedule.should_save(step, ranks, is_told);
}

std::optional<LatestStep> latest_together(const Rendezvous& ranks, CheckpointManager& manager) {
  return jobs_detail::ManagerInternals::impl(manager).latest(ranks,
                                                             jobs_detail::LatestSteps::kNoLimit);
}

std::optional<LatestStep> restore_together(const Rendezvous& ranks, CheckpointManager& manager,
                                           const std::function<void(const Step&)>& restore,
                                           std::optional<std::int64_t> step) {
  return jobs_detail::ManagerInternals::impl(manager).restore(ranks, step, restore);
}

}  // namespace shardwise
