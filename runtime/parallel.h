#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

namespace shardwise {

/// Tasks and what each must wait for. A task never blocks: it is started when the tasks it comes
/// after have ended, so any number of workers, even one, finishes any graph.
///
/// Thread-compatible.
///
///   TaskGraph graph;
///   const auto a = graph.add([] { ... });
///   graph.add([] { ... }, {a});                  // after a
///   executor.run(std::move(graph));
class TaskGraph {
 public:
  using TaskId = std::int64_t;

  /// Tasks can only come after tasks that were added before, so there are no cycles. Throws
  /// invalid_argument for an unknown task.
  TaskId add(std::function<void()> body, std::span<const TaskId> after = {});
  TaskId add(std::function<void()> body, std::initializer_list<TaskId> after) {
    return add(std::move(body), std::span<const TaskId>(after.begin(), after.size()));
  }

  std::int64_t size() const { return static_cast<std::int64_t>(tasks_.size()); }

 private:
  friend class Executor;
  struct Task {
    std::function<void()> body;
    std::vector<TaskId> followers;
    std::int64_t waits_for = 0;
  };
  std::vector<Task> tasks_;
};

/// The one door to parallel computing: a fixed number of workers over oneTBB.
///
/// Bodies compute and never wait: no I/O, no locks held long, no future.get(). They may call
/// parallel_for() and run() themselves. The first exception that a body throws stops what has not
/// started, and reaches the caller with its type.
///
/// oneTBB has one pool for the process, of a worker per core. An executor of more threads than that
/// raises the limit (tbb::global_control) while it lives; where several do, or the program itself
/// sets one, the smallest limit holds for all: some calls then run on fewer threads than threads()
/// says, with the same results.
///
/// Thread-safe: calls from several threads share the workers.
class Executor {
 public:
  /// The calling thread is one of them. `threads` = 0 takes as many as the machine has cores.
  /// Throws invalid_argument if negative.
  explicit Executor(int threads = 0);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  int threads() const;

  /// Calls body(i) once for each 0 <= i < count, in any order, and returns when all have ended.
  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) const;

  /// Runs each task after those it waits for, and returns when all have ended.
  void run(TaskGraph graph) const;

 private:
  class GraphRun;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwise
