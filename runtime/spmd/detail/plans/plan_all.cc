#include "shardwise/runtime/spmd/detail/plans/plan_all.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "shardwise/runtime/parallel.h"

namespace shardwise::detail {
namespace {

// A plan of a large program takes some hundred megabytes.
constexpr int kMostThreads = 8;

}  // namespace

void plan_all(std::int64_t count, const CompareOptions& options,
              const std::function<void(std::int64_t)>& plan, std::int64_t before, std::int64_t of) {
  const Executor executor(options.threads != 0 ? options.threads
                                               : std::min(Executor::threads_for(0), kMostThreads));
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<std::int64_t> done = before;
  executor.parallel_for(count, [&](std::int64_t i) {
    plan(i);
    const std::int64_t now = ++done;
    if (options.progress && std::this_thread::get_id() == caller) options.progress(now, of);
  });
}

}  // namespace shardwise::detail
