#include "shardwise/runtime/program/detail/schedule_builder.h"

#include <algorithm>
#include <variant>

namespace shardwise::detail {
namespace {

// Stands for a task if the data exists already.
constexpr TaskGraph::TaskId kReady = -1;

CopyRange copies_to(const Program::Move::Part& part, std::size_t phase, std::size_t group,
                    std::int64_t target) {
  return part.plan.phases[phase].groups[group].plan.copies_to(target);
}

/// The value that a phase of a move reads.
Program::ValueId read_by(const Program::Move::Part& part, std::size_t phase) {
  const bool from_new = part.plan.phases[phase].source == MovePhase::Source::new_value;
  return from_new ? part.to : part.from;
}

}  // namespace

ScheduleBuilder::ScheduleBuilder(const Program& program, const MemoryReuse& reuse, TaskGraph& graph,
                                 std::vector<ProgramTask>& tasks, Part part)
    : program_(program),
      reuse_(reuse),
      positions_(as_size(program.mesh().size())),
      graph_(graph),
      tasks_(tasks),
      part_(part),
      made_by_(program.values().size() * positions_, kReady) {
  for (const auto& before : reuse) {
    for (const auto value : before) {
      watched_.resize(program.values().size(), false);
      watched_[as_size(value)] = true;
    }
  }
  if (!watched_.empty()) users_.resize(made_by_.size());
}

void ScheduleBuilder::add(std::size_t step, std::span<PhaseMessages> phases) {
  step_ = step;
  phases_ = phases;
  std::visit([this](const auto& s) { add(s); }, program_.steps()[step]);
}

void ScheduleBuilder::add(const Program::Call& call) {
  for (std::int64_t position = 0; position < program_.mesh().size(); ++position) {
    if (!is_here(position)) continue;
    for (const auto input : call.inputs) after_.push_back(maker(input, position));
    for (const auto output : call.outputs) wait_for_memory(output, position);
    const TaskId task = add_task({step_, position});
    for (const auto input : call.inputs) use(input, position, task);
    for (const auto output : call.outputs) make(output, position, task);
  }
}

void ScheduleBuilder::add(const Program::Fill& fill) {
  for (const std::int64_t position : fill.positions) {
    if (!is_here(position)) continue;
    wait_for_memory(fill.value, position);
    make(fill.value, position, add_task({step_, position}));
  }
}

void ScheduleBuilder::add(const Program::Move& move) {
  const MovePlan& first = move.parts.front().plan;
  for (std::size_t phase = 0; phase < first.phases.size(); ++phase) {
    if (part_.section != nullptr) add_messages(move, phase);
    for (std::size_t group = 0; group < first.phases[phase].groups.size(); ++group) {
      add(move, phase, group);
    }
  }
}

// One task, for all devices: it runs tasks of its own.
void ScheduleBuilder::add(const Program::Loop& loop) {
  const auto positions = static_cast<std::int64_t>(positions_);
  const std::vector<Program::ValueId> read = loop.read(), made = loop.made();
  for (std::int64_t position = 0; position < positions; ++position) {
    for (const auto input : read) after_.push_back(maker(input, position));
    for (const auto value : made) wait_for_memory(value, position);
  }
  const TaskId task = add_task({step_, 0});
  for (std::int64_t position = 0; position < positions; ++position) {
    for (const auto input : read) use(input, position, task);
    for (const auto value : made) make(value, position, task);
  }
}

// Adds a task for each outgoing message, and an event for each incoming one. Messages hold the data
// from before the phase.
void ScheduleBuilder::add_messages(const Program::Move& move, std::size_t phase) {
  PhaseMessages& messages = phases_[phase];
  messages.number = part_.section->messages++;
  messages.first_event = part_.section->events.size();
  for (std::size_t m = 0; m < messages.remote.outgoing().size(); ++m) {
    // Value and position of each source.
    std::vector<std::pair<Program::ValueId, std::int64_t>> sources;
    for (const RemotePlan::Part& part : messages.remote.outgoing()[m].parts) {
      const Program::Move::Part& of_move = move.parts[part.key.transfer / messages.groups];
      const MoveGroup& group =
          of_move.plan.phases[phase].groups[part.key.transfer % messages.groups];
      sources.emplace_back(read_by(of_move, phase), group.sources[as_size(part.key.source)]);
    }
    for (const auto& [value, position] : sources) after_.push_back(maker(value, position));
    const TaskId task = add_task({.step = step_,
                                  .position = sources.front().second,
                                  .phase = phase,
                                  .message = static_cast<std::int64_t>(m)});
    for (const auto& [value, position] : sources) use(value, position, task);
  }
  for (std::size_t m = 0; m < messages.remote.incoming().size(); ++m) {
    part_.section->events.push_back({graph_.add_event(), step_, phase, m});
    tasks_.push_back({.step = step_, .position = 0, .phase = phase});
    part_.section->reads.emplace_back();
  }
}

// Adds a task for each target of a group; for a bucket it fills all the values there.
void ScheduleBuilder::add(const Program::Move& move, std::size_t phase, std::size_t group) {
  const MoveGroup& at_group = move.parts.front().plan.phases[phase].groups[group];
  // The targets of this phase read the data from before it.
  std::vector<std::vector<TaskId>> made_by;  // by part and source
  for (const Program::Move::Part& part : move.parts) {
    std::vector<TaskId>& makers = made_by.emplace_back();
    for (const std::int64_t position : at_group.sources) {
      makers.push_back(maker(read_by(part, phase), position));
    }
  }
  // A sum that overwrites its parts waits for the tasks that used these before this phase: in a
  // phase no target writes an element that another one reads.
  std::vector<std::vector<TaskId>> memory(at_group.targets.size());  // by target
  for (std::size_t i = 0; i < memory.size(); ++i) {
    for (const Program::Move::Part& part : move.parts) {
      wait_for_memory(part.to, at_group.targets[i]);
    }
    memory[i].swap(after_);
  }
  for (std::size_t i = 0; i < at_group.targets.size(); ++i) {
    const auto target = static_cast<std::int64_t>(i);
    const std::int64_t position = at_group.targets[i];
    if (!is_here(position)) continue;
    bool is_empty = true;
    for (std::size_t p = 0; p < move.parts.size(); ++p) {
      const Program::Move::Part& part = move.parts[p];
      const CopyRange copies = copies_to(part, phase, group, target);
      // If memory is used again, a shard without elements has a task too: the next user of its
      // memory waits for it, and so for all earlier users.
      if (copies.empty() && reuse_.empty()) continue;
      is_empty = false;
      after_.push_back(maker(part.to, position));
      for (const Copy& copy : copies) {
        const std::size_t transfer = phases_.empty() ? 0 : phases_[phase].transfer(p, group);
        wait_for_copy(copy, phase, transfer, made_by[p]);
      }
    }
    if (is_empty) continue;
    after_.insert(after_.end(), memory[i].begin(), memory[i].end());
    const TaskId task = add_task(
        {.step = step_, .position = position, .phase = phase, .group = group, .target = target});
    for (const Program::Move::Part& part : move.parts) {
      const CopyRange copies = copies_to(part, phase, group, target);
      for (const Copy& copy : copies) {
        use(read_by(part, phase), at_group.sources[as_size(copy.source)], task);
      }
      if (!copies.empty() || !reuse_.empty()) make(part.to, position, task);
    }
  }
}

// Waits for the task that makes its source, or for the message that holds it.
void ScheduleBuilder::wait_for_copy(const Copy& copy, std::size_t phase, std::size_t transfer,
                                    std::span<const TaskId> made_by) {
  const RemotePlan::Place* const place =
      phases_.empty() ? nullptr : phases_[phase].remote.find(transfer, copy);
  if (place == nullptr) {
    after_.push_back(made_by[as_size(copy.source)]);
    return;
  }
  const std::size_t event = phases_[phase].first_event + place->message;
  reads_.push_back(event);
  after_.push_back(part_.section->events[event].task);
}

// Adds a task after those in after_, skipping absent and repeated ones; clears both lists.
TaskGraph::TaskId ScheduleBuilder::add_task(const ProgramTask& task) {
  const auto once = [](auto& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  };
  once(after_);
  if (!after_.empty() && after_.front() == kReady) after_.erase(after_.begin());
  tasks_.push_back(task);
  if (part_.section != nullptr) {
    once(reads_);
    for (const std::size_t event : reads_) ++part_.section->events[event].users;
    part_.section->reads.push_back(reads_);
    reads_.clear();
  }
  const TaskId id = graph_.add(after_);
  after_.clear();
  return id;
}

// The last task that writes a value's shard.
TaskGraph::TaskId& ScheduleBuilder::maker(Program::ValueId value, std::int64_t position) {
  return made_by_[as_size(value) * positions_ + as_size(position)];
}

void ScheduleBuilder::make(Program::ValueId value, std::int64_t position, TaskId task) {
  maker(value, position) = task;
  use(value, position, task);
}

// The task reads or writes the value.
void ScheduleBuilder::use(Program::ValueId value, std::int64_t position, TaskId task) {
  if (watched_.empty() || !watched_[as_size(value)]) return;
  std::vector<TaskId>& users = users_[as_size(value) * positions_ + as_size(position)];
  if (users.empty() || users.back() != task) users.push_back(task);
}

// Waits for all tasks that used the earlier values in the value's memory.
void ScheduleBuilder::wait_for_memory(Program::ValueId value, std::int64_t position) {
  if (reuse_.empty()) return;
  for (const auto before : reuse_[as_size(value)]) {
    const std::vector<TaskId>& users = users_[as_size(before) * positions_ + as_size(position)];
    after_.insert(after_.end(), users.begin(), users.end());
  }
}

}  // namespace shardwise::detail
