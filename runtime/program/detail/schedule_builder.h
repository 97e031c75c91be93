#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/runtime/program/detail/process_schedule.h"
#include "shardwise/runtime/program/detail/schedule.h"

namespace shardwise::detail {

/// Adds the tasks of a program step by step, and notes which task writes which value. For one of
/// several processes it adds the process's own tasks, those that send, and the events for messages
/// of others. Thread-compatible.
class ScheduleBuilder {
 public:
  /// The process whose tasks are added; null: all.
  struct Part {
    const std::vector<bool>* is_here = nullptr;  ///< by position
    ProcessSchedule::Section* section = nullptr;
  };

  /// All must outlive it.
  ScheduleBuilder(const Program& program, const MemoryReuse& reuse, TaskGraph& graph,
                  std::vector<ProgramTask>& tasks, Part part);

  /// `phases`: the messages of a move's phases, if the tasks are those of one process; their
  /// numbers are assigned here.
  void add(std::size_t step, std::span<PhaseMessages> phases = {});

 private:
  using TaskId = TaskGraph::TaskId;

  void add(const Program::Call& call);
  void add(const Program::Fill& fill);
  void add(const Program::Move& move);
  void add(const Program::Loop& loop);
  void add(const Program::Move& move, std::size_t phase, std::size_t group);
  void add_messages(const Program::Move& move, std::size_t phase);

  bool is_here(std::int64_t position) const {
    return part_.is_here == nullptr || (*part_.is_here)[as_size(position)];
  }

  TaskId add_task(const ProgramTask& task);
  TaskId& maker(Program::ValueId value, std::int64_t position);
  void make(Program::ValueId value, std::int64_t position, TaskId task);
  void use(Program::ValueId value, std::int64_t position, TaskId task);
  void wait_for_memory(Program::ValueId value, std::int64_t position);
  void wait_for_copy(const Copy& copy, std::size_t phase, std::size_t transfer,
                     std::span<const TaskId> made_by);

  const Program& program_;
  const MemoryReuse& reuse_;
  const std::size_t positions_;
  TaskGraph& graph_;
  std::vector<ProgramTask>& tasks_;
  const Part part_;
  std::vector<TaskId> made_by_;             // by value and position
  std::vector<bool> watched_;               // by value: its memory is used again
  std::vector<std::vector<TaskId>> users_;  // by value and position, of those
  std::size_t step_ = 0;
  std::span<PhaseMessages> phases_;
  std::vector<TaskId> after_;
  std::vector<std::size_t> reads_;  // events
};

}  // namespace shardwise::detail
