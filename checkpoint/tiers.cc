#include "shardwise/checkpoint/tiers.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <thread>
#include <utility>

#include "shardwise/checkpoint/detail/group/packer.h"
#include "shardwise/checkpoint/detail/read/read_plan.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/tiers/file_transfer.h"
#include "shardwise/checkpoint/detail/tiers/inventory.h"
#include "shardwise/checkpoint/detail/tiers/saved_tensors.h"
#include "shardwise/runtime/device.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/rate_limit.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

// The fast tier keeps two steps or more. When a job has saved two, all that a restart needs is its
// own, and what other jobs' ranks have left may go.
constexpr std::int64_t kSavesUntilOwn = 2;

ManagerOptions fast_options(const TierOptions& options) {
  return {.keep_last = options.keep_fast,
          .threads = options.threads,
          .group = options.group,
          .local_roots = options.local,
          .devices = options.devices,
          .file_system = options.file_system};
}

ManagerOptions durable_options(const TierOptions& options, std::shared_ptr<FileSystem> files) {
  return {.keep_last = options.keep_durable,
          .threads = options.threads,
          .group = options.group.duplicate(),  // used by the thread that drains
          .devices = options.devices,
          .file_system = std::move(files)};
}

fs::path made(FileSystem& file_system, const fs::path& root) {
  detail::make_root(file_system, root);
  std::error_code error;
  fs::path absolute = fs::absolute(root, error);
  if (!error) return absolute;
  throw Error(ErrorCode::io,
              fmt::format("open checkpoint root {:?}: {}", root.string(), error.message()));
}

/// The file system for the durable root.
std::shared_ptr<FileSystem> drained_to(std::shared_ptr<FileSystem> file_system,
                                       const TierOptions& options) {
  if (options.drain_bytes_per_second == 0) return file_system;
  return rate_limited(std::move(file_system), std::make_shared<RateLimiter>(
                                                  options.drain_bytes_per_second,
                                                  options.clock ? options.clock : steady_clock()));
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
  return text;
}

struct TieredManager::Impl {
  Impl(const fs::path& fast_root, const fs::path& durable_root, TierOptions tier_options)
      : options(std::move(tier_options)),
        files(options.file_system ? options.file_system : posix_file_system()),
        fast(made(*files, fast_root)),
        own(fast / detail::process_directory(options.group.rank())),
        fast_manager(own, fast_options(options)),
        durable_manager(durable_root, durable_options(options, drained_to(files, options))) {}

  /// In the background where there are no statistics to be filled.
  PendingSave save(std::int64_t step, std::vector<TensorSource> tensors, SaveOptions save_options,
                   SaveStats* stats);

  /// Takes a step on to the durable root, in the background; `pending` is its save in the fast
  /// tier.
  void start_drain(std::int64_t step, std::span<const TensorSource> from,
                   const PendingSave& pending, SaveOptions onward);

  /// Waits for it. Throws its error, once.
  void end_drain();

  // The newest step that all its files are somewhere for, and reasons for passing over newer ones.
  using Steps = std::map<detail::SavedStep, detail::StepHolders>;
  Steps::const_iterator choose(const Steps& steps, std::vector<std::string>& passed_over) const;

  TierStep assemble(const ProcessGroup& group, const detail::Inventory& inventory,
                    const detail::SavedStep& step, const detail::StepHolders& holders,
                    std::span<const TensorBox> needed) const;
  detail::Manifest manifest_of(const ProcessGroup& group, const detail::Inventory& inventory,
                               const detail::SavedStep& step, const detail::StepHolders& holders,
                               Bytes& text) const;
  static std::vector<detail::FileTransfer> plan_transfers(const ProcessGroup& group, Bytes wanted,
                                                          const detail::Manifest& manifest,
                                                          const detail::StepHolders& holders);
  std::vector<std::size_t> files_with(const detail::Manifest& manifest,
                                      std::span<const TensorBox> needed) const;
  void remove_older_than_own();

  const TierOptions options;
  const std::shared_ptr<FileSystem> files;
  const fs::path fast, own;  // the fast root, and this process's directory in it
  CheckpointManager fast_manager, durable_manager;
  std::weak_ptr<detail::SavedTensors> draining;  // what is on its way
  std::int64_t saves = 0;
  std::exception_ptr drain_error;  // of the last one, until somebody is told
  std::jthread drain;              // uses the managers
};

PendingSave TieredManager::Impl::save(std::int64_t step, std::vector<TensorSource> tensors,
                                      SaveOptions save_options, SaveStats* stats) {
  if (save_options.processes_per_file != 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save step {}: processes_per_file is {}, needed is 1 with tiers", step,
                            save_options.processes_per_file));
  }
  if (const auto reader = draining.lock()) reader->wait();  // pinned before retention sees it
  if (saves == kSavesUntilOwn && options.keep_fast > 0) remove_older_than_own();
  const bool goes_on = saves++ % options.drain_every == 0;
  if (goes_on) end_drain();  // one at a time
  SaveOptions onward = save_options;
  onward.progress = nullptr;  // it was told of the fast tier's bytes
  save_options.codec = options.fast_codec;
  PendingSave pending;
  const std::vector<TensorSource> from = goes_on ? tensors : std::vector<TensorSource>();
  if (stats != nullptr) {
    *stats = fast_manager.save(step, std::move(tensors), std::move(save_options));
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
  auto reader = std::make_shared<detail::SavedTensors>(from, files);
  draining = reader;
  std::vector<TensorSource> saved;
  for (std::size_t t = 0; t < from.size(); ++t) {
    saved.push_back({from[t].name, reader, t, from[t].sharding});
  }
  drain = std::jthread([this, step, pending, reader = std::move(reader), saved = std::move(saved),
                        onward = std::move(onward)]() mutable {
    try {
      reader->open([&] {
        if (pending.settle()) return fast_manager.step(step).directory;
        throw Error(ErrorCode::cancelled,
                    fmt::format("take step {} on to the durable root: it was not saved", step));
      });
      reader.reset();  // the sources keep it, until the save ends
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

// Steps that are older than those of this job, of processes whose ranks or hosts are others now:
// nobody else removes them. All processes have the same steps.
void TieredManager::Impl::remove_older_than_own() {
  const std::vector<detail::StepName> kept = detail::committed_names(*files, own);
  if (kept.empty()) return;
  for (const std::string& name : files->list(fast)) {
    if (detail::process_of_directory(name) < 0 || fast / name == own) continue;
    const std::vector<detail::StepName> steps = detail::committed_names(*files, fast / name);
    bool is_left = steps.empty();
    for (const detail::StepName& step : steps) {
      if (step.step >= kept.front().step) {
        is_left = true;
      } else {
        detail::remove_unless_pinned(*files, fast / name, step);
      }
    }
    if (is_left) continue;
    try {
      files->remove(fast / name);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::already_exists) throw;  // something else is in it
    }
  }
}

TieredManager::Impl::Steps::const_iterator TieredManager::Impl::choose(
    const Steps& steps, std::vector<std::string>& passed_over) const {
  const auto age = [](const auto& entry) {
    return std::pair(entry.first.step, entry.second.generation);
  };
  auto newest = steps.end();
  for (auto at = steps.begin(); at != steps.end(); ++at) {
    if (!at->second.is_whole()) continue;
    if (newest == steps.end() || age(*at) > age(*newest)) newest = at;
  }
  for (const auto& entry : steps) {
    const auto& [step, holders] = entry;
    if (holders.is_whole() || (newest != steps.end() && age(entry) < age(*newest))) continue;
    passed_over.push_back(fmt::format("step {} of the fast tier: {} of {} shard files are nowhere",
                                      step.step, holders.num_files - std::ssize(holders.of),
                                      holders.num_files));
  }
  return newest;
}

// A process that has none gets its text from the first one that has.
detail::Manifest TieredManager::Impl::manifest_of(const ProcessGroup& group,
                                                  const detail::Inventory& inventory,
                                                  const detail::SavedStep& step,
                                                  const detail::StepHolders& holders,
                                                  Bytes& text) const {
  const int first = holders.manifest.front();
  const auto found = inventory.find(step);
  if (found != inventory.end()) {
    const std::unique_ptr<File> file = files->open(found->second.manifest);
    text.resize(file->size());
    file->read_at(0, text.data(), text.size());
  }
  std::vector<ProcessGroup::Outgoing> outgoing;
  for (int rank = 0; group.rank() == first && rank < group.size(); ++rank) {
    if (!std::ranges::binary_search(holders.manifest, rank)) outgoing.push_back({rank, text});
  }
  std::vector<int> from;
  if (found == inventory.end()) from.push_back(first);
  std::vector<Bytes> heard = group.exchange(std::move(outgoing), from);
  if (!heard.empty()) text = std::move(heard.front());
  return detail::parse_manifest({reinterpret_cast<const char*>(text.data()), text.size()},
                                fmt::format("of step {}", step.step));
}

std::vector<std::size_t> TieredManager::Impl::files_with(const detail::Manifest& manifest,
                                                         std::span<const TensorBox> needed) const {
  detail::StoredCheckpoint checkpoint;
  checkpoint.manifest = manifest;
  checkpoint.is_loaded.resize(manifest.files.size(), false);
  std::vector<detail::ReadTarget> targets;
  for (const TensorBox& want : needed) {
    const auto tensor =
        std::ranges::lower_bound(manifest.tensors, want.name, {}, &detail::TensorEntry::name);
    if (tensor == manifest.tensors.end() || tensor->name != want.name) {
      throw Error(ErrorCode::not_found, fmt::format("find the latest step: step {} has no tensor "
                                                    "{:?}",
                                                    manifest.step, want.name));
    }
    if (want.box.rank() != tensor->shape.size() || !Box::whole(tensor->shape).contains(want.box)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("find the latest step: box {} leaves tensor {:?} of shape {}",
                              shardwise::to_string(want.box), want.name,
                              shardwise::to_string(tensor->shape)));
    }
    targets.push_back({static_cast<std::size_t>(tensor - manifest.tensors.begin()), &want.box, {}});
  }
  return detail::files_to_load(checkpoint, targets);
}

// Who sends what, where this process wants these files, by number: it tells all the others. Who has
// a file on its own host takes that one.
std::vector<detail::FileTransfer> TieredManager::Impl::plan_transfers(
    const ProcessGroup& group, Bytes wanted, const detail::Manifest& manifest,
    const detail::StepHolders& holders) {
  const std::vector<Bytes> all_wanted = group.all_gather(std::move(wanted));
  std::vector<std::size_t> sent(static_cast<std::size_t>(group.size()), 0);  // files by each
  std::vector<detail::FileTransfer> transfers;
  for (int rank = 0; rank < group.size(); ++rank) {
    detail::Unpacker unpacker(all_wanted[static_cast<std::size_t>(rank)]);
    while (!unpacker.empty()) {
      const std::int64_t number = unpacker.integer();
      const std::vector<int>& ranks = holders.of.at(number);
      int from = rank;
      if (!std::ranges::binary_search(ranks, rank)) {
        from = *std::ranges::min_element(
            ranks, {}, [&](int holder) { return sent[static_cast<std::size_t>(holder)]; });
      }
      ++sent[static_cast<std::size_t>(from)];
      const detail::FileEntry& file = manifest.files[static_cast<std::size_t>(number)];
      transfers.push_back({from, rank, file.name, file.bytes});
    }
  }
  return transfers;
}

TierStep TieredManager::Impl::assemble(const ProcessGroup& group,
                                       const detail::Inventory& inventory,
                                       const detail::SavedStep& step,
                                       const detail::StepHolders& holders,
                                       std::span<const TensorBox> needed) const {
  Bytes text;
  const detail::Manifest manifest = manifest_of(group, inventory, step, holders, text);
  const auto held = inventory.find(step);

  // Where this process's directory has it, files are added there; else it is made.
  std::optional<fs::path> directory;
  for (const detail::StepName& name : detail::committed_names(*files, own)) {
    const fs::path path = own / to_string(name);
    if (name.step != step.step) continue;
    if (detail::read_manifest(detail::open_directory(*files, path)).id == step.id) directory = path;
  }
  std::vector<fs::path> leftovers;
  std::optional<detail::Attempt> attempt;
  if (!directory) {
    attempt.emplace(*files, own, step.step, leftovers);
    detail::write_whole_file(*files, attempt->directory() / detail::kManifestName, text);
  }
  const fs::path target = directory ? *directory : attempt->directory();

  detail::Packer wanted;
  for (const std::size_t file : files_with(manifest, needed)) {
    const fs::path there = target / manifest.files[file].name;
    const bool is_there =
        held != inventory.end() && std::ranges::any_of(held->second.paths, [&](const auto& path) {
          return path.second == there;
        });
    if (is_there) continue;
    files->remove(there);  // of another size
    wanted.number(std::uint64_t{file});
  }
  const std::vector<detail::FileTransfer> transfers =
      plan_transfers(group, wanted.take(), manifest, holders);
  TierStep result;
  result.step = {step.step, 1, target};
  for (const detail::FileTransfer& transfer : transfers) {
    if (transfer.to != group.rank()) continue;
    ++result.files_taken;
    result.bytes_taken += transfer.bytes;
  }
  const auto path_of = [&](const std::string& name) {
    const auto file = std::ranges::find(manifest.files, name, &detail::FileEntry::name);
    return held->second.paths.at(file - manifest.files.begin());
  };
  detail::transfer_files(group, *files, transfers, path_of, target);
  files->sync_directory(target);
  if (attempt) result.step.directory = attempt->publish(Existing::replace);
  result.step.generation =
      detail::parse_step_name(result.step.directory.filename().string())->generation;
  return result;
}

TieredManager::TieredManager(const fs::path& fast, const fs::path& durable, TierOptions options) {
  if (options.drain_every < 1 || options.drain_bytes_per_second < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("open checkpoint tiers: drain_every is {}, needed 1 or more; "
                            "drain_bytes_per_second {}, needed 0 (no limit) or more",
                            options.drain_every, options.drain_bytes_per_second));
  }
  impl_ = std::make_unique<Impl>(fast, durable, std::move(options));
}

TieredManager::~TieredManager() = default;

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
  impl_->end_drain();
  if (error) std::rethrow_exception(error);
}

std::optional<TierStep> TieredManager::latest(std::span<const TensorBox> needed) {
  if (impl_->drain.joinable()) impl_->drain.join();
  const ProcessGroup group = impl_->options.group.duplicate();
  std::optional<LatestStep> durable;
  std::exception_ptr durable_error;
  try {
    durable = impl_->durable_manager.latest();
  } catch (const Error&) {
    durable_error = std::current_exception();
  }
  try {
    const detail::Inventory inventory = detail::take_inventory(*impl_->files, impl_->fast);
    const Impl::Steps steps = detail::gather_inventories(group, inventory);
    std::vector<std::string> passed_over;
    const auto newest = impl_->choose(steps, passed_over);
    const bool is_fast =
        newest != steps.end() && (!durable || newest->first.step >= durable->step.step);
    if (!is_fast && durable_error) std::rethrow_exception(durable_error);
    if (!is_fast && !durable) {
      if (passed_over.empty()) return std::nullopt;
      throw Error(ErrorCode::corrupt, fmt::format("find the latest step: none is whole; {}",
                                                  fmt::join(passed_over, "; ")));
    }
    TierStep result;
    result.tier = is_fast ? Tier::fast : Tier::durable;
    if (is_fast) {
      result = impl_->assemble(group, inventory, newest->first, newest->second, needed);
    } else {
      result.step = durable->step;
    }
    result.passed_over = std::move(passed_over);
    group.barrier();
    return result;
  } catch (const std::exception& e) {
    group.abort(e.what());
    throw;
  }
}

const CheckpointManager& TieredManager::durable() const { return impl_->durable_manager; }

}  // namespace shardwise
