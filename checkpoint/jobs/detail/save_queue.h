#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "shardwise/checkpoint/detail/write/host_snapshot.h"
#include "shardwise/jobs/detail/pending_state.h"
#include "shardwise/jobs/pending_save.h"
#include "shardwise/runtime/process/process_group.h"

namespace shardwise::jobs_detail {

using namespace detail;

/// Thrown by next_turn() on all processes of a group: nobody waits for the saves that it ends.
struct EarlierSaveFailed {
  std::exception_ptr error;
};

/// In a handler of a destructor, which cannot throw: writes the error to stderr, in one line.
void tell_unseen_error() noexcept;

/// The saves of a manager whose end nobody has waited for: one under way and, with
/// WhenBusy::replace, one more that waits for it. Each has a thread; two never run at once.
/// Thread-compatible.
class SaveQueue {
 public:
  enum class Turn : std::uint8_t {
    now,      ///< no save is under way
    later,    ///< when the save under way has ended
    skipped,  ///< never: SaveStats::skipped
  };

  explicit SaveQueue(WhenBusy when_busy) : when_busy_(when_busy) {}

  /// Waits for all of them. Errors that nobody has seen go to stderr.
  ~SaveQueue();
  SaveQueue(const SaveQueue&) = delete;
  SaveQueue& operator=(const SaveQueue&) = delete;

  /// Decides about a save that comes now. With WhenBusy::replace, one that waits ends as skipped.
  /// Every process of the group calls it, and rank 0 decides for all: if a save has ended with an
  /// error that nobody has seen there, all throw EarlierSaveFailed. Throws cancelled.
  Turn next_turn(const ProcessGroup& group);

  /// Waits for all of them; throws the first error that nobody has seen.
  void finish();

  /// Copies what host sources of the next save refer to; gives the bytes that are held for it.
  std::size_t copy(std::vector<TensorSource>& tensors, const Executor& executor);

  /// Runs the next save on a thread, when its turn has come. `run` finishes the state that it is
  /// given, and throws nothing. Throws io.
  PendingSave start(Turn turn, std::int64_t step, const ProcessGroup& group,
                    std::function<void(PendingSave::State&)> run);

  /// One that has ended so.
  static PendingSave skipped();

 private:
  /// `state` is thread-safe; the rest is the thread's until it is joined.
  struct Saving {
    HostSnapshot snapshot;  // read by the thread
    std::shared_ptr<PendingSave::State> state;
    std::jthread thread;
  };

  // Rank 0's message to all: how many of the saves before have ended, from the first on; whether
  // one of them has failed and nobody has seen it; the turn of the next one.
  struct Word {
    std::uint8_t ended = 0;
    bool has_failed = false;
    Turn turn = Turn::now;
  };

  Word own_word();
  static Word of_first(const ProcessGroup& group, const Word& own);
  void end_replaced();
  std::shared_ptr<PendingSave::State> take_current();
  void finish_current();
  static bool may_begin(PendingSave::State* before, const ProcessGroup& group);

  const WhenBusy when_busy_;
  Saving current_, waiting_;  // without a state: none
};

}  // namespace shardwise::jobs_detail
