#include "shardwise/jobs/detail/save_queue.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

#include "shardwise/jobs/detail/save/save_together.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::jobs_detail {
namespace {

// Rank 0's byte, of at most this value, on all ranks.
unsigned byte_of_first(const ProcessGroup& group, unsigned own, unsigned most) {
  if (group.size() == 1) return own;
  const Bytes said = group.broadcast(Bytes{static_cast<std::byte>(own)});
  if (said.size() == 1 && std::to_integer<unsigned>(said[0]) <= most) {
    return std::to_integer<unsigned>(said[0]);
  }
  throw Error(
      ErrorCode::corrupt,
      fmt::format("save: found {} bytes, needed 1, at most {}, which says whether rank 0 saves",
                  said.size(), most));
}

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

SaveQueue::Turn SaveQueue::next_turn(const ProcessGroup& group) {
  if (when_busy_ == WhenBusy::wait) {
    finish();
    return Turn::now;
  }
  const Word word = of_first(group, group.rank() == 0 ? own_word() : Word());
  std::exception_ptr error;
  for (int i = 0; current_.state && (i < word.ended || word.turn == Turn::now); ++i) {
    const std::shared_ptr<PendingSave::State> last = take_current();
    const MutexLock lock(last->mutex);
    last->error_seen = true;
    if (!error) error = last->error;
  }
  if (word.has_failed) {
    if (!error) {
      error = std::make_exception_ptr(
          Error(ErrorCode::cancelled, "save: the save before has failed on rank 0"));
    }
    throw EarlierSaveFailed{error};
  }
  if (word.turn == Turn::later && waiting_.state) end_replaced();
  return word.turn;
}

// In one byte: the number in bits 0 and 1, then a bit, then the turn.
SaveQueue::Word SaveQueue::of_first(const ProcessGroup& group, const Word& own) {
  const unsigned said = byte_of_first(
      group, own.ended | (own.has_failed ? 4U : 0U) | static_cast<unsigned>(own.turn) << 3U,
      static_cast<unsigned>(Turn::skipped) << 3U | 7U);
  return {static_cast<std::uint8_t>(said & 3U), (said & 4U) != 0, static_cast<Turn>(said >> 3U)};
}

// Rank 0's. If none has ended, the one that waits does not begin any more.
SaveQueue::Word SaveQueue::own_word() {
  Word word;
  for (const Saving* const saving : {&current_, &waiting_}) {
    if (!saving->state) break;
    const MutexLock lock(saving->state->mutex);
    if (!saving->state->done) {
      word.turn = when_busy_ == WhenBusy::skip ? Turn::skipped : Turn::later;
      saving->state->next_is_replaced = saving == &current_ && waiting_.state;
      break;
    }
    ++word.ended;
    if (saving->state->error && !saving->state->error_seen) word.has_failed = true;
  }
  return word;
}

void SaveQueue::end_replaced() {
  {
    const MutexLock lock(current_.state->mutex);
    current_.state->next_is_replaced = true;
  }
  current_.state->changed.notify_all();
  if (waiting_.thread.joinable()) waiting_.thread.join();
  waiting_.state = nullptr;
  const MutexLock lock(current_.state->mutex);
  current_.state->next_is_replaced = false;
}

// Waits for its end. The one that waits, if there is one, takes its place.
std::shared_ptr<PendingSave::State> SaveQueue::take_current() {
  std::shared_ptr<PendingSave::State> last = std::exchange(current_.state, nullptr);
  if (current_.thread.joinable()) current_.thread.join();
  if (waiting_.state) std::swap(current_, waiting_);
  return last;
}

void SaveQueue::finish_current() {
  const std::shared_ptr<PendingSave::State> last = take_current();
  const MutexLock lock(last->mutex);
  if (last->error && !std::exchange(last->error_seen, true)) std::rethrow_exception(last->error);
}

void SaveQueue::finish() {
  if (waiting_.state && waiting_.thread.joinable()) waiting_.thread.join();  // ends last
  while (current_.state) finish_current();
}

std::size_t SaveQueue::copy(std::vector<TensorSource>& tensors, const Executor& executor) {
  HostSnapshot& snapshot = (current_.state ? waiting_ : current_).snapshot;
  snapshot.take(tensors, executor);
  return snapshot.held_bytes();
}

PendingSave SaveQueue::start(Turn turn, std::int64_t step, const ProcessGroup& group,
                             std::function<void(PendingSave::State&)> run) {
  PendingSave pending;
  pending.state_ = std::make_shared<PendingSave::State>();
  Saving& saving = current_.state ? waiting_ : current_;
  try {
    saving.thread = std::jthread([turn, step, group, before = current_.state,
                                  state = pending.state_, run = std::move(run)]() mutable noexcept {
      try {
        if (turn == Turn::later && !may_begin(before.get(), group)) {
          return state->finish(skipped_stats(), nullptr);
        }
      } catch (...) {
        abort_group(group, fmt::format("save step {}", step));
        return state->finish({}, std::current_exception());
      }
      before = nullptr;
      run(*state);
    });
  } catch (const std::system_error& e) {
    throw Error(ErrorCode::io, fmt::format("save step {}: start the thread that saves: {}", step,
                                           e.code().message()));
  }
  saving.state = pending.state_;
  return pending;
}

// Waits until the save before has ended or this one is replaced; rank 0 says which. Another rank
// comes to the end of the save before at another time, and may have none.
bool SaveQueue::may_begin(PendingSave::State* before, const ProcessGroup& group) {
  bool begins = true;
  if (before != nullptr) {
    const MutexLock lock(before->mutex);
    while (!before->done && !before->next_is_replaced) before->changed.wait(before->mutex);
    begins = !before->next_is_replaced;
  }
  return byte_of_first(group, begins ? 1 : 0, 1) != 0;
}

PendingSave SaveQueue::skipped() {
  PendingSave pending;
  pending.state_ = std::make_shared<PendingSave::State>();
  pending.state_->finish(skipped_stats(), nullptr);
  return pending;
}

}  // namespace shardwise::jobs_detail
