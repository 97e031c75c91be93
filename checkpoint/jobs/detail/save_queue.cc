#include "shardwise/jobs/detail/save_queue.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {
namespace {

SaveStats skipped_stats() {
  SaveStats stats;
  stats.skipped = true;
  return stats;
}

}  // namespace

void tell_unseen_error() noexcept {
  const auto tell = [](const char* error) {
    std::fprintf(stderr, "shardwise: %s; found by a destructor: close() throws it\n", error);
  };
  try {
    throw;
  } catch (const std::exception& e) {
    tell(e.what());
  } catch (...) {
    tell("a source of a save threw something that is no exception");
  }
}

SaveQueue::~SaveQueue() {
  for (bool is_told = false; !is_told;) {
    try {
      finish();
      is_told = true;
    } catch (...) {
      tell_unseen_error();
    }
  }
}

void SaveQueue::join(const Saving& saving) {
  for (Slot& slot : slots_) {
    if (slot.saving.get() == &saving && slot.thread.joinable()) slot.thread.join();
  }
}

// The one whose save is not under way: next_turn() has ended at least one.
SaveQueue::Slot& SaveQueue::free_slot() {
  const auto is_busy = [this](const Slot& slot) { return slot.saving && turns_.has(*slot.saving); };
  return is_busy(slots_[0]) ? slots_[1] : slots_[0];
}

std::size_t SaveQueue::copy(std::vector<TensorSource>& tensors, const Executor& executor) {
  HostSnapshot& snapshot = free_slot().snapshot;
  snapshot.take(tensors, executor);
  return snapshot.held_bytes();
}

PendingSave SaveQueue::start(Turn turn, std::int64_t step, const ProcessGroup& group,
                             std::function<void(PendingSave::State&)> run) {
  PendingSave pending;
  pending.state_ = std::make_shared<PendingSave::State>();
  Slot& slot = free_slot();
  try {
    slot.thread = std::jthread([turn, step, group, before = turns_.current(),
                                state = pending.state_, run = std::move(run)]() mutable noexcept {
      const std::string subject = fmt::format("save step {}", step);
      try {
        if (turn == Turn::later &&
            !SaveTurns::may_begin(before.get(), GroupRendezvous(group, subject))) {
          return state->finish(skipped_stats(), nullptr);
        }
      } catch (...) {
        return state->finish({}, std::current_exception());
      }
      before = nullptr;
      run(*state);
    });
  } catch (const std::system_error& e) {
    throw Error(ErrorCode::io, fmt::format("save step {}: start the thread that saves: {}", step,
                                           e.code().message()));
  }
  slot.saving = pending.state_;
  turns_.add(pending.state_);
  return pending;
}

PendingSave SaveQueue::skipped() {
  PendingSave pending;
  pending.state_ = std::make_shared<PendingSave::State>();
  pending.state_->finish(skipped_stats(), nullptr);
  return pending;
}

}  // namespace shardwise::jobs_detail
