#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "shardwise/runtime/parallel.h"
#include "shardwise/runtime/program/detail/program.h"

namespace shardwise {

class Devices;
namespace detail {
class ProcessSchedule;
}

/// One device's part of a step.
struct ProgramTask {
  std::size_t step;           ///< of the program
  std::int64_t position;      ///< mesh position whose shards it fills or sends
  std::size_t phase = 0;      ///< of a move
  std::size_t group = 0;      ///< of the phase
  std::int64_t target = 0;    ///< of the group's plan
  std::int64_t message = -1;  ///< the outgoing message that it only sends; -1: none
};

/// Values of a program that get memory of earlier values: the task that makes such a value waits
/// for all users of the earlier ones. By value; the same at each mesh position.
using MemoryReuse = std::vector<std::vector<Program::ValueId>>;

/// Defines which parts of a program may run at the same time: a task for each device of each step
/// waits only for the tasks that make its operands. Built once, run as often as wanted. Immutable.
class Schedule {
 public:
  /// The steps from `first_step` on; the values of earlier steps exist already.
  explicit Schedule(const Program& program, std::size_t first_step = 0,
                    const MemoryReuse& reuse = {});

  std::size_t first_step() const { return first_step_; }
  const TaskGraph& graph() const { return graph_; }

  /// Tasks by TaskGraph::TaskId.
  std::span<const ProgramTask> tasks() const { return tasks_; }

  /// This process's part of the same steps of `program`, run together with others: planned on the
  /// first request, and kept. Requires the program of the constructor. Thread-safe.
  std::shared_ptr<const detail::ProcessSchedule> of_process(const Program& program,
                                                            const Devices& devices) const;

 private:
  struct OfProcess;  // the last one
  std::size_t first_step_;
  TaskGraph graph_;
  std::vector<ProgramTask> tasks_;
  std::shared_ptr<OfProcess> of_process_;
};

}  // namespace shardwise
