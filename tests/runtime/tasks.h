#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "shardwise/runtime/parallel.h"

namespace shardwise {

/// A task graph with the functions of its tasks.
class Tasks {
 public:
  using TaskId = TaskGraph::TaskId;

  TaskId add(std::function<void()> body, std::span<const TaskId> after = {}) {
    const TaskId id = graph_.add(after);
    bodies_.push_back(std::move(body));
    return id;
  }
  TaskId add(std::function<void()> body, std::initializer_list<TaskId> after) {
    return add(std::move(body), std::span<const TaskId>(after.begin(), after.size()));
  }

  void run(const Executor& executor) const {
    executor.run(graph_, [this](TaskId id) { bodies_[static_cast<std::size_t>(id)](); });
  }

  const TaskGraph& graph() const { return graph_; }

 private:
  TaskGraph graph_;
  std::vector<std::function<void()>> bodies_;
};

}  // namespace shardwise
