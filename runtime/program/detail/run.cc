#include "shardwise/runtime/program/detail/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "shardwise/runtime/program/detail/fill_target.h"
#include "shardwise/runtime/program/detail/loop.h"
#include "shardwise/runtime/program/detail/process_schedule.h"
#include "shardwise/runtime/program/detail/remote_copies.h"
#include "shardwise/runtime/timeline.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

/// A std::bad_alloc that names where it was thrown.
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

/// One run of a section of a process's schedule: messages from other processes, and functions to
/// send. Thread-safe, except next().
class SectionMessages {
 public:
  using Section = detail::ProcessSchedule::Section;

  SectionMessages(const detail::ProcessSchedule& schedule, const Section& section,
                  const ProcessGroup& group, std::uint64_t tag)
      : schedule_(schedule),
        section_(section),
        rank_(group.rank()),
        tag_(tag),
        exchange_(group.begin_exchange(section.messages)),
        bytes_(section.events.size()),
        users_(section.events.size()),
        left_(section.events.size()) {
    for (std::size_t e = 0; e < left_.size(); ++e) {
      left_[e] = e;
      users_[e] = section.events[e].users;
    }
  }

  void send(const ProgramTask& task, const detail::TransferMemory& memory) const {
    const detail::PhaseMessages& phase = schedule_.phases(task.step)[task.phase];
    const detail::RemotePlan::Message& message = phase.remote.outgoing()[as_size(task.message)];
    exchange_.send(message.process, phase.number, tag(task.step, task.phase),
                   detail::RemotePlan::pack(message, memory));
  }

  /// As Executor::NextEvent. Waits for the first messages only: they never need later ones.
  std::optional<TaskGraph::TaskId> next(bool is_idle) {
    awaited_.clear();
    for (std::size_t i = 0; i < std::min(left_.size(), kAwaited); ++i) {
      const detail::ProcessSchedule::Event& event = section_.events[left_[i]];
      const detail::PhaseMessages& phase = schedule_.phases(event.step)[event.phase];
      awaited_.push_back({phase.remote.incoming()[event.message].process, phase.number,
                          tag(event.step, event.phase)});
    }
    auto received = exchange_.receive(awaited_, is_idle);
    if (!received) return {};
    const std::size_t number = left_[received->place];
    left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(received->place));
    const detail::ProcessSchedule::Event& event = section_.events[number];
    detail::RemotePlan::check(
        schedule_.phases(event.step)[event.phase].remote.incoming()[event.message],
        received->bytes.size(), rank_);
    bytes_[number] = std::move(received->bytes);
    return event.task;
  }

  /// Null if the source of the copy is of this process.
  const std::byte* find(const ProgramTask& task, std::size_t part, const Copy& copy) const {
    const detail::PhaseMessages& phase = schedule_.phases(task.step)[task.phase];
    const auto* const place = phase.remote.find(phase.transfer(part, task.group), copy);
    if (place == nullptr) return nullptr;
    return bytes_[phase.first_event + place->message].data() + place->offset;
  }

  /// The task has read its messages: each is dropped by the last task that reads it.
  void is_done(TaskGraph::TaskId task) {
    for (const std::size_t event : section_.reads[as_size(task)]) {
      if (users_[event].fetch_sub(1) == 1) Bytes().swap(bytes_[event]);
    }
  }

  void finish() const { exchange_.finish(); }

 private:
  // The number of messages that are awaited at once.
  static constexpr std::size_t kAwaited = 64;

  /// Identifies a message: this program, this step and this phase.
  std::uint64_t tag(std::size_t step, std::size_t phase) const {
    return splitmix64(splitmix64(tag_ + step) + phase);
  }

  const detail::ProcessSchedule& schedule_;
  const Section& section_;
  const int rank_;
  const std::uint64_t tag_;
  ProcessGroup::Exchange exchange_;
  std::vector<Bytes> bytes_;                      // by event
  std::vector<std::atomic<std::int64_t>> users_;  // by event: tasks that will read it
  std::vector<std::size_t> left_;                 // events that have not happened, in order
  std::vector<ProcessGroup::Exchange::Awaited> awaited_;
};

/// One run of a program. Thread-safe.
class Run {
 public:
  /// `messages`: those of one section if there are several processes; else null.
  Run(const Program& program, const Storage& storage, const Devices& devices,
      const SectionMessages* messages = nullptr)
      : program_(program),
        storage_(storage),
        devices_(devices),
        messages_(messages),
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

 private:
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
    if (task.message >= 0) return send(move, task);
    for (std::size_t p = 0; p < move.parts.size(); ++p) {
      const Program::Move::Part& part = move.parts[p];
      const MovePhase& phase = part.plan.phases[task.phase];
      const MoveGroup& group = phase.groups[task.group];
      fill(part, phase, group, task.target, [&](const Copy& copy) {
        const std::byte* const sent =
            messages_ == nullptr ? nullptr : messages_->find(task, p, copy);
        return sent == nullptr ? memory(part, phase, group, copy.source)
                               : ConstBoxView{sent, copy.box};
      });
    }
  }

  void send(const Program::Move& move, const ProgramTask& task) const {
    const std::size_t groups = move.parts.front().plan.phases[task.phase].groups.size();
    messages_->send(task, [&](std::size_t transfer, std::int64_t source) {
      const Program::Move::Part& part = move.parts[transfer / groups];
      const MovePhase& phase = part.plan.phases[task.phase];
      return memory(part, phase, phase.groups[transfer % groups], source);
    });
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
  const SectionMessages* const messages_;
  Timeline* const timeline_;
};

/// This process's part of a program of several processes. Sections follow each other in the order
/// of the program, so all processes reach the loops in the same order.
void run_of_process(const Program& program, const detail::ProcessSchedule& schedule,
                    const Storage& storage, const Devices& devices, std::uint64_t tag) {
  for (const detail::ProcessSchedule::Section& section : schedule.sections()) {
    if (section.is_loop) {
      const auto& loop = std::get<Program::Loop>(program.steps()[section.first_step]);
      run_loop(loop, program, storage, devices, splitmix64(tag + section.first_step));
      continue;
    }
    SectionMessages messages(schedule, section, devices.group(), tag);
    const Run one(program, storage, devices, &messages);
    devices.executor().run(
        section.graph,
        [&](TaskGraph::TaskId id) {
          one.task(section.tasks[as_size(id)]);
          messages.is_done(id);
        },
        [&](bool is_idle) { return messages.next(is_idle); });
    messages.finish();
  }
}

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
  if (devices.group().size() > 1) {
    detail::together(devices, [&] {
      run_of_process(program, *schedule.of_process(program, devices), storage, devices, tag);
    });
    return;
  }
  const Run one(program, storage, devices);
  const std::span<const ProgramTask> tasks = schedule.tasks();
  devices.executor().run(schedule.graph(), [&](TaskGraph::TaskId id) {
    one.task(tasks[static_cast<std::size_t>(id)]);
  });
}

}  // namespace shardwise
