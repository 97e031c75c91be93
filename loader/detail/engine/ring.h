#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "shardwise/loader/detail/engine/batch_array.h"
#include "shardwise/loader/detail/engine/delivery_digest.h"
#include "shardwise/loader/loader_stats.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// The outcome of a ticket's rows, or of all tickets of a batch.
struct TicketResult {
  Wide digest = 0;             ///< of the samples that were written
  std::vector<BadRecord> bad;  ///< in order of rows within a ticket
};

/// A batch that is being read.
struct PendingBatch {
  std::int64_t index;
  std::int64_t epoch;                 ///< of its first row
  std::int64_t first_number;          ///< of its first row, over the run
  std::int64_t valid_rows;            ///< the rest is padding
  float weight = 0;                   ///< of a row that is not padding
  std::vector<std::size_t> variants;  ///< per array, the number of its shape in this batch
  BatchBuffers buffers;
  TicketResult result = {};  ///< of all tickets
};

/// The batches between readers and their consumer: at most `depth` are begun and not yet taken.
///
/// A batch is cut into tickets. Tickets are taken in order, each by any reader, which writes the
/// rows to their final memory; a batch is ready when all its tickets have ended. So nothing is
/// sorted, and several readers share one batch.
///
/// Thread-safe, with a single consumer.
class Ring {
 public:
  struct Options {
    std::int64_t first_batch, end_batch;
    std::int64_t depth;
    std::int64_t tickets_per_batch;
    std::int64_t step = 1;  ///< from one batch to the next
  };

  /// Takes the memory of a batch. Called by one reader at a time, in order of batches.
  using Begin = std::function<PendingBatch(std::int64_t batch)>;

  Ring(const Options& options, Begin begin);

  struct Slot;
  struct Ticket {
    std::shared_ptr<Slot> slot;
    std::int64_t number;  ///< 0 <= number < tickets_per_batch

    const PendingBatch& batch() const;
  };

  /// For readers: the next piece of work. Waits while the ring is full; absent if the run's end or
  /// an error is reached, or stop is requested.
  std::optional<Ticket> take(const std::stop_token& stop);

  /// For readers: reports that the ticket's rows are written, or an error. A reader that was asked
  /// to stop leaves its ticket unfinished.
  void finish(const Ticket& ticket, TicketResult result = {});
  void fail(const Ticket& ticket, std::exception_ptr error);

  /// For the consumer: waits for the next batch, in order, and returns it; absent at the end.
  /// Rethrows an error of reading it; if there are several, the error of the lowest ticket. Every
  /// later call then throws the same.
  ///
  /// If a batch could not be begun (no memory), each call begins it again. It is an error only if
  /// that fails in the call that would return the batch.
  std::optional<PendingBatch> pop();

  /// Waits, at most for `time`, until pop() would return at once. True if it would.
  bool wait(std::chrono::milliseconds time);

  /// Total time that pop() waited, and that readers waited for a full ring.
  double consumer_waited_seconds() const;
  double readers_waited_seconds() const;

  /// The number of batches ready at a call of pop(), summed over all calls.
  std::int64_t ready_batches() const;

 private:
  bool has_ticket() const SHARDWISE_REQUIRES(mutex_);
  bool may_begin() const SHARDWISE_REQUIRES(mutex_);
  bool over() const SHARDWISE_REQUIRES(mutex_);
  bool front_is_due() const SHARDWISE_REQUIRES(mutex_);
  void begin_next() SHARDWISE_REQUIRES(mutex_);
  bool is_ready(const Slot& slot) const SHARDWISE_REQUIRES(mutex_);

  const Options options_;
  const Begin begin_;

  mutable Mutex mutex_;
  CondVar room_;   // for readers: there may be work, or no more will come
  CondVar ready_;  // for the consumer: the front may be ready, or could not be begun
  std::deque<std::shared_ptr<Slot>> slots_ SHARDWISE_GUARDED_BY(mutex_);
  std::int64_t next_to_begin_ SHARDWISE_GUARDED_BY(mutex_);
  bool beginning_ SHARDWISE_GUARDED_BY(mutex_) =
      false;                                            // a reader begins a batch, without the lock
  std::int64_t pops_ SHARDWISE_GUARDED_BY(mutex_) = 0;  // calls
  std::int64_t ready_batches_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  bool failed_ SHARDWISE_GUARDED_BY(mutex_) = false;  // in some slot; nothing more is begun
  std::exception_ptr begin_error_ SHARDWISE_GUARDED_BY(mutex_);
  std::exception_ptr error_ SHARDWISE_GUARDED_BY(mutex_);  // the error that pop() threw
  double consumer_waited_seconds_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  double readers_waited_seconds_ SHARDWISE_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardwise::detail
