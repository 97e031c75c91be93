#include "shardwise/tiers/tiers.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/internals.h"
#include "shardwise/checkpoint/detail/root/marks/set_aside.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/jobs/detail/internals.h"
#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/jobs/detail/save_queue.h"
#include "shardwise/runtime/device.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/rate_limit.h"
#include "shardwise/tiers/detail/inventory.h"
#include "shardwise/tiers/detail/newest_fast.h"
#include "shardwise/tiers/detail/saved_tensors.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

// The fast tier keeps two steps or more. When a job has saved two, all that a restart needs is its
// own, and the leftovers of other jobs' ranks may go.
constexpr std::int64_t kSavesUntilOwn = 2;

ManagerOptions fast_options(const TierOptions& options) {
  std::function<void(const std::string&)> warn = options.warn;
  if (options.group.rank() != 0) warn = [](const std::string&) {};  // once for the job
  return {.keep = {.last = options.keep.fast},
          .write = {.on_save_error = options.write.on_save_error,
                    .most_failed_saves = options.write.most_failed_saves,
                    .stats = false,  // a file for each process; save() gives them
                    .threads = options.write.threads},
          .group = options.group,
          .devices = options.devices,
          .file_system = options.file_system,
          .warn = std::move(warn)};
}

ManagerOptions durable_options(const TierOptions& options, std::shared_ptr<FileSystem> files) {
  return {.keep = {.last = options.keep.durable},
          .write = {.on_save_error = options.write.on_save_error,
                    .most_failed_saves = options.write.most_failed_saves,
                    .threads = options.write.threads},
          .group = options.group.duplicate(),  // used by the thread that drains
          .devices = options.devices,
          .file_system = std::move(files),
          .warn = options.warn};
}

fs::path made(FileSystem& file_system, const fs::path& root) {
  detail::make_root(file_system, root);
  return detail::absolute_root(root);
}

/// The file system for the durable root.
std::shared_ptr<FileSystem> drained_to(std::shared_ptr<FileSystem> file_system,
                                       const TierOptions& options) {
  if (options.drain.bytes_per_second == 0) return file_system;
  return rate_limited(
      std::move(file_system),
      std::make_shared<RateLimiter>(options.drain.bytes_per_second,
                                    options.drain.clock ? options.drain.clock : steady_clock()));
}

}  // namespace

std::vector<TensorBox> addressable_boxes(const Devices& devices,
                                         std::span<const TensorRequest> requests) {
  std::vector<TensorBox> boxes;
  for (const TensorRequest& request : requests) {
    const Mesh& mesh = request.spec.sharding.mesh();
    const std::size_t first = boxes.size();
    for (const DeviceId device : devices.addressable()) {
      const auto position = mesh.position_of(device);
      if (!position) continue;
      Box box = request.spec.sharding.box_at(*position, request.spec.shape);
      const bool is_new = std::none_of(boxes.begin() + static_cast<std::ptrdiff_t>(first),
                                       boxes.end(), [&](const auto& b) { return b.box == box; });
      if (is_new) boxes.push_back({request.name, std::move(box)});
    }
  }
  return boxes;
}

std::string TierStep::to_string() const {
  std::string text =
      fmt::format("step {} of the {} tier", step.step, tier == Tier::fast ? "fast" : "durable");
  if (files_taken > 0) {
    text += fmt::format(", {} file{} ({:.1f} MiB) from other processes", files_taken,
                        files_taken == 1 ? "" : "s", static_cast<double>(bytes_taken) / (1 << 20));
  }
  for (const std::string& reason : passed_over) text += "; not " + reason;
  for (const std::string& reason : damaged) text += "; damaged: " + reason;
  for (const std::string& source : mended) text += "; put right: " + source;
  return text;
}

CheckpointReader TierStep::open(const ReadOptions& options) const {
  return tier == Tier::fast ? detail::Internals::reader_as_needed(step.directory, options)
                            : CheckpointReader(step.directory, options);
}

/// Thread-compatible: `drain` shares the managers, which are thread-safe, and has `drain_error`
/// until it is joined.
struct TieredManager::Impl {
  Impl(const fs::path& fast_root, const fs::path& durable, TierOptions tier_options)
      : options(std::move(tier_options)),
        files(options.file_system ? options.file_system : posix_file_system()),
        fast(made(*files, fast_root)),
        own(fast / tiers_detail::process_directory(options.group.rank())),
        durable_root(detail::absolute_root(durable)),
        fast_manager(jobs_detail::ManagerInternals::manager(own, fast_options(options), terms())),
        durable_manager(durable_root, durable_options(options, drained_to(files, options))) {}

  jobs_detail::RootTerms terms() const {
    return {.local_roots = options.local, .others_of_host = [this] { return others_of_host(); }};
  }

  std::vector<fs::path> others_of_host() const {
    std::vector<fs::path> others = tiers_detail::process_directories(*files, fast);
    std::erase(others, own);
    return others;
  }

  /// In the background if there are no statistics to be filled.
  PendingSave save(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions save_options,
                   SaveStats* stats);

  /// Takes a step on to the durable root, in the background; `pending` is its save in the fast
  /// tier.
  void start_drain(std::int64_t step, std::span<const TensorSource> from,
                   const PendingSave& pending, SaveOptions onward);

  /// Waits for it. Throws its error, once.
  void end_drain();

  void remove_others_of_host();

  const TierOptions options;
  const std::shared_ptr<FileSystem> files;
  const fs::path fast, own, durable_root;  // `own`: this process's directory in the fast root
  CheckpointManager fast_manager, durable_manager;
  std::weak_ptr<tiers_detail::SavedTensors> draining;  // the step that is on its way
  std::int64_t saves = 0;
  std::exception_ptr drain_error;  // of the last one, until somebody is told
  std::jthread drain;              // uses the managers
};

PendingSave TieredManager::Impl::save(std::int64_t step, std::vector<TensorSource> tensors,
                                      SaveOptions save_options, SaveStats* stats) {
  if (const auto reader = draining.lock()) reader->wait();  // pinned before retention sees it
  if (saves == kSavesUntilOwn && options.keep.fast > 0) remove_others_of_host();
  const bool goes_on = saves++ % options.drain.every == 0;
  if (goes_on) end_drain();  // one at a time
  SaveOptions onward = save_options;
  onward.progress = nullptr;  // it was told of the fast tier's bytes
  save_options.codec = options.write.fast_codec;
  PendingSave pending;
  const std::vector<TensorSource> from = goes_on ? tensors : std::vector<TensorSource>();
  if (stats != nullptr) {
    *stats = fast_manager.save(step, std::move(tensors), std::move(save_options));
    if (!stats->error.empty()) return pending;  // on all processes
  } else {
    pending = fast_manager.save_async(step, std::move(tensors), std::move(save_options));
  }
  if (goes_on) start_drain(step, from, pending, std::move(onward));
  return pending;
}

// The durable save begins when the fast one has ended: none of its workers waits for that. If the
// fast one has failed, it begins, too, and fails at its first read, which all processes are told.
void TieredManager::Impl::start_drain(std::int64_t step, std::span<const TensorSource> from,
                                      const PendingSave& pending, SaveOptions onward) {
  auto reader = std::make_shared<tiers_detail::SavedTensors>(from, files);
  draining = reader;
  std::vector<TensorSource> saved;
  for (std::size_t t = 0; t < from.size(); ++t) {
    saved.push_back({from[t].name, reader, t, from[t].sharding, from[t].boxes});
  }
  drain = std::jthread([this, step, pending, reader = std::move(reader), saved = std::move(saved),
                        onward = std::move(onward)]() mutable {
    try {
      const std::optional<SaveStats> ended = jobs_detail::ManagerInternals::settle(pending);
      reader->open([&] {
        if (ended && ended->error.empty()) return fast_manager.step(step).directory;
        throw Error(ErrorCode::cancelled,
                    fmt::format("take step {} on to the durable root: it was not saved", step));
      });
      if (ended && !ended->error.empty()) return;  // on all processes
      reader.reset();                              // the sources keep it, until the save ends
      durable_manager.save(step, std::exchange(saved, {}), std::move(onward));
    } catch (...) {
      drain_error = std::current_exception();
    }
  });
}

void TieredManager::Impl::end_drain() {
  if (drain.joinable()) drain.join();
  if (const std::exception_ptr error = std::exchange(drain_error, nullptr)) {
    std::rethrow_exception(error);
  }
}

// Steps that are older than those of this job, of processes whose ranks or hosts are others now,
// and those that it has set aside: nobody else removes them, and they may be in memory. All
// processes have the same steps.
void TieredManager::Impl::remove_others_of_host() {
  const detail::RunNames kept = detail::run_names(*files, own);
  if (kept.own.empty()) return;
  for (const detail::StepName& step : kept.aside) detail::remove_unless_pinned(*files, own, step);
  for (const fs::path& process : others_of_host()) {
    const detail::RunNames steps = detail::run_names(*files, process);
    bool is_left = steps.own.empty() && steps.aside.empty();
    for (const detail::StepName& step : steps.own) {
      if (step.step >= kept.own.front().step) {
        is_left = true;
      } else {
        detail::remove_unless_pinned(*files, process, step);
      }
    }
    for (const detail::StepName& step : steps.aside) {
      detail::remove_unless_pinned(*files, process, step);
    }
    detail::remove_stale_marks(*files, process);
    if (is_left) continue;
    try {
      files->remove(process);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::already_exists) throw;  // something else is in it
    }
  }
}

TieredManager::TieredManager(const fs::path& fast, const fs::path& durable, TierOptions options) {
  if (options.drain.every < 1 || options.drain.bytes_per_second < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("open checkpoint tiers: drain_every is {}, needed 1 or more; "
                            "drain_bytes_per_second {}, needed 0 (no limit) or more",
                            options.drain.every, options.drain.bytes_per_second));
  }
  impl_ = std::make_unique<Impl>(fast, durable, std::move(options));
}

TieredManager::~TieredManager() {
  try {
    close();
  } catch (...) {
    jobs_detail::tell_unseen_error();
  }
}

SaveStats TieredManager::save(std::int64_t step, std::vector<TensorSource> tensors,
                              SaveOptions options) {
  SaveStats stats;
  impl_->save(step, std::move(tensors), std::move(options), &stats);
  return stats;
}

PendingSave TieredManager::save_async(std::int64_t step, std::vector<TensorSource> tensors,
                                      SaveOptions options) {
  return impl_->save(step, std::move(tensors), std::move(options), nullptr);
}

void TieredManager::close() {
  std::exception_ptr error;
  try {
    impl_->fast_manager.close();
  } catch (...) {
    error = std::current_exception();
  }
  try {
    impl_->end_drain();
  } catch (...) {
    if (!error) error = std::current_exception();  // a save that failed is why its drain did
  }
  impl_->durable_manager.close();
  if (error) std::rethrow_exception(error);
}

std::optional<TierStep> TieredManager::latest(std::span<const TensorBox> needed) {
  return latest_as_needed([needed](const CheckpointReader&) {
    return std::vector<TensorBox>(needed.begin(), needed.end());
  });
}

std::optional<TierStep> TieredManager::latest_as_needed(const NeededBoxes& needed) {
  if (impl_->drain.joinable()) impl_->drain.join();
  const ProcessGroup group = impl_->options.group.duplicate();
  std::optional<LatestStep> durable;
  std::exception_ptr durable_error;
  std::string durable_reason;
  try {
    durable = impl_->durable_manager.latest();
  } catch (const Error& e) {
    durable_error = std::current_exception();
    durable_reason = e.what();
  }
  tiers_detail::PassedOver passed_over;
  try {
    // None that is older than the durable root's.
    std::optional<TierStep> found = tiers_detail::newest_fast(
        group, *impl_->files, {impl_->own, {{impl_->fast}, impl_->durable_root}},
        {.least = durable ? durable->step.step : 0}, needed, passed_over);
    auto& [steps, damaged, numbers, refused] = passed_over;
    for (const std::int64_t step : numbers) {
      jobs_detail::ManagerInternals::note_damaged(impl_->fast_manager, step);
    }
    if (!refused) {
      if (!found && durable_error) std::rethrow_exception(durable_error);
      if (!found && !durable) {
        if (steps.empty() && damaged.empty()) return std::nullopt;
        steps.insert(steps.end(), damaged.begin(), damaged.end());
        throw Error(ErrorCode::corrupt,
                    fmt::format("find the latest step: none is whole; {}", fmt::join(steps, "; ")));
      }
      TierStep result =
          found ? *std::move(found) : TierStep{.tier = Tier::durable, .step = durable->step};
      if (durable_error) steps.push_back(std::move(durable_reason));
      result.passed_over = std::move(steps);
      result.damaged = std::move(damaged);
      jobs_detail::ManagerInternals::note_restored(impl_->fast_manager, result.step.step);
      jobs_detail::ManagerInternals::note_restored(impl_->durable_manager, result.step.step);
      group.barrier();
      return result;
    }
  } catch (const std::exception& e) {
    group.abort(e.what());
    throw;
  }
  std::rethrow_exception(passed_over.refused);  // nobody is to be told: all know it
}

ManagerStats TieredManager::stats() const { return impl_->fast_manager.stats(); }

const CheckpointManager& TieredManager::durable() const { return impl_->durable_manager; }

}  // namespace shardwise
