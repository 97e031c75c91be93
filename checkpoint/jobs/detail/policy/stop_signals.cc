#include "shardwise/jobs/detail/policy/stop_signals.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <span>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::jobs_detail {
namespace {

constexpr std::size_t kMostSignals = 65;

// When each signal came first since somebody asked for it last, by the steady clock in nanoseconds;
// 0: never.
std::array<std::atomic<std::int64_t>, kMostSignals> came;
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

// The earlier action of a signal, and the number of objects that ask for it.
struct Handled {
  struct sigaction before = {};
  int count = 0;
};
Mutex mutex;
std::array<Handled, kMostSignals> handled SHARDWISE_GUARDED_BY(mutex);

// The newest of those that ask.
StopSignals* newest_asker SHARDWISE_GUARDED_BY(mutex) = nullptr;

// Calls nothing but clock_gettime, which a handler may.
void note(int signal) {
  const int error = errno;
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  std::int64_t never = 0;
  came[static_cast<std::size_t>(signal)].compare_exchange_strong(
      never, std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
  errno = error;
}

void give_back(std::span<const int> signals) SHARDWISE_REQUIRES(mutex) {
  for (const int signal : signals) {
    Handled& one = handled[static_cast<std::size_t>(signal)];
    if (--one.count == 0) ::sigaction(signal, &one.before, nullptr);
  }
}

}  // namespace

StopSignals::StopSignals(const std::vector<int>& signals) {
  const MutexLock lock(mutex);
  for (const int signal : signals) {
    const bool known = signal > 0 && signal < static_cast<int>(kMostSignals);
    struct sigaction action = {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    const auto i = static_cast<std::size_t>(signal);
    const bool is_first = known && handled[i].count == 0;
    // Signals that came earlier are for earlier objects; this one hears of the next.
    const std::int64_t time = known ? came[i].exchange(0) : 0;
    for (StopSignals* other = newest_asker; other != nullptr; other = other->next_) {
      other->take(signal, time);
    }
    if (!known || (is_first && ::sigaction(signal, &action, &handled[i].before) != 0)) {
      give_back(signals_);
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("stop signals: found {}, needed is a signal that can be handled, such "
                      "as SIGTERM",
                      signal));
    }
    ++handled[i].count;
    signals_.push_back(signal);
    take(signal, time);
  }
  next_ = std::exchange(newest_asker, this);
}

StopSignals::~StopSignals() {
  const MutexLock lock(mutex);
  give_back(signals_);
  StopSignals** place = &newest_asker;
  while (*place != this) place = &(*place)->next_;
  *place = next_;
}

// Notes the first signal that came after this was made.
void StopSignals::take(int signal, std::int64_t time) {
  const bool is_asked = std::ranges::find(signals_, signal) != signals_.end();
  if (!is_asked || time < made_.time_since_epoch().count()) return;
  if (first_ == 0 || time < first_) first_ = time;
}

std::optional<std::chrono::nanoseconds> StopSignals::age() const {
  const MutexLock lock(mutex);
  std::int64_t first = first_;
  for (const int signal : signals_) {
    const std::int64_t time = came[static_cast<std::size_t>(signal)];
    if (time >= made_.time_since_epoch().count() && (first == 0 || time < first)) first = time;
  }
  if (first == 0) return std::nullopt;
  return std::chrono::steady_clock::now().time_since_epoch() - std::chrono::nanoseconds(first);
}

}  // namespace shardwise::jobs_detail
