#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "shardwise/jobs/policies.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::jobs_detail {

/// The end of a save, for those that wait for it. Thread-safe.
struct Saving {
  Mutex mutex;
  CondVar changed;
  std::atomic<bool> done = false;  ///< set under the mutex, so that a forked child can read it
  bool error_seen SHARDWISE_GUARDED_BY(mutex) = false;
  std::exception_ptr error SHARDWISE_GUARDED_BY(mutex);

  /// The save that waits for the end of this one is not to begin any more.
  bool next_is_replaced SHARDWISE_GUARDED_BY(mutex) = false;

  void end(std::exception_ptr failure);
  void wait_until_done() SHARDWISE_REQUIRES(mutex);
};

/// Thrown on all ranks by a save that comes now: an earlier one, for whose end nobody waits, has
/// failed.
struct EarlierSaveFailed {
  std::exception_ptr error;
};

/// Decides which save waits, is skipped or is replaced (WhenBusy), and whose error is thrown. Holds
/// the saves whose end nobody has waited for: one under way and, with WhenBusy::replace, one more
/// that waits for it. Thread-compatible; `wait` may call it, as the handler of a signal does.
class SaveTurns {
 public:
  enum class Turn : std::uint8_t {
    now,      ///< no save is under way
    later,    ///< when the save under way has ended
    skipped,  ///< never: SaveStats::skipped
  };

  /// Returns when the save has ended. May throw: then the save stays here.
  using Wait = std::function<void(Saving&)>;

  enum class Errors : std::uint8_t {
    unseen,  ///< one that somebody has seen is not thrown
    all,     ///< so that processes stay in step, though one has seen the error
  };

  SaveTurns(WhenBusy when_busy, Errors errors, Wait wait)
      : when_busy_(when_busy), errors_(errors), wait_(std::move(wait)) {}

  /// Decides about a save that comes now. With WhenBusy::replace, one that waits ends as skipped.
  /// Every rank calls it, and rank 0 decides for all. Throws EarlierSaveFailed on all ranks if rank
  /// 0 has a save that has ended with an error, and that error with WhenBusy::wait.
  Turn next(const Rendezvous& ranks);

  /// Adds the next save.
  void add(std::shared_ptr<Saving> saving);

  /// True if the save was added, and is not known to have ended.
  bool has(const Saving& saving) const;

  /// The save that one with Turn::later waits for; null without one.
  const std::shared_ptr<Saving>& current() const { return current_; }

  /// Waits for all of them; throws the first error. Later ones are thrown by the next call.
  void finish();

  /// On the thread of a save with Turn::later: waits until the one before has ended, or this one is
  /// replaced; rank 0 says which. Another rank comes to the end of the save before at another time,
  /// and may have none (null).
  static bool may_begin(Saving* before, const Rendezvous& ranks);

 private:
  // Rank 0's message to all: how many of the saves before have ended, from the first on; whether
  // one of them has failed; the turn of the next one.
  struct Word {
    int ended = 0;
    bool has_failed = false;
    Turn turn = Turn::now;
  };

  Word own_word() const;
  void end_replaced();
  std::exception_ptr end_current(Errors errors);

  const WhenBusy when_busy_;
  const Errors errors_;
  const Wait wait_;
  std::shared_ptr<Saving> current_, waiting_;
};

}  // namespace shardwise::jobs_detail
