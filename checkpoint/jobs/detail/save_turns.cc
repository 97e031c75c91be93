#include "shardwise/jobs/detail/save_turns.h"

#include <fmt/format.h>

#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {
namespace {

// Rank 0's byte, of at most this value, on all ranks.
template <class Decide>
unsigned byte_of_first(const Rendezvous& ranks, unsigned most, const Decide& decide) {
  const Bytes said = ranks.agree(
      nullptr, [&](const std::vector<Bytes>&) { return Bytes{static_cast<std::byte>(decide())}; });
  if (said.size() == 1 && std::to_integer<unsigned>(said[0]) <= most) {
    return std::to_integer<unsigned>(said[0]);
  }
  throw Error(
      ErrorCode::corrupt,
      fmt::format("save: found {} bytes, needed 1, at most {}, which says whether rank 0 saves",
                  said.size(), most));
}

}  // namespace

void Saving::end(std::exception_ptr failure) {
  {
    const MutexLock lock(mutex);
    error = std::move(failure);
    done = true;
  }
  changed.notify_all();
}

void Saving::wait_until_done() {
  while (!done) changed.wait(mutex);
}

SaveTurns::Turn SaveTurns::next(const Rendezvous& ranks) {
  if (when_busy_ == WhenBusy::wait) {
    finish();
    return Turn::now;
  }
  // In one byte: the number in bits 0 and 1, then a bit, then the turn.
  const unsigned said =
      byte_of_first(ranks, static_cast<unsigned>(Turn::skipped) << 3U | 7U, [this] {
        const Word word = own_word();
        return static_cast<unsigned>(word.ended) | (word.has_failed ? 4U : 0U) |
               static_cast<unsigned>(word.turn) << 3U;
      });
  const auto turn = static_cast<Turn>(said >> 3U);
  std::exception_ptr error;
  for (unsigned ended = 0; current_ && (ended < (said & 3U) || turn == Turn::now); ++ended) {
    const std::exception_ptr its = end_current(ranks.rank() == 0 ? errors_ : Errors::all);
    if (!error) error = its;
  }
  if ((said & 4U) != 0) {
    if (!error) {
      error = std::make_exception_ptr(
          Error(ErrorCode::cancelled, "save: the save before has failed on rank 0"));
    }
    throw EarlierSaveFailed{error};
  }
  if (turn == Turn::later) end_replaced();
  return turn;
}

// Rank 0's. If none has ended, the one that waits does not begin any more.
SaveTurns::Word SaveTurns::own_word() const {
  Word word;
  for (const auto* const saving : {&current_, &waiting_}) {
    if (!*saving) break;
    const MutexLock lock((*saving)->mutex);
    if (!(*saving)->done) {
      word.turn = when_busy_ == WhenBusy::skip ? Turn::skipped : Turn::later;
      (*saving)->next_is_replaced = saving == &current_ && waiting_;
      break;
    }
    ++word.ended;
    if ((*saving)->error && (errors_ == Errors::all || !(*saving)->error_seen))
      word.has_failed = true;
  }
  return word;
}

void SaveTurns::end_replaced() {
  while (const std::shared_ptr<Saving> replaced = waiting_) {
    const std::shared_ptr<Saving> before = current_;
    {
      const MutexLock lock(before->mutex);
      before->next_is_replaced = true;
    }
    before->changed.notify_all();
    wait_(*replaced);
    if (waiting_ == replaced) waiting_ = nullptr;
    const MutexLock lock(before->mutex);
    before->next_is_replaced = false;
  }
}

// Waits for its end; the one that waits, if there is one, takes its place. Gives its error if that
// is to be thrown.
std::exception_ptr SaveTurns::end_current(Errors errors) {
  const std::shared_ptr<Saving> last = current_;
  wait_(*last);
  if (current_ == last) current_ = std::exchange(waiting_, nullptr);
  const MutexLock lock(last->mutex);
  const bool was_seen = std::exchange(last->error_seen, true);
  return was_seen && errors == Errors::unseen ? nullptr : last->error;
}

void SaveTurns::add(std::shared_ptr<Saving> saving) {
  (current_ ? waiting_ : current_) = std::move(saving);
}

bool SaveTurns::has(const Saving& saving) const {
  return current_.get() == &saving || waiting_.get() == &saving;
}

void SaveTurns::finish() {
  while (current_) {
    if (const std::shared_ptr<Saving> last = waiting_) wait_(*last);  // ends last
    if (const std::exception_ptr error = end_current(errors_)) std::rethrow_exception(error);
  }
}

bool SaveTurns::may_begin(Saving* before, const Rendezvous& ranks) {
  bool begins = true;
  if (before != nullptr) {
    const MutexLock lock(before->mutex);
    while (!before->done && !before->next_is_replaced) before->changed.wait(before->mutex);
    begins = !before->next_is_replaced;
  }
  return byte_of_first(ranks, 1, [&] { return begins ? 1U : 0U; }) != 0;
}

}  // namespace shardwise::jobs_detail
