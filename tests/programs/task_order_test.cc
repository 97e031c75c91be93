#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "shardwise/runtime/spmd/detail/control/live_results.h"
#include "shardwise/runtime/spmd/detail/fuse.h"
#include "shardwise/runtime/spmd/detail/lower.h"
#include "shardwise/runtime/spmd/detail/memory_plan.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "trial.h"

// Whatever order the tasks of a program run in, none writes to memory that another one may be
// using: for any two that touch the same bytes, and one writes, a chain of dependencies says which
// is first.
namespace shardwise {
namespace {

using ValueId = Program::ValueId;

/// Bytes of one position's memory that a task touches.
struct Touch {
  std::int64_t position;
  std::int64_t space;  // 0, 1: a region; from 2 on: an array of its own
  std::size_t begin, end;
  bool writes;
};

class Order {
 public:
  explicit Order(const Trial& trial)
      : graph_(without_unused_results(std::make_shared<const Graph>(trial.graph))),
        partitioned_(partition_of(trial)),
        lowered_(lower(graph_, trial.mesh, partitioned_,
                       fuse(*graph_, partitioned_, trial.options.nan_check),
                       trial.options.nan_check, MovePlans::made)),
        plan_(plan_memory(*graph_, lowered_, trial.options.may_donate)),
        schedule_(lowered_.program, 0, plan_.reuse) {
    const std::int64_t tasks = schedule_.graph().size();
    before_.resize(static_cast<std::size_t>(tasks));
    for (auto& row : before_) row.resize(static_cast<std::size_t>(tasks), false);
    for (std::int64_t task = 0; task < tasks; ++task) {
      for (const std::int64_t follower : schedule_.graph().followers(task)) {
        std::vector<bool>& row = before_[static_cast<std::size_t>(follower)];
        row[static_cast<std::size_t>(task)] = true;
        for (std::size_t t = 0; t < row.size(); ++t) {
          if (before_[static_cast<std::size_t>(task)][t]) row[t] = true;
        }
      }
      touches_.push_back(touches(schedule_.tasks()[static_cast<std::size_t>(task)]));
    }
  }

  /// The first two tasks that may meet; "" where none do.
  std::string problem() const {
    for (std::size_t b = 0; b < touches_.size(); ++b) {
      for (std::size_t a = 0; a < b; ++a) {
        // Each task of a move writes a part that no other one touches.
        if (before_[b][a] || schedule_.tasks()[a].step == schedule_.tasks()[b].step) continue;
        if (!meet(touches_[a], touches_[b])) continue;
        return fmt::format("task {} ({}) and task {} ({}) are in no order", a, text(a), b, text(b));
      }
    }
    return "";
  }

 private:
  PartitionedGraph partition_of(const Trial& trial) const {
    return planned_program(Executable(graph_, trial.mesh, trial.options)).partitioned;
  }

  void touch(ValueId value, std::int64_t position, bool writes, std::vector<Touch>& touches) const {
    const Program::Value& v = lowered_.program.value(value);
    const std::size_t bytes = num_bytes(v.box(position).shape(), size_bytes(v.dtype));
    if (bytes == 0) return;
    const ValueId root = plan_.roots[static_cast<std::size_t>(value)];
    if (plan_.homes[static_cast<std::size_t>(root)] == MemoryPlan::Home::region) {
      const std::size_t begin = plan_.offsets[static_cast<std::size_t>(root)];
      const bool is_activation = lowered_.program.value(root).kind == MemoryKind::activation;
      const ValueId host = plan_.hosts[static_cast<std::size_t>(root)];
      const std::int64_t space = host >= 0 ? 2 + host : is_activation ? 0 : 1;
      touches.push_back({position, space, begin, begin + bytes, writes});
      return;
    }
    ValueId array = root;
    for (std::size_t o = 0; o < plan_.donated.size(); ++o) {
      if (lowered_.outputs[o] == root && plan_.donated[o] >= 0) {
        array = lowered_.inputs[static_cast<std::size_t>(plan_.donated[o])];
      }
    }
    touches.push_back({position, 2 + array, 0, bytes, writes});
  }

  std::vector<Touch> touches(const ProgramTask& task) const {
    std::vector<Touch> found;
    const Program::Step& step = lowered_.program.steps()[task.step];
    if (const auto* const call = std::get_if<Program::Call>(&step)) {
      for (const ValueId input : call->inputs) touch(input, task.position, false, found);
      for (const ValueId output : call->outputs) {
        if (!is_left(*call, output)) touch(output, task.position, true, found);
      }
    } else if (const auto* const move = std::get_if<Program::Move>(&step)) {
      for (const Program::Move::Part& part : move->parts) {
        const MovePhase& phase = part.plan.phases[task.phase];
        const MoveGroup& group = phase.groups[task.group];
        const CopyRange copies = group.plan.copies_to(task.target);
        if (copies.empty()) continue;
        touch(part.to, task.position, true, found);
        const bool from_new = phase.source == MovePhase::Source::new_value;
        for (const Copy& copy : copies) {
          touch(from_new ? part.to : part.from,
                group.sources[static_cast<std::size_t>(copy.source)], false, found);
        }
      }
    } else if (const auto* const loop = std::get_if<Program::Loop>(&step)) {
      for (std::int64_t p = 0; p < lowered_.program.mesh().size(); ++p) {
        for (const ValueId input : loop->read()) touch(input, p, false, found);
        for (const ValueId value : loop->made()) touch(value, p, true, found);
      }
    } else {
      touch(std::get<Program::Fill>(step).value, task.position, true, found);
    }
    return found;
  }

  /// It is what its operand is, in the operand's memory.
  bool is_left(const Program::Call& call, ValueId value) const {
    const auto root = [&](ValueId v) { return plan_.roots[static_cast<std::size_t>(v)]; };
    return lowered_.alias_of[static_cast<std::size_t>(value)] != value &&
           root(call.inputs.front()) == root(value);
  }

  static bool meet(const std::vector<Touch>& a, const std::vector<Touch>& b) {
    return std::any_of(a.begin(), a.end(), [&](const Touch& x) {
      return std::any_of(b.begin(), b.end(), [&](const Touch& y) {
        return (x.writes || y.writes) && x.position == y.position && x.space == y.space &&
               x.begin < y.end && y.begin < x.end;
      });
    });
  }

  std::string text(std::size_t task) const {
    const ProgramTask& t = schedule_.tasks()[task];
    std::string touched;
    for (const Touch& touch : touches_[task]) {
      touched += fmt::format(" {}{}:{}+{}", touch.writes ? "writes " : "reads ", touch.position,
                             touch.space, touch.begin);
    }
    return fmt::format("step {} on position {}:{}", t.step, t.position, touched);
  }

  std::shared_ptr<const Graph> graph_;
  PartitionedGraph partitioned_;
  LoweredProgram lowered_;
  MemoryPlan plan_;
  Schedule schedule_;
  std::vector<std::vector<bool>> before_;  // by task: those that are done then
  std::vector<std::vector<Touch>> touches_;
};

std::string disorder(const Trial& trial) {
  const std::string problem = Order(trial).problem();
  if (problem.empty()) return problem;
  const Executable executable(std::make_shared<const Graph>(trial.graph), trial.mesh,
                              trial.options);
  return problem + '\n' + dump_steps(executable) + dump_plan(executable);
}

TEST(TaskOrder, NoTaskWritesWhatAnotherMayBeUsing) {
  check_trials(1, 3000, disorder);
  // A value that is an input's bytes, by way of an output that is a copy of them, was written to
  // the input.
  check_trials(1'019'233, 1, disorder);
}

}  // namespace
}  // namespace shardwise
