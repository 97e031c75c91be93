#include "shardwise/storage/rate_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <thread>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/forwarding_file_system.h"

namespace shardwise {
namespace {

using std::chrono::nanoseconds;

class SteadyClock final : public Clock {
 public:
  nanoseconds now() override {
    return std::chrono::duration_cast<nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
  }
  void wait_until(nanoseconds time) override {
    std::this_thread::sleep_until(std::chrono::steady_clock::time_point(time));
  }
};

class LimitedFile final : public ForwardingFile {
 public:
  LimitedFile(std::unique_ptr<File> real, std::shared_ptr<RateLimiter> limiter)
      : ForwardingFile(std::move(real)), limiter_(std::move(limiter)) {}

  void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
    limiter_->admit(size);
    real().write_at(offset, data, size);
  }
  void write_runs(std::uint64_t offset, std::span<const WriteRun> runs) override {
    std::uint64_t bytes = 0;
    for (const WriteRun& run : runs) bytes += run.size;
    limiter_->admit(bytes);
    real().write_runs(offset, runs);
  }

 private:
  std::shared_ptr<RateLimiter> limiter_;
};

class LimitedFileSystem final : public ForwardingFileSystem {
 public:
  LimitedFileSystem(std::shared_ptr<FileSystem> real, std::shared_ptr<RateLimiter> limiter)
      : ForwardingFileSystem(std::move(real)), limiter_(std::move(limiter)) {}

 private:
  std::unique_ptr<File> wrapped(std::unique_ptr<File> file,
                                const std::filesystem::path& /*path*/) override {
    return std::make_unique<LimitedFile>(std::move(file), limiter_);
  }

  std::shared_ptr<RateLimiter> limiter_;
};

}  // namespace

std::shared_ptr<Clock> steady_clock() {
  static const auto clock = std::make_shared<SteadyClock>();
  return clock;
}

/// `free` is shared under the mutex; the rest is immutable.
struct RateLimiter::State {
  std::int64_t bytes_per_second;
  std::shared_ptr<Clock> clock;
  Mutex mutex;
  nanoseconds free
      SHARDWISE_GUARDED_BY(mutex);  // when the bytes admitted so far have used up their time
};

RateLimiter::RateLimiter(std::int64_t bytes_per_second, std::shared_ptr<Clock> clock) {
  if (bytes_per_second < 1) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("limit writes: found {} bytes a second, needed 1 or more", bytes_per_second));
  }
  state_ = std::make_unique<State>();
  state_->bytes_per_second = bytes_per_second;
  state_->free = clock->now();
  state_->clock = std::move(clock);
}

RateLimiter::~RateLimiter() = default;

void RateLimiter::admit(std::uint64_t bytes) {
  const double seconds = static_cast<double>(bytes) / static_cast<double>(state_->bytes_per_second);
  nanoseconds turn{};
  {
    const MutexLock lock(state_->mutex);
    turn = std::max(state_->free, state_->clock->now());
    state_->free = turn + std::chrono::ceil<nanoseconds>(std::chrono::duration<double>(seconds));
  }
  state_->clock->wait_until(turn);
}

std::shared_ptr<FileSystem> rate_limited(std::shared_ptr<FileSystem> file_system,
                                         std::shared_ptr<RateLimiter> limiter) {
  return std::make_shared<LimitedFileSystem>(std::move(file_system), std::move(limiter));
}

}  // namespace shardwise
