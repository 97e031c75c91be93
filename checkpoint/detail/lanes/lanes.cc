#include "shardwise/checkpoint/detail/lanes/lanes.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace shardwise::detail {
namespace {

// Progress is reported so many times, as each time wakes the caller's thread, which takes a core
// from the lanes (chunk by chunk, a restore from the page cache took a twentieth longer); and more
// often if that many jobs would pass in between: a caller ends the work by throwing there.
constexpr std::size_t kReports = 100, kMostUnreported = 64;

/// One call of run_lanes. Thread-safe.
class Lanes {
 public:
  explicit Lanes(const LaneWork& work) : work_(work) {}

  void run();

 private:
  void run_alone();
  void start(std::vector<std::jthread>& threads);
  void lane(std::size_t number);
  void end_of(std::size_t job, const std::exception_ptr& error);
  bool wait_for_progress();

  /// No further job is begun.
  void stop() { next_ = work_.jobs; }

  const LaneWork& work_;
  std::atomic<std::size_t> next_{0};

  Mutex mutex_;
  CondVar changed_;
  std::size_t running_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  std::size_t ended_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  bool advanced_ SHARDWISE_GUARDED_BY(mutex_) = false;
  std::size_t failed_ SHARDWISE_GUARDED_BY(mutex_) = SIZE_MAX;
  std::exception_ptr error_ SHARDWISE_GUARDED_BY(mutex_);
};

// Jobs are begun in their order, so when all that were begun have ended, the first one that failed
// is known.
void Lanes::lane(std::size_t number) {
  for (;;) {
    const std::size_t job = next_++;
    if (job >= work_.jobs) break;
    std::exception_ptr error;
    try {
      work_.run(job, number);
    } catch (...) {
      error = std::current_exception();
      stop();
    }
    end_of(job, error);
  }
  const MutexLock lock(mutex_);
  --running_;
  changed_.notify_all();
}

void Lanes::end_of(std::size_t job, const std::exception_ptr& error) {
  const MutexLock lock(mutex_);
  if (error && job < failed_) {
    error_ = error;
    failed_ = job;
  }
  if (!work_.progress) return;  // the caller's thread sleeps until the end
  const std::size_t step = std::min(work_.jobs / kReports + 1, kMostUnreported);
  if (++ended_ % step != 0 && ended_ != work_.jobs) return;
  advanced_ = true;
  changed_.notify_all();
}

// False when no lane runs any more and nothing has happened since the last call.
bool Lanes::wait_for_progress() {
  const MutexLock lock(mutex_);
  while (running_ != 0 && !advanced_) changed_.wait(mutex_);
  return std::exchange(advanced_, false);
}

void Lanes::run_alone() {
  for (std::size_t job = 0; job < work_.jobs; ++job) {
    work_.run(job, 0);
    if (work_.progress) work_.progress();
  }
}

// As many as there are lanes, or as the system has left: those do all the jobs.
void Lanes::start(std::vector<std::jthread>& threads) {
  const std::size_t wanted = std::min(work_.lanes, work_.jobs);
  threads.reserve(wanted);
  while (threads.size() < wanted) {
    {
      const MutexLock lock(mutex_);
      ++running_;
    }
    try {
      threads.emplace_back([this, number = threads.size()] { lane(number); });
    } catch (const std::system_error&) {
      const MutexLock lock(mutex_);
      --running_;
      return;
    }
  }
}

void Lanes::run() {
  // Nothing to overlap: a thread would only cost its start.
  if (work_.lanes <= 1 || work_.jobs <= 1) return run_alone();
  {
    std::vector<std::jthread> threads;
    // Destroyed before the threads are joined: whatever is thrown here, they find no more jobs.
    struct Stop {
      Lanes& lanes;
      ~Stop() { lanes.stop(); }
    };
    const Stop at_end{*this};
    start(threads);
    if (threads.empty()) return run_alone();
    while (wait_for_progress()) {
      if (work_.progress) work_.progress();
    }
  }
  const MutexLock lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

}  // namespace

void LaneSlots::take() {
  const MutexLock lock(mutex_);
  while (free_ == 0) given_back_.wait(mutex_);
  --free_;
}

void LaneSlots::give_back() {
  {
    const MutexLock lock(mutex_);
    ++free_;
  }
  given_back_.notify_one();
}

void run_lanes(const LaneWork& work) { Lanes(work).run(); }

void run_both(const std::function<void()>& first, const std::function<void()>& second) {
  run_lanes({.jobs = 2, .lanes = 2, .run = [&](std::size_t job, std::size_t /*lane*/) {
               (job == 0 ? first : second)();
             }});
}

}  // namespace shardwise::detail
