#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace shardwise::detail {

/// Adds up the time that one thread spends in each stage of its work. Time in a nested stage does
/// not count for the stages around it. Thread-compatible.
class StageClock {
 public:
  /// The clock that runs on this thread; null on most threads.
  static constinit inline thread_local StageClock* current = nullptr;

  struct Total {
    const char* stage;
    std::int64_t nanoseconds;
  };

  /// Requires text that lives as long as the clock; stages are distinguished by its content.
  void enter(const char* stage);
  void leave();

  std::span<const Total> totals() const { return {totals_.data(), count_}; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostStages = 32, kMostNested = 16;

  void charge();

  std::array<Total, kMostStages> totals_{};  // further stages are not counted
  std::array<std::size_t, kMostNested> open_{};
  std::size_t count_ = 0, depth_ = 0;
  Clock::time_point last_;
};

/// Counts its scope as time of a stage, if a clock runs on this thread; else it costs a look at a
/// variable. Sources and stages use it, too.
///
///   const StageTimer timer("decode");
class StageTimer {
 public:
  explicit StageTimer(const char* stage) : clock_(StageClock::current) {
    if (clock_ != nullptr) clock_->enter(stage);
  }
  ~StageTimer() {
    if (clock_ != nullptr) clock_->leave();
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  StageClock* const clock_;
};

/// Lets a clock run on this thread for a scope; null: none.
class RunningClock {
 public:
  explicit RunningClock(StageClock* clock) { StageClock::current = clock; }
  ~RunningClock() { StageClock::current = nullptr; }
  RunningClock(const RunningClock&) = delete;
  RunningClock& operator=(const RunningClock&) = delete;
};

}  // namespace shardwise::detail
