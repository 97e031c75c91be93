#include "shardwise/loader/stages/detail/parallel_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr int kMostChunkThreads = 1024;

// Chunks are taken in rising order, and every chunk that is taken is finished. So if one fails, all
// below it have been or will be tried.
class ChunkRun {
 public:
  using Body = std::function<void(std::int64_t, std::int64_t)>;

  ChunkRun(std::int64_t total, std::int64_t chunk, const Body& progress, const Body& body)
      : total_(total), chunk_(chunk), progress_(progress), body_(body) {}

  void work() {
    for (;;) {
      std::int64_t begin = 0;
      {
        const std::lock_guard lock(mutex_);
        if (error_ || progress_error_ || next_ >= total_) return;
        begin = next_;
        next_ = total_ - begin > chunk_ ? begin + chunk_ : total_;
      }
      const std::int64_t end = total_ - begin > chunk_ ? begin + chunk_ : total_;
      try {
        body_(begin, end);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (begin < error_begin_) {
          error_begin_ = begin;
          error_ = std::current_exception();
        }
        return;
      }
      report(end - begin);
    }
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
    if (progress_error_) std::rethrow_exception(progress_error_);
  }

 private:
  void report(std::int64_t count) {
    const std::lock_guard lock(mutex_);
    done_ += count;
    if (!progress_ || progress_error_) return;
    try {
      progress_(done_, total_);
    } catch (...) {
      progress_error_ = std::current_exception();
    }
  }

  const std::int64_t total_, chunk_;
  const Body& progress_;
  const Body& body_;
  std::mutex mutex_;
  std::int64_t next_ = 0, done_ = 0;
  std::int64_t error_begin_ = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr error_, progress_error_;
};

}  // namespace

void for_each_chunk(std::int64_t total, std::int64_t chunk, int threads,
                    const std::function<void(std::int64_t, std::int64_t)>& progress,
                    const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (threads < 1 || threads > kMostChunkThreads) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("threads is {}, needed is 1 to {}", threads, kMostChunkThreads));
  }
  ChunkRun run(total, chunk, progress, body);
  const std::int64_t chunks = total / chunk + (total % chunk != 0 ? 1 : 0);
  {
    std::vector<std::jthread> others;
    const std::int64_t most = std::min<std::int64_t>(threads, chunks);
    others.reserve(static_cast<std::size_t>(most));
    for (std::int64_t i = 1; i < most; ++i) others.emplace_back([&run] { run.work(); });
    run.work();
  }
  run.rethrow();
}

}  // namespace shardwise::detail
