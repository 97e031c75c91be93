#include "shardwise/runtime/program/detail/schedule.h"

#include <algorithm>
#include <mutex>
#include <variant>

#include "shardwise/runtime/program/detail/program_messages.h"

namespace shardwise {
namespace {

using TaskId = TaskGraph::TaskId;

// Stands for a task if the data is there already.
constexpr TaskId kReady = -1;

/// Adds the tasks step by step and notes which task writes what.
class Builder {
 public:
  Builder(const Program& program, const MemoryReuse& reuse, TaskGraph& graph,
          std::vector<ProgramTask>& tasks)
      : program_(program),
        reuse_(reuse),
        positions_(static_cast<std::size_t>(program.mesh().size())),
        graph_(graph),
        tasks_(tasks),
        made_by_(program.values().size() * positions_, kReady) {
    for (const auto& before : reuse) {
      for (const auto value : before) {
        watched_.resize(program.values().size(), false);
        watched_[static_cast<std::size_t>(value)] = true;
      }
    }
    if (!watched_.empty()) users_.resize(made_by_.size());
  }

  void add(std::size_t step) {
    step_ = step;
    std::visit([this](const auto& s) { add(s); }, program_.steps()[step]);
  }

 private:
  void add(const Program::Call& call) {
    for (std::int64_t position = 0; position < program_.mesh().size(); ++position) {
      after_.clear();
      for (const auto input : call.inputs) after_.push_back(maker(input, position));
      for (const auto output : call.outputs) wait_for_memory(output, position);
      const TaskId task = add_task({step_, position});
      for (const auto input : call.inputs) use(input, position, task);
      for (const auto output : call.outputs) make(output, position, task);
    }
  }

  void add(const Program::Fill& fill) {
    for (const std::int64_t position : fill.positions) {
      after_.clear();
      wait_for_memory(fill.value, position);
      make(fill.value, position, add_task({step_, position}));
    }
  }

  void add(const Program::Move& move) {
    const MovePlan& first = move.parts.front().plan;
    for (std::size_t phase = 0; phase < first.phases.size(); ++phase) {
      for (std::size_t group = 0; group < first.phases[phase].groups.size(); ++group) {
        add(move, phase, group);
      }
    }
  }

  /// One task, for all devices: it runs tasks of its own.
  void add(const Program::Loop& loop) {
    const auto positions = static_cast<std::int64_t>(positions_);
    const std::vector<Program::ValueId> read = loop.read(), made = loop.made();
    after_.clear();
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

  /// A task for each target of a group; for a bucket it fills all the values there.
  void add(const Program::Move& move, std::size_t phase, std::size_t group) {
    const MovePhase& at_phase = move.parts.front().plan.phases[phase];
    const MoveGroup& at_group = at_phase.groups[group];
    const bool from_new = at_phase.source == MovePhase::Source::new_value;
    // The targets of this phase read what was there before it.
    std::vector<std::vector<TaskId>> made_by;  // by part and source
    for (const Program::Move::Part& part : move.parts) {
      std::vector<TaskId>& makers = made_by.emplace_back();
      for (const std::int64_t position : at_group.sources) {
        makers.push_back(maker(from_new ? part.to : part.from, position));
      }
    }
    for (std::size_t i = 0; i < at_group.targets.size(); ++i) {
      const auto target = static_cast<std::int64_t>(i);
      const std::int64_t position = at_group.targets[i];
      after_.clear();
      bool is_empty = true;
      for (std::size_t p = 0; p < move.parts.size(); ++p) {
        const Program::Move::Part& part = move.parts[p];
        const CopyRange copies = copies_to(part, phase, group, target);
        // If memory is used again, a shard without elements has a task too: the next user of its
        // memory waits for it, and so for all earlier users.
        if (copies.empty() && reuse_.empty()) continue;
        is_empty = false;
        after_.push_back(maker(part.to, position));
        wait_for_memory(part.to, position);
        for (const Copy& copy : copies) {
          after_.push_back(made_by[p][static_cast<std::size_t>(copy.source)]);
        }
      }
      if (is_empty) continue;
      const TaskId task = add_task({step_, position, phase, group, target});
      for (const Program::Move::Part& part : move.parts) {
        const CopyRange copies = copies_to(part, phase, group, target);
        for (const Copy& copy : copies) {
          use(from_new ? part.to : part.from,
              at_group.sources[static_cast<std::size_t>(copy.source)], task);
        }
        if (!copies.empty() || !reuse_.empty()) make(part.to, position, task);
      }
    }
  }

  static CopyRange copies_to(const Program::Move::Part& part, std::size_t phase, std::size_t group,
                             std::int64_t target) {
    return part.plan.phases[phase].groups[group].plan.copies_to(target);
  }

  /// After the tasks in after_, without absent ones and without repetition.
  TaskId add_task(const ProgramTask& task) {
    std::sort(after_.begin(), after_.end());
    after_.erase(std::unique(after_.begin(), after_.end()), after_.end());
    if (!after_.empty() && after_.front() == kReady) after_.erase(after_.begin());
    tasks_.push_back(task);
    return graph_.add(after_);
  }

  /// The last task that writes a value's shard.
  TaskId& maker(Program::ValueId value, std::int64_t position) {
    return made_by_[static_cast<std::size_t>(value) * positions_ +
                    static_cast<std::size_t>(position)];
  }

  void make(Program::ValueId value, std::int64_t position, TaskId task) {
    maker(value, position) = task;
    use(value, position, task);
  }

  /// The task reads or writes the value.
  void use(Program::ValueId value, std::int64_t position, TaskId task) {
    if (watched_.empty() || !watched_[static_cast<std::size_t>(value)]) return;
    std::vector<TaskId>& users =
        users_[static_cast<std::size_t>(value) * positions_ + static_cast<std::size_t>(position)];
    if (users.empty() || users.back() != task) users.push_back(task);
  }

  /// All that uses what was in the value's memory before it.
  void wait_for_memory(Program::ValueId value, std::int64_t position) {
    if (reuse_.empty()) return;
    for (const auto before : reuse_[static_cast<std::size_t>(value)]) {
      const std::vector<TaskId>& users = users_[static_cast<std::size_t>(before) * positions_ +
                                                static_cast<std::size_t>(position)];
      after_.insert(after_.end(), users.begin(), users.end());
    }
  }

  const Program& program_;
  const MemoryReuse& reuse_;
  const std::size_t positions_;
  TaskGraph& graph_;
  std::vector<ProgramTask>& tasks_;
  std::vector<TaskId> made_by_;             // by value and position
  std::vector<bool> watched_;               // by value: its memory is used again
  std::vector<std::vector<TaskId>> users_;  // by value and position, of those
  std::size_t step_ = 0;
  std::vector<TaskId> after_;
};

}  // namespace

struct Schedule::Messages {
  std::mutex mutex;
  std::shared_ptr<const detail::ProgramMessages> last;
};

std::shared_ptr<const detail::ProgramMessages> Schedule::messages(const Program& program,
                                                                  const Devices& devices) const {
  const std::lock_guard lock(messages_->mutex);
  if (!messages_->last || !messages_->last->is_for(devices)) {
    messages_->last =
        std::make_shared<const detail::ProgramMessages>(program, first_step_, devices);
  }
  return messages_->last;
}

Schedule::Schedule(const Program& program, std::size_t first_step, const MemoryReuse& reuse)
    : first_step_(first_step), messages_(std::make_shared<Messages>()) {
  Builder builder(program, reuse, graph_, tasks_);
  for (std::size_t step = first_step; step < program.steps().size(); ++step) builder.add(step);
}

}  // namespace shardwise
