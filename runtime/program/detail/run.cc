#include "shardwise/runtime/program/detail/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "shardwise/runtime/program/detail/fill_target.h"
#include "shardwise/runtime/program/detail/loop.h"
#include "shardwise/runtime/program/detail/program_messages.h"
#include "shardwise/runtime/program/detail/remote_copies.h"
#include "shardwise/runtime/timeline.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

/// std::bad_alloc that says where it was thrown.
class StepOutOfMemory : public std::bad_alloc {
 public:
  explicit StepOutOfMemory(std::string message)
      : message_(std::make_shared<const std::string>(std::move(message))) {}
  const char* what() const noexcept override { return message_->c_str(); }

 private:
  std::shared_ptr<const std::string> message_;  // copying must not throw
};

/// If the exception that is being handled is an Exception, throws one with another message, which
/// holds the original (std::nested_exception).
template <class Exception>
void throw_if(const std::exception& thrown, const std::string& message) {
  if (dynamic_cast<const Exception*>(&thrown) != nullptr) {
    std::throw_with_nested(Exception(message));
  }
}

/// One run of a program. Thread-safe.
class Run {
 public:
  Run(const Program& program, const Storage& storage, const Devices& devices)
      : program_(program),
        storage_(storage),
        devices_(devices),
        timeline_(devices.timeline().get()) {}

  void task(const ProgramTask& task) const {
    const Program::Step& step = program_.steps()[task.step];
    if (const auto* const loop = std::get_if<Program::Loop>(&step)) {
      return run_loop(*loop, program_, storage_, devices_, 0);
    }
    std::optional<TimelineScope> scope;
    if (timeline_ != nullptr) {
      const bool is_move = std::holds_alternative<Program::Move>(step);
      scope.emplace(timeline_, is_move ? Kind::collective : Kind::compute, name(step),
                    program_.mesh().device_at(task.position));
    }
    try {
      std::visit([&](const auto& s) { carry_out(s, task); }, step);
    } catch (...) {
      rethrow(fmt::format("{} on device {}", name(step), program_.mesh().device_at(task.position)));
    }
  }

  /// This process's part of a step of several processes.
  void step_together(std::size_t number, const detail::ProgramMessages& messages,
                     std::uint64_t tag) const {
    const Program::Step& step = program_.steps()[number];
    if (const auto* const loop = std::get_if<Program::Loop>(&step)) {
      return run_loop(*loop, program_, storage_, devices_, splitmix64(tag + number));
    }
    if (const auto* const move = std::get_if<Program::Move>(&step)) {
      const TimelineScope scope(timeline_, Kind::collective, name(step));
      const std::span<const detail::PhaseMessages> phases = messages.phases(number);
      for (std::size_t phase = 0; phase < phases.size(); ++phase) {
        // Which exchange it is: of this program, this step and this phase.
        const std::uint64_t exchange = splitmix64(splitmix64(tag + number) + phase);
        phase_together(*move, phase, phases[phase], exchange);
      }
      return;
    }
    const std::span<const std::int64_t> positions = messages.positions(number);
    devices_.executor().parallel_for(std::ssize(positions), [&](std::int64_t i) {
      task({.step = number, .position = positions[static_cast<std::size_t>(i)]});
    });
  }

 private:
  /// First fetches what other processes have, in one message from each.
  void phase_together(const Program::Move& move, std::size_t number,
                      const detail::PhaseMessages& messages, std::uint64_t tag) const {
    const auto at = [&](std::size_t transfer) {
      const auto [part, group] = messages.groups[transfer];
      const MovePhase& phase = move.parts[part].plan.phases[number];
      return std::tuple<const Program::Move::Part&, const MovePhase&, const MoveGroup&>(
          move.parts[part], phase, phase.groups[group]);
    };
    const detail::RemoteCopies remote(messages.remote, devices_, tag,
                                      [&](std::size_t transfer, std::int64_t source) {
                                        const auto& [part, phase, group] = at(transfer);
                                        return memory(part, phase, group, source);
                                      });
    devices_.executor().parallel_for(std::ssize(messages.targets), [&](std::int64_t i) {
      const auto& [transfer, target] = messages.targets[static_cast<std::size_t>(i)];
      const auto& [part, phase, group] = at(transfer);
      fill(part, phase, group, target, [&remote, number_of = transfer](const Copy& copy) {
        return remote.from(number_of, copy);
      });
    });
  }

  void carry_out(const Program::Call& call, const ProgramTask& task) const {
    std::vector<ConstBoxView> inputs;
    std::vector<BoxView> outputs;
    inputs.reserve(call.inputs.size());
    outputs.reserve(call.outputs.size());
    for (const auto value : call.inputs) {
      inputs.push_back({storage_.data(value, task.position), box(value, task.position)});
    }
    for (const auto value : call.outputs) {
      outputs.push_back({storage_.writable(value, task.position), box(value, task.position)});
    }
    const Mesh& mesh = program_.mesh();
    call.function({mesh, task.position, mesh.device_at(task.position), inputs, outputs});
  }

  void carry_out(const Program::Loop&, const ProgramTask&) const {}  // see task()

  void carry_out(const Program::Fill& fill, const ProgramTask& task) const {
    const std::size_t bytes = num_bytes(box(fill.value, task.position).shape(),
                                        size_bytes(program_.value(fill.value).dtype));
    if (bytes > 0) std::memset(storage_.writable(fill.value, task.position), 0, bytes);
  }

  void carry_out(const Program::Move& move, const ProgramTask& task) const {
    for (const Program::Move::Part& part : move.parts) {
      const MovePhase& phase = part.plan.phases[task.phase];
      const MoveGroup& group = phase.groups[task.group];
      fill(part, phase, group, task.target,
           [&](const Copy& copy) { return memory(part, phase, group, copy.source); });
    }
  }

  void fill(const Program::Move::Part& part, const MovePhase& phase, const MoveGroup& group,
            std::int64_t target, const detail::SourceMemory& source) const {
    if (group.plan.copies_to(target).empty()) return;
    const std::int64_t position = group.targets[static_cast<std::size_t>(target)];
    detail::fill_target(group.plan, target, program_.value(part.to).dtype, source,
                        {storage_.writable(part.to, position), framed(phase, part.to, position)});
  }

  /// Memory of a source of a group's plan.
  ConstBoxView memory(const Program::Move::Part& part, const MovePhase& phase,
                      const MoveGroup& group, std::int64_t source) const {
    const auto from = phase.source == MovePhase::Source::new_value ? part.to : part.from;
    const std::int64_t position = group.sources[static_cast<std::size_t>(source)];
    return {storage_.data(from, position), framed(phase, from, position)};
  }

  Box framed(const MovePhase& phase, Program::ValueId value, std::int64_t position) const {
    const Box whole = box(value, position);
    return phase.frame == MovePhase::Frame::tensor ? whole : Box({0}, {whole.num_elements()});
  }

  Box box(Program::ValueId value, std::int64_t position) const {
    return program_.value(value).box(position);
  }

  using Kind = TimelineEvent::Kind;

  const Program& program_;
  const Storage& storage_;
  const Devices& devices_;
  Timeline* const timeline_;
};

}  // namespace

void rethrow(const std::string& where) {
  const auto message = [&](const char* what) { return fmt::format("{}: {}", where, what); };
  try {
    throw;
  } catch (const Error& error) {
    throw Error(error.code(), message(error.what()));
  } catch (const std::bad_alloc&) {
    throw StepOutOfMemory(message("out of memory"));
  } catch (const std::exception& thrown) {
    const std::string text = message(thrown.what());
    throw_if<std::out_of_range>(thrown, text);
    throw_if<std::invalid_argument>(thrown, text);
    throw_if<std::length_error>(thrown, text);
    throw_if<std::domain_error>(thrown, text);
    throw_if<std::logic_error>(thrown, text);
    throw_if<std::range_error>(thrown, text);
    throw_if<std::overflow_error>(thrown, text);
    throw_if<std::underflow_error>(thrown, text);
    std::throw_with_nested(std::runtime_error(text));
  } catch (...) {
    std::throw_with_nested(std::runtime_error(message("an exception of an unknown type")));
  }
}

void count_traffic(const MovePlan& plan, const Devices& devices, std::size_t times) {
  for (const DeviceBytes& bytes : plan.traffic) {
    if (!devices.is_addressable(bytes.device)) continue;
    devices.at(bytes.device).count_sent(times * bytes.sent);
    devices.at(bytes.device).count_received(times * bytes.received);
  }
}

void count_traffic(const Program& program, std::size_t first, const Devices& devices,
                   std::size_t times) {
  for (std::size_t step = first; step < program.steps().size(); ++step) {
    const auto* const move = std::get_if<Program::Move>(&program.steps()[step]);
    if (move == nullptr) continue;
    for (const Program::Move::Part& part : move->parts) count_traffic(part.plan, devices, times);
  }
}

void run(const Program& program, const Schedule& schedule, const Storage& storage,
         const Devices& devices, std::uint64_t tag) {
  run_steps(program, schedule, storage, devices, tag);
  count_traffic(program, schedule.first_step(), devices, 1);
}

void run_steps(const Program& program, const Schedule& schedule, const Storage& storage,
               const Devices& devices, std::uint64_t tag) {
  const Run one(program, storage, devices);
  if (devices.group().size() > 1) {
    // In the order of the program, so all processes exchange in the same order.
    detail::together(devices, [&] {
      const std::shared_ptr<const detail::ProgramMessages> messages =
          schedule.messages(program, devices);
      for (std::size_t s = schedule.first_step(); s < program.steps().size(); ++s) {
        one.step_together(s, *messages, tag);
      }
    });
  } else {
    const std::span<const ProgramTask> tasks = schedule.tasks();
    devices.executor().run(schedule.graph(), [&](TaskGraph::TaskId id) {
      one.task(tasks[static_cast<std::size_t>(id)]);
    });
  }
}

}  // namespace shardwise
