#include "shardwise/runtime/parallel.h"

#include <fmt/format.h>
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <atomic>
#include <optional>
#include <utility>

#include "shardwise/shard/error.h"

// ThreadSanitizer cannot see into Debian's libtbb, which is not instrumented. So this file is
// compiled without instrumentation too, and reports the order of events by hand.
// runtime/CMakeLists.txt sets the macro in sanitizer builds.
#if defined(SHARDWISE_TSAN)
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
// If threads of the caller come and go, libtbb clears its own memory with memset, which is
// intercepted. This suppresses calls straight out of that library; bodies are not affected.
const char* __tsan_default_suppressions() { return "called_from_lib:libtbb.so\n"; }
}
#endif

namespace shardwise {
namespace {

/// All actions of this thread so far happen before all that follow acquire() of the same address.
void release([[maybe_unused]] void* address) {
#if defined(SHARDWISE_TSAN)
  __tsan_release(address);
#endif
}

void acquire([[maybe_unused]] void* address) {
#if defined(SHARDWISE_TSAN)
  __tsan_acquire(address);
#endif
}

/// Orders the caller's work before the fork, the bodies, and the caller's work after the join;
/// bodies are not ordered among themselves. Made and dropped on the caller's thread. Thread-safe.
class ForkJoin {
 public:
  ForkJoin() { release(&fork_); }
  ~ForkJoin() { acquire(&join_); }
  ForkJoin(const ForkJoin&) = delete;
  ForkJoin& operator=(const ForkJoin&) = delete;

  /// Spans a body's run, also if it throws.
  class Body {
   public:
    explicit Body(ForkJoin& all) : all_(all) { acquire(&all_.fork_); }
    ~Body() { release(&all_.join_); }
    Body(const Body&) = delete;
    Body& operator=(const Body&) = delete;

   private:
    ForkJoin& all_;
  };

 private:
  char fork_ = 0, join_ = 0;  // only their addresses matter
};

}  // namespace

/// One run of a task graph. Each task counts the tasks that it still waits for. Thread-safe.
class Executor::GraphRun {
 public:
  using TaskId = TaskGraph::TaskId;

  GraphRun(const TaskGraph& graph, const std::function<void(TaskId)>& body,
           const NextEvent& next_event, int threads, ForkJoin& fork_join)
      : graph_(graph),
        body_(body),
        next_event_(next_event),
        threads_(threads),
        fork_join_(fork_join),
        events_left_(graph.events_),
        waits_for_(std::make_unique<std::atomic<std::int64_t>[]>(graph.tasks_.size())),
        group_(context_) {
    for (TaskId id = 0; id < graph.size(); ++id) {
      counter(id).store(task(id).waits_for, std::memory_order_relaxed);
    }
  }

  void run() {
    for (TaskId id = 0; id < graph_.size(); ++id) {
      if (task(id).waits_for == 0) spawn(id);
    }
    if (events_left_ > 0) group_.run([this] { work(kNone); });
    group_.wait();
  }

 private:
  static constexpr TaskId kNone = TaskGraph::kNone;

  void spawn(TaskId id) {
    if (graph_.events_ == 0) {
      group_.run([this, id] { work(id); });
      return;
    }
    ++active_;
    ++ready_;
    group_.run([this, id] {
      --ready_;
      if (threads_ > 1 && can_ask() && !is_asking_ && !is_offered_.exchange(true)) {
        // Another worker may ask at the same time.
        group_.run([this] {
          is_offered_ = false;
          work(kNone);
        });
      }
      work(id);
    });
  }

  /// There may be fewer workers than threads, so asking for events must not keep a task from
  /// running.
  bool can_ask() const { return events_left_ > 0 && ready_ == 0; }

  /// Runs a task, then tasks that it makes ready, then those that events make ready while this
  /// worker has nothing else to do.
  void work(TaskId id) {
    while (!context_.is_group_execution_cancelled()) {
      if (id != kNone) {
        // The first follower that becomes ready runs right here, while its data is in this core's
        // cache. This is a loop, so that a chain of any length takes no stack.
        id = run_one(id);
        if (id != kNone) continue;
        if (graph_.events_ == 0) return;
        --active_;
      }
      // Workers check again after asking and after each task, so that an idle worker always asks.
      if (!can_ask() || is_asking_.exchange(true)) return;
      id = next_ready();
    }
  }

  /// Asks for an event, and returns a task that it made ready, if any. Releases is_asking_.
  TaskId next_ready() {
    std::optional<TaskId> event;
    {
      const ForkJoin::Body body(fork_join_);
      acquire(&is_asking_);
      event = next_event_(active_ == 0);
      if (event) for_each_follower(*event, [&](TaskId follower) { release(&counter(follower)); });
      release(&is_asking_);
    }
    TaskId next = kNone;
    if (event) {
      --events_left_;
      next = follow(*event);
      if (next != kNone) ++active_;
    }
    is_asking_ = false;
    return next;
  }

  TaskId run_one(TaskId id) {
    {
      const ForkJoin::Body body(fork_join_);
      acquire(&counter(id));
      body_(id);
      for_each_follower(id, [&](TaskId follower) { release(&counter(follower)); });
    }
    return follow(id);
  }

  /// Starts the tasks that become ready, except for one, which it returns.
  TaskId follow(TaskId id) {
    TaskId next = kNone;
    for_each_follower(id, [&](TaskId follower) {
      if (counter(follower).fetch_sub(1) != 1) return;
      if (next == kNone) {
        next = follower;
      } else {
        spawn(follower);
      }
    });
    return next;
  }

  template <class Function>
  void for_each_follower(TaskId id, const Function& function) const {
    for (std::int64_t edge = task(id).first_edge; edge != kNone;) {
      const TaskGraph::Edge& at = graph_.edges_[static_cast<std::size_t>(edge)];
      edge = at.next;
      function(at.follower);
    }
  }

  const TaskGraph::Task& task(TaskId id) const {
    return graph_.tasks_[static_cast<std::size_t>(id)];
  }
  std::atomic<std::int64_t>& counter(TaskId id) { return waits_for_[static_cast<std::size_t>(id)]; }

  const TaskGraph& graph_;
  const std::function<void(TaskId)>& body_;
  const NextEvent& next_event_;
  const int threads_;
  ForkJoin& fork_join_;
  // For graphs with events:
  std::atomic<std::int64_t> active_ = 0;  // tasks that run or can run
  std::atomic<std::int64_t> ready_ = 0;   // tasks that can run
  std::atomic<std::int64_t> events_left_;
  std::atomic<bool> is_asking_ = false;   // a worker asks for the next event
  std::atomic<bool> is_offered_ = false;  // a worker without a task may ask for it
  std::unique_ptr<std::atomic<std::int64_t>[]> waits_for_;
  // Isolated: an exception in an outer loop must not make an inner one return half done.
  tbb::task_group_context context_{tbb::task_group_context::isolated};
  tbb::task_group group_;
};

TaskGraph::TaskId TaskGraph::add(std::span<const TaskId> after) {
  const TaskId id = size();
  for (const TaskId before : after) {
    if (before < 0 || before >= id) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format(
              "add a task: task {} cannot come after task {}, needed one of the {} added before",
              id, before, id));
    }
  }
  tasks_.push_back({.waits_for = static_cast<std::int64_t>(after.size())});
  for (const TaskId before : after) {
    Task& task = tasks_[static_cast<std::size_t>(before)];
    const auto edge = static_cast<std::int64_t>(edges_.size());
    edges_.push_back({id, kNone});
    (task.first_edge == kNone ? task.first_edge
                              : edges_[static_cast<std::size_t>(task.last_edge)].next) = edge;
    task.last_edge = edge;
  }
  return id;
}

TaskGraph::TaskId TaskGraph::add_event() {
  const TaskId id = size();
  tasks_.push_back({.waits_for = 1});
  ++events_;
  return id;
}

std::vector<TaskGraph::TaskId> TaskGraph::followers(TaskId task) const {
  std::vector<TaskId> ids;
  for (std::int64_t edge = tasks_[static_cast<std::size_t>(task)].first_edge; edge != kNone;
       edge = edges_[static_cast<std::size_t>(edge)].next) {
    ids.push_back(edges_[static_cast<std::size_t>(edge)].follower);
  }
  return ids;
}

struct Executor::Impl {
  explicit Impl(int count) : threads(count), arena(count) {
    // TBB makes one worker per core unless more are allowed. If several executors want more, the
    // smallest limit holds for all: that costs speed, not correctness.
    if (threads > tbb::info::default_concurrency()) {
      more_threads.emplace(tbb::global_control::max_allowed_parallelism,
                           static_cast<std::size_t>(threads));
    }
  }

  int threads;
  std::optional<tbb::global_control> more_threads;
  tbb::task_arena arena;
};

int Executor::threads_for(int threads) {
  if (threads < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("make an executor: found {} threads, needed 0 (one per core) or more",
                            threads));
  }
  return threads == 0 ? tbb::info::default_concurrency() : threads;
}

Executor::Executor(int threads) : impl_(std::make_unique<Impl>(threads_for(threads))) {}

Executor::~Executor() = default;

int Executor::threads() const { return impl_->threads; }

// Both entries isolate their wait: a thread that waits for an inner loop must not pick up a task of
// the outer one, which could want a lock that this thread holds, or nest without end.

void Executor::parallel_for(std::int64_t count,
                            const std::function<void(std::int64_t)>& body) const {
  if (count <= 0) return;
  ForkJoin fork_join;
  tbb::task_group_context context(tbb::task_group_context::isolated);
  const auto run_range = [&](const tbb::blocked_range<std::int64_t>& range) {
    const ForkJoin::Body guard(fork_join);
    for (std::int64_t i = range.begin(); i != range.end(); ++i) {
      if (context.is_group_execution_cancelled()) return;
      body(i);
    }
  };
  impl_->arena.execute([&] {
    tbb::this_task_arena::isolate([&] {
      tbb::parallel_for(tbb::blocked_range<std::int64_t>(0, count), run_range,
                        tbb::auto_partitioner(), context);
    });
  });
}

void Executor::run(const TaskGraph& graph, const std::function<void(TaskGraph::TaskId)>& body,
                   const NextEvent& next_event) const {
  if (graph.events_ > 0 && !next_event) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("run a task graph of {} events: found nothing that says when they have "
                            "happened, needed next_event",
                            graph.events_));
  }
  ForkJoin fork_join;
  impl_->arena.execute([&] {
    tbb::this_task_arena::isolate(
        [&] { GraphRun(graph, body, next_event, threads(), fork_join).run(); });
  });
}

}  // namespace shardwise
