#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "shardwise/checkpoint/detail/write/host_snapshot.h"
#include "shardwise/jobs/detail/pending_state.h"
#include "shardwise/jobs/detail/save_turns.h"
#include "shardwise/jobs/pending_save.h"
#include "shardwise/runtime/process/process_group.h"

namespace shardwise::jobs_detail {

using namespace detail;

/// In a handler of a destructor, which cannot throw: writes the error to stderr, in one line.
void tell_unseen_error() noexcept;

/// The saves of a manager that SaveTurns holds, each on a thread; two never run at once.
/// Thread-compatible.
class SaveQueue {
 public:
  using Turn = SaveTurns::Turn;

  explicit SaveQueue(WhenBusy when_busy)
      : turns_(when_busy, SaveTurns::Errors::unseen, [this](const Saving& one) { join(one); }) {}

  /// Waits for all of them. Errors that nobody has seen go to stderr.
  ~SaveQueue();
  SaveQueue(const SaveQueue&) = delete;
  SaveQueue& operator=(const SaveQueue&) = delete;

  /// SaveTurns::next() and finish().
  Turn next_turn(const Rendezvous& ranks) { return turns_.next(ranks); }
  void finish() { turns_.finish(); }

  /// Copies what host sources of the next save refer to; gives the bytes that are held for it.
  std::size_t copy(std::vector<TensorSource>& tensors, const Executor& executor);

  /// Runs the next save on a thread, when its turn has come. `run` finishes the state that it is
  /// given, and throws nothing. Throws io.
  PendingSave start(Turn turn, std::int64_t step, const ProcessGroup& group,
                    std::function<void(PendingSave::State&)> run);

  /// One that has ended so.
  static PendingSave skipped();

 private:
  struct Slot {
    HostSnapshot snapshot;  // read by the thread
    std::shared_ptr<Saving> saving;
    std::jthread thread;
  };

  void join(const Saving& saving);
  Slot& free_slot();

  SaveTurns turns_;
  std::array<Slot, 2> slots_;
};

}  // namespace shardwise::jobs_detail
