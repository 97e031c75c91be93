#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise {

/// Tasks, and the other tasks that each must wait for. Executor::run() gets the tasks' work. A task
/// never blocks: it starts when the tasks before it have ended, so any number of workers, even one,
/// finishes any graph. Running does not change a graph, so it can run again.
///
/// Thread-compatible.
///
///   TaskGraph graph;
///   const auto a = graph.add();
///   const auto b = graph.add({a});                           // after a
///   executor.run(graph, [](TaskGraph::TaskId task) { ... });
class TaskGraph {
 public:
  /// Tasks are numbered from 0 on, in the order of adding.
  using TaskId = std::int64_t;

  /// A task can only follow tasks that were added before, so there are no cycles. Naming one twice
  /// is harmless. Throws invalid_argument for an unknown task.
  TaskId add(std::span<const TaskId> after = {});
  TaskId add(std::initializer_list<TaskId> after) {
    return add(std::span<const TaskId>(after.begin(), after.size()));
  }

  /// Adds something that happens outside: no body is called for it, and Executor::run() is told
  /// when it has happened. It follows no task.
  TaskId add_event();

  std::int64_t size() const { return static_cast<std::int64_t>(tasks_.size()); }

  /// The tasks that follow this one, in the order of their numbers. Requires 0 <= task < size().
  std::vector<TaskId> followers(TaskId task) const;

 private:
  friend class Executor;
  static constexpr std::int64_t kNone = -1;
  struct Task {
    std::int64_t waits_for = 0;                          // number of tasks
    std::int64_t first_edge = kNone, last_edge = kNone;  // to the tasks that wait for it
  };
  struct Edge {
    TaskId follower;
    std::int64_t next;  // edge of the same task
  };
  std::int64_t events_ = 0;
  std::vector<Task> tasks_;
  std::vector<Edge> edges_;
};

/// The only entry to parallel computing: a fixed number of workers over oneTBB.
///
/// Bodies compute and never wait: no I/O, no locks held long, no future.get(). They may call
/// parallel_for() and run() themselves. The first exception of a body stops all bodies that have
/// not started, and reaches the caller with its type.
///
/// oneTBB has one pool for the process, of a worker per core. An executor of more threads than that
/// raises the limit (tbb::global_control) while it lives. If several do, or the program itself sets
/// a limit, the smallest one holds for all: some calls then run on fewer threads than threads()
/// says, with the same results.
///
/// Thread-safe: calls from several threads share the workers.
class Executor {
 public:
  /// The calling thread is one of them. `threads` = 0 takes one for each core of the machine.
  /// Throws invalid_argument if negative.
  explicit Executor(int threads = 0);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  int threads() const;

  /// The number of threads of an executor made with `threads`. Throws as the constructor.
  static int threads_for(int threads);

  /// Calls body(i) once for each 0 <= i < count, in any order, and returns when all have ended.
  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) const;

  /// Calls body(task) once for each task of the graph, after the calls for the tasks it waits for
  /// have returned, and returns when all have. Allocates once per run, not per task.
  void run(const TaskGraph& graph, const std::function<void(TaskGraph::TaskId)>& body) const {
    run(graph, body, nullptr);
  }

  /// Returns an event that has happened, or nothing after a short wait. Each event once. `is_idle`:
  /// no body runs or can run until an event happens.
  using NextEvent = std::function<std::optional<TaskGraph::TaskId>(bool is_idle)>;

  /// The same for a graph with events. A worker without a task asks for the next event, one worker
  /// at a time. An exception from next_event ends the run like one from a body. Throws
  /// invalid_argument if the graph has events, and no next_event is given.
  void run(const TaskGraph& graph, const std::function<void(TaskGraph::TaskId)>& body,
           const NextEvent& next_event) const;

 private:
  class GraphRun;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwise
