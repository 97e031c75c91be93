#include "shardwise/loader/detail/engine/ring.h"

#include <utility>

#include "shardwise/runtime/stopwatch.h"

namespace shardwise::detail {

// The ring's lock guards all but the content of batch.buffers.
struct Ring::Slot {
  PendingBatch batch;
  std::int64_t taken = 0, finished = 0;  // tickets
  std::int64_t error_ticket = 0;
  std::exception_ptr error = nullptr;
};

const PendingBatch& Ring::Ticket::batch() const { return slot->batch; }

Ring::Ring(const Options& options, Begin begin)
    : options_(options), begin_(std::move(begin)), next_to_begin_(options.first_batch) {}

// Tickets are taken in order, and a batch is begun only when all tickets of the earlier batches are
// taken. So only the last slot has tickets left.
bool Ring::has_ticket() const {
  return !slots_.empty() && slots_.back()->taken < options_.tickets_per_batch;
}

bool Ring::may_begin() const {
  return next_to_begin_ < options_.end_batch && !begin_error_ && !beginning_ &&
         static_cast<std::int64_t>(slots_.size()) < options_.depth;
}

bool Ring::over() const {
  return failed_ || (next_to_begin_ >= options_.end_batch && !has_ticket());
}

bool Ring::is_ready(const Slot& slot) const {
  return slot.finished == options_.tickets_per_batch && !slot.error;
}

// After an error no more tickets are taken. Tickets already taken are awaited, since a lower one
// may have an error too: so the thrown error does not depend on timing.
bool Ring::front_is_due() const {
  if (slots_.empty()) return begin_error_ || next_to_begin_ >= options_.end_batch;
  const Slot& front = *slots_.front();
  return front.finished == front.taken &&
         (front.error || front.taken == options_.tickets_per_batch);
}

// Runs without the lock, since it may ask the source for lengths. If it fails and the consumer has
// called in between, it is tried again: the consumer may have given memory back.
void Ring::begin_next() {
  beginning_ = true;
  for (;;) {
    const std::int64_t number = next_to_begin_, pops = pops_;
    std::shared_ptr<Slot> slot;
    std::exception_ptr error;
    mutex_.unlock();
    try {
      slot = std::make_shared<Slot>(Slot{.batch = begin_(number)});
    } catch (...) {
      error = std::current_exception();
    }
    mutex_.lock();
    if (error && pops != pops_) continue;
    beginning_ = false;
    begin_error_ = error;
    if (error) {
      ready_.notify_all();
    } else {
      slots_.push_back(std::move(slot));
      next_to_begin_ += options_.step;
      room_.notify_all();
    }
    return;
  }
}

std::optional<Ring::Ticket> Ring::take(const std::stop_token& stop) {
  const MutexLock lock(mutex_);
  const auto has_news = [this]() SHARDWISE_REQUIRES(mutex_) {
    return has_ticket() || may_begin() || over();
  };
  for (;;) {
    if (!has_news()) {
      const Stopwatch waiting;
      room_.wait(mutex_, stop, has_news);
      readers_waited_seconds_ += waiting.seconds();
    }
    if (stop.stop_requested() || over()) return std::nullopt;
    if (has_ticket()) return Ticket{slots_.back(), slots_.back()->taken++};
    begin_next();
  }
}

void Ring::finish(const Ticket& ticket, TicketResult result) {
  bool is_due = false;
  {
    const MutexLock lock(mutex_);
    Slot& slot = *ticket.slot;
    TicketResult& sum = slot.batch.result;
    sum.digest += result.digest;
    sum.bad.insert(sum.bad.end(), result.bad.begin(), result.bad.end());
    ++slot.finished;
    is_due = front_is_due();
  }
  // With the lock held, the consumer would wake up only to wait for it.
  if (is_due) ready_.notify_all();
}

void Ring::fail(const Ticket& ticket, std::exception_ptr error) {
  // Dropped without the lock: an exception may hold objects that need locks of their own
  // (Python's).
  std::exception_ptr dropped;
  const MutexLock lock(mutex_);
  Slot& slot = *ticket.slot;
  ++slot.finished;
  if (!slot.error || ticket.number < slot.error_ticket) {
    dropped = std::exchange(slot.error, std::move(error));
    slot.error_ticket = ticket.number;
  }
  failed_ = true;
  room_.notify_all();
  if (front_is_due()) ready_.notify_all();
}

std::optional<PendingBatch> Ring::pop() {
  std::exception_ptr dropped;  // without the lock
  const MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  ++pops_;
  for (const auto& slot : slots_) ready_batches_ += is_ready(*slot) ? 1 : 0;
  if (begin_error_) {  // the caller may have given memory back
    dropped = std::exchange(begin_error_, nullptr);
    room_.notify_all();
  }
  if (!front_is_due()) {
    const Stopwatch waiting;
    while (!front_is_due()) ready_.wait(mutex_);
    consumer_waited_seconds_ += waiting.seconds();
  }
  if (slots_.empty() && !begin_error_) return std::nullopt;
  error_ = slots_.empty() ? begin_error_ : slots_.front()->error;
  if (error_) std::rethrow_exception(error_);
  PendingBatch batch = std::move(slots_.front()->batch);
  slots_.pop_front();
  room_.notify_all();
  return batch;
}

bool Ring::wait(std::chrono::milliseconds time) {
  const MutexLock lock(mutex_);
  const auto end = std::chrono::steady_clock::now() + time;
  const Stopwatch waiting;
  bool is_due = error_ || front_is_due();
  while (!is_due && std::chrono::steady_clock::now() < end) {
    ready_.wait_until(mutex_, end);
    is_due = front_is_due();
  }
  consumer_waited_seconds_ += waiting.seconds();
  return is_due;
}

double Ring::consumer_waited_seconds() const {
  const MutexLock lock(mutex_);
  return consumer_waited_seconds_;
}

double Ring::readers_waited_seconds() const {
  const MutexLock lock(mutex_);
  return readers_waited_seconds_;
}

std::int64_t Ring::ready_batches() const {
  const MutexLock lock(mutex_);
  return ready_batches_;
}

}  // namespace shardwise::detail
