#include "shardwise/jobs/detail/manager_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "shardwise/bucket/detail/bucket_files.h"
#include "shardwise/checkpoint/detail/record/packer.h"
#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/checkpoint/detail/root/marks/set_aside.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/jobs/detail/internals.h"
#include "shardwise/jobs/detail/pending_state.h"
#include "shardwise/jobs/detail/save/group_save.h"
#include "shardwise/jobs/detail/save/save_together.h"
#include "shardwise/mend/detail/parity_writer.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise {
namespace {

std::string steps_text(const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) text += fmt::format("{}{}", text.empty() ? "" : ", ", step.step);
  return text.empty() ? "none" : text;
}

// Adds a failure after the commit to cleanup_error; an empty text adds nothing.
void tell(const std::string& problem, SaveStats& stats) {
  if (problem.empty()) return;
  stats.cleanup_error += (stats.cleanup_error.empty() ? "" : "; ") + problem;
}

}  // namespace

std::size_t CheckpointManager::Impl::bytes_of(std::span<const TensorSource> tensors) {
  std::size_t bytes = 0;
  try {
    for (const TensorSource& one : tensors) {
      const TensorInfo& info = one.reader->tensors()[one.tensor];
      bytes += num_bytes(info.shape, size_bytes(info.dtype));
    }
  } catch (const Error&) {
    return 0;  // the save refuses the shape
  }
  return bytes;
}

std::string CheckpointManager::Impl::opening(const std::filesystem::path& root) {
  return fmt::format("open checkpoint root {}", root.string());
}

CheckpointManager::Impl::Impl(const std::filesystem::path& directory,
                              ManagerOptions manager_options, const jobs_detail::RootTerms& terms)
    : root(detail::absolute_root(directory)),
      options(std::move(manager_options)),
      local_roots(terms.local_roots),
      bucket(in_bucket(root) ? bucket_detail::open_bucket_root(root) : nullptr),
      files(bucket ? bucket_detail::bucket_files(root) : file_system_of(root, options.file_system)),
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

PendingSave CheckpointManager::Impl::start(std::int64_t step, std::vector<TensorSource> tensors,
                                           SaveOptions save_options, HostMemory host_memory,
                                           const jobs_detail::CallersPart* told) {
  const Stopwatch watch;
  const MutexLock lock(starting);
  Caller caller{watch, options.group.duplicate(), options.group.duplicate()};
  if (told != nullptr) {
    caller.before = told->waited_seconds;
    if (!told->is_waiting) caller.waited = told->waited_seconds;
    caller.copied_bytes = told->copied_bytes;
    caller.has_told = true;
  }
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

PendingSave CheckpointManager::Impl::start(std::int64_t step, std::vector<TensorSource> tensors,
                                           SaveOptions save_options, HostMemory host_memory,
                                           Caller& caller) {
  jobs_detail::check_save(step, tensors, save_options, executor.threads(), options.group.size());
  caller.is_damaged = damaged.contains(step);
  const bool refuses = save_options.existing == Existing::fail && owns_root();
  // Comes first, so that a save that cannot be done replaces nothing.
  if (refuses && options.write.when_busy == WhenBusy::replace) caller.error = refuse_existing(step);
  auto turn = jobs_detail::SaveQueue::Turn::now;
  if (host_memory == HostMemory::copied) {
    turn = queue.next_turn(GroupRendezvous(caller.group, fmt::format("save step {}", step)));
  } else {
    queue.finish();
  }
  if (turn == jobs_detail::SaveQueue::Turn::skipped) return jobs_detail::SaveQueue::skipped();
  if (refuses) caller.error = refuse_existing(step);
  schedule.begin(step, bytes_of(tensors));
  // Under the lock: no body of this executor wants it, and no save reads the snapshot now.
  if (host_memory == HostMemory::copied) {
    caller.copied_bytes = queue.copy(tensors, executor);
    caller.waited = caller.watch.seconds();
  }
  PendingSave pending =
      queue.start(turn, step, caller.group,
                  [this, step, tensors = std::move(tensors), save_options = std::move(save_options),
                   caller](PendingSave::State& state) mutable {
                    run(step, std::move(tensors), std::move(save_options), caller, state);
                  });
  if (caller.has_told) return pending;
  const MutexLock state_lock(pending.state_->mutex);
  pending.state_->stats.blocked_seconds = caller.watch.seconds();
  return pending;
}

std::exception_ptr CheckpointManager::Impl::refuse_existing(std::int64_t step) const {
  if (damaged.contains(step)) return nullptr;
  try {
    detail::refuse_existing(*files, root, step);
    return nullptr;
  } catch (const Error& e) {
    if (!save_errors.tolerates(e.code())) throw;
    return std::make_exception_ptr(Error(e, fmt::format("save step {}: {}", step, e.what())));
  }
}

void CheckpointManager::Impl::run(std::int64_t step, std::vector<TensorSource> tensors,
                                  SaveOptions save_options, const Caller& caller,
                                  PendingSave::State& state) noexcept {
  const Stopwatch watch;
  SaveStats stats;
  std::exception_ptr error;
  std::vector<std::filesystem::path> left;
  try {
    if (caller.error) std::rethrow_exception(caller.error);
    jobs_detail::SaveContext context{*files, root,  executor,        pool,
                                     left,   spare, options.devices, local_roots};
    context.most_failed_saves = save_errors.most();
    context.is_damaged = caller.is_damaged;
    context.bucket = bucket.get();
    if (writes_increments()) {
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
    // Unchanged chunks come from the step before, so the damage may be there.
    if (e.code() == ErrorCode::corrupt) damaged.note(std::exchange(earlier, {}));
  } catch (...) {
    error = std::current_exception();
  }
  keeper.keep_leftovers(std::move(left));
  error = save_errors.judge(step, GroupRendezvous(caller.ends, ""), error, stats);
  if (!error && stats.error.empty()) {
    damaged.forget(step);
    try {
      // Each process for itself: nobody waits for another.
      const GroupRendezvous alone({}, "");
      if (!stats.skipped) {
        finish(
            alone, detail::writers_of(options.group.rank(), save_options.writers),
            options.write.reuse_files ? &spare : nullptr,
            [&] { return caller.waited.value_or(caller.before + caller.watch.seconds()); }, stats);
      }
    } catch (...) {
      stats.cleanup_error = "out of memory";  // so short that it needs none
    }
  }
  if (caller.has_told) {
    const MutexLock lock(state.mutex);
    state.stats.blocked_seconds = stats.blocked_seconds;
  }
  state.finish(std::move(stats), error);
}

void CheckpointManager::Impl::finish(const Rendezvous& ranks, detail::WriterRange mine,
                                     detail::Spare* kept, const std::function<double()>& blocked,
                                     SaveStats& stats) {
  save_errors.note_saved();
  stats.blocked_seconds = blocked();
  bool is_clean = false;
  const auto clean_up = [&] {
    is_clean = true;
    if (!owns_root()) return;
    detail::Failures of_cleaning, of_telling;
    keeper.clean_up(*detail::parse_step_name(stats.directory.filename().string()), kept,
                    of_cleaning);
    tell(of_cleaning.text(), stats);
    stats.blocked_seconds = blocked();
    if (options.write.stats) keeper.write_stats(stats, of_telling);
    tell(of_telling.text(), stats);
  };
  try {
    if (options.write.parity_blocks > 0) protect(ranks, mine, stats);
    // All see the same steps after it.
    ranks.agree([] { return Bytes(); },
                [&](const std::vector<Bytes>&) {
                  clean_up();
                  return Bytes();
                });
  } catch (const Error& e) {  // a rank has ended since the commit
    tell(fmt::format("it is committed; what it supersedes may still be seen: {}", e.what()), stats);
    if (ranks.rank() == 0 && !is_clean) clean_up();
  }
}

// Each rank writes the parity of its shard files. All are told of the bytes and the problems.
void CheckpointManager::Impl::protect(const Rendezvous& ranks, detail::WriterRange mine,
                                      SaveStats& stats) const {
  constexpr const char* kWhat = "the parity of a save";
  const auto message = [](std::uint64_t bytes, const std::string& problem) {
    detail::Packer packer;
    packer.number(bytes);
    packer.text(problem);
    return detail::sealed(packer.take());
  };
  const auto write = [&] {
    try {
      const detail::Pin pin(*files, stats.directory);
      const auto is_mine = [mine](const detail::FileEntry& file) {
        return mine.first <= file.writer && file.writer < mine.end;
      };
      const ParityStats written =
          mend_detail::write_parity_files(*files, stats.directory,
                                          {.blocks = options.write.parity_blocks,
                                           .threads = options.write.threads,
                                           .is_mine = is_mine});
      return message(written.parity_bytes, "");
    } catch (const std::exception& e) {
      return message(0, e.what());
    }
  };
  const auto add = [&](const std::vector<Bytes>& said) {
    std::uint64_t bytes = 0;
    std::string problems;
    for (std::size_t rank = 0; rank < said.size(); ++rank) {
      auto unpacker = detail::Unpacker::of_sealed(said[rank], kWhat);
      bytes += unpacker.number();
      const std::string problem = unpacker.text();
      if (problem.empty()) continue;
      if (!problems.empty()) problems += "; ";
      problems += said.size() > 1 ? fmt::format("rank {}: {}", rank, problem) : problem;
    }
    return message(bytes, problems);
  };
  const Bytes said = ranks.agree(write, add);
  auto unpacker = detail::Unpacker::of_sealed(said, kWhat);
  stats.parity_bytes = unpacker.number();
  tell(unpacker.text(), stats);
}

std::vector<Step> CheckpointManager::Impl::steps() const {
  const detail::RunNames names = detail::run_names(*files, root);
  std::vector<Step> steps = keeper.newest_of(names.all());
  for (Step& step : steps) {
    step.is_set_aside =
        std::ranges::find(names.own, step.step, &detail::StepName::step) == names.own.end();
    step.is_damaged = damaged.contains(step.step);
  }
  return steps;
}

Step CheckpointManager::Impl::find(std::int64_t step) const {
  const std::vector<Step> there = steps();
  const auto found = std::ranges::find(there, step, &Step::step);
  if (found != there.end()) return *found;
  throw Error(ErrorCode::no_such_name,
              fmt::format("find step {} in {}: {} {}", step, root.string(),
                          there.empty() ? "there are" : "its steps are", steps_text(there)));
}

std::optional<LatestStep> CheckpointManager::Impl::latest(const Rendezvous& ranks,
                                                          std::int64_t below) {
  refuse_parts("find the latest checkpoint");
  auto found = finder.agree(ranks, below);
  if (found) note(*found, ranks.rank());
  return found;
}

std::optional<LatestStep> CheckpointManager::Impl::restore(
    const Rendezvous& ranks, std::optional<std::int64_t> step,
    const std::function<void(const Step&)>& restore) {
  refuse_parts("restore the latest checkpoint");
  if (step) return LatestStep{restore_one(ranks, *step, restore), {}};
  try {
    auto found = jobs_detail::restore_newest(finder, root, ranks, restore);
    if (found) {
      note(*found, ranks.rank());
      run_steps.note_restored(found->step.step);
    }
    return found;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::corrupt) {  // all of them are damaged
      for (const Step& one : steps()) damaged.note(one.step);
    }
    throw;
  }
}

Step CheckpointManager::Impl::restore_one(const Rendezvous& ranks, std::int64_t step,
                                          const std::function<void(const Step&)>& restore) {
  // Rank 0's look counts.
  const Bytes said = ranks.agree(nullptr, [&](const std::vector<Bytes>&) {
    const std::string name = find(step).directory.filename().string();
    const auto bytes = std::as_bytes(std::span(name));
    return Bytes(bytes.begin(), bytes.end());
  });
  const std::string name(reinterpret_cast<const char*>(said.data()), said.size());
  const auto parsed = detail::parse_step_name(name);
  if (!parsed || parsed->step != step) {
    throw Error(ErrorCode::corrupt, fmt::format("restore step {}: found {:?} from rank 0, needed "
                                                "is its name",
                                                step, name));
  }
  Step found{step, parsed->generation, root / name};
  if (const auto damage = jobs_detail::restore_step(found, ranks, restore)) {
    damaged.note(step);
    throw Error(ErrorCode::corrupt,
                fmt::format("restore {}: {}", found.directory.string(), *damage));
  }
  run_steps.note_restored(step);
  return found;
}

void CheckpointManager::Impl::note(const LatestStep& found, int rank) {
  damaged.note(found.rejected);
  if (rank == 0) run_steps.tell_passed_over(found.rejected);
}

void CheckpointManager::Impl::refuse_parts(const char* what) const {
  if (!local_roots) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} in {}: its files are in the roots of several processes: "
                          "TieredManager finds it",
                          what, root.string()));
}

void jobs_detail::ManagerInternals::note_damaged(CheckpointManager& manager, std::int64_t step) {
  manager.impl_->damaged.note(step);
}

void jobs_detail::ManagerInternals::note_restored(CheckpointManager& manager, std::int64_t step) {
  manager.impl_->run_steps.note_restored(step);
}

}  // namespace shardwise
