#include "shardwise/jobs/detail/policy/save_schedule.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {
namespace {

using std::chrono::nanoseconds;

// Bits that a process sends to the others.
constexpr std::byte kPreempted{1}, kRequested{2}, kIntervalOver{4};

// The part of a save that must be done before its speed predicts the rest.
constexpr double kLeastPart = 1.0 / 16;

// A save predicts the time of a much larger one only if it was not over at once: the time of a
// short save is mostly the fixed cost of any save.
constexpr double kMostRatio = 10, kLeastSeconds = 1;
constexpr std::size_t kLeastBytes = 1'000'000;

std::byte bits_of(const Bytes& said, std::size_t rank) {
  if (said.size() == 1) return said[0];
  throw Error(ErrorCode::corrupt,
              fmt::format("decide whether to save: found {} bytes from rank {}, needed 1",
                          said.size(), rank));
}

double seconds(nanoseconds time) { return std::chrono::duration<double>(time).count(); }

nanoseconds after(double seconds) {
  return std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace

SaveSchedule::SaveSchedule(const WhenOptions& rules, const std::string& what)
    : rules_(rules),
      clock_(rules.clock ? rules.clock : steady_clock()),
      signals_(rules.preemption_signals),
      last_begun_(clock_->now()) {
  const auto check = [&](const char* option, std::int64_t value) {
    if (value >= 0) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} is {}, needed 0 or more", what, option, value));
  };
  check("save_every", rules.every);
  check("save_interval", rules.interval.count());
  check("preemption_grace", rules.preemption_grace.count());
}

bool SaveSchedule::should_save(std::int64_t step, const Rendezvous& ranks, bool is_told) {
  const auto own = [&] {
    std::byte bits{};
    if (is_told || signals_.age()) bits |= kPreempted;
    if (requested_) bits |= kRequested;
    if (rules_.interval.count() > 0) {
      const MutexLock lock(mutex_);
      if (clock_->now() - last_begun_ >= rules_.interval) bits |= kIntervalOver;
    }
    return Bytes{bits};
  };
  const auto merged = [](const std::vector<Bytes>& said) {
    std::byte all = bits_of(said[0], 0) & kIntervalOver;  // rank 0's clock counts
    for (std::size_t rank = 0; rank < said.size(); ++rank) {
      all |= bits_of(said[rank], rank) & (kPreempted | kRequested);
    }
    return Bytes{all};
  };
  const std::byte all = bits_of(ranks.agree(own, merged), 0);
  const bool is_preempted = (all & kPreempted) != std::byte{};
  preempted_ = preempted_ || is_preempted;
  if ((all & kRequested) != std::byte{}) requested_ = false;
  return all != std::byte{} || (rules_.every > 0 && step % rules_.every == 0);
}

std::optional<nanoseconds> SaveSchedule::time_left() const {
  if (rules_.preemption_grace.count() == 0) return std::nullopt;
  const std::optional<nanoseconds> age = signals_.age();
  if (!age) return std::nullopt;
  return nanoseconds(rules_.preemption_grace) - *age;
}

void SaveSchedule::refuse(std::int64_t step, nanoseconds needed, nanoseconds left) const {
  throw Error(ErrorCode::cancelled,
              fmt::format("save step {}: the process ends in {:.1f} s, needed are about {:.1f} s",
                          step, std::max(0.0, seconds(left)), seconds(needed)));
}

void SaveSchedule::begin(std::int64_t step, std::size_t bytes) {
  const MutexLock lock(mutex_);
  last_begun_ = clock_->now();
  const double ratio =
      last_bytes_ > 0 ? static_cast<double>(bytes) / static_cast<double>(last_bytes_) : 0;
  const bool can_tell =
      ratio <= kMostRatio || (last_seconds_ >= kLeastSeconds && last_bytes_ >= kLeastBytes);
  const nanoseconds needed = after(can_tell ? last_seconds_ * ratio : 0);
  if (const auto time = time_left(); time && needed >= *time) refuse(step, needed, *time);
}

ProgressFunction SaveSchedule::watch(std::int64_t step, ProgressFunction own) const {
  if (signals_.empty() || rules_.preemption_grace.count() == 0) return own;
  const nanoseconds begun = clock_->now();
  return [this, step, begun, own = std::move(own)](const Progress& progress) {
    const auto done = static_cast<double>(progress.done_bytes);
    const auto rest = static_cast<double>(progress.total_bytes) - done;
    if (const auto time = time_left(); time && rest > 0) {
      const bool can_tell = done >= kLeastPart * (done + rest);
      const double spent = seconds(clock_->now() - begun);
      const nanoseconds needed = can_tell ? after(spent / done * rest) : nanoseconds();
      if (needed >= *time) refuse(step, needed, *time);
    }
    if (own) own(progress);
  };
}

void SaveSchedule::end(std::size_t bytes, double seconds) {
  const MutexLock lock(mutex_);
  if (seconds <= 0) return;
  last_bytes_ = bytes;
  last_seconds_ = seconds;
}

}  // namespace shardwise::jobs_detail
