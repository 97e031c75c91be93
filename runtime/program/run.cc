#include "shardwise/runtime/program/run.h"

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "shardwise/runtime/program/detail/fill_target.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// std::bad_alloc that says where.
class StepOutOfMemory : public std::bad_alloc {
 public:
  explicit StepOutOfMemory(std::string message)
      : message_(std::make_shared<const std::string>(std::move(message))) {}
  const char* what() const noexcept override { return message_->c_str(); }

 private:
  std::shared_ptr<const std::string> message_;  // copying must not throw
};

/// Throws an Exception with another message where the exception that is being handled is one; it
/// holds that one (std::nested_exception).
template <class Exception>
void throw_if(const std::exception& thrown, const std::string& message) {
  if (dynamic_cast<const Exception*>(&thrown) != nullptr) {
    std::throw_with_nested(Exception(message));
  }
}

/// Throws the exception that is being handled again, with `where` before its message.
[[noreturn]] void rethrow(const std::string& where) {
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

/// One run of a program. Thread-safe.
class Run {
 public:
  Run(const Program& program, const Storage& storage) : program_(program), storage_(storage) {}

  void task(const ProgramTask& task) const {
    const Program::Step& step = program_.steps()[task.step];
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

  void carry_out(const Program::Fill& fill, const ProgramTask& task) const {
    const std::size_t bytes = num_bytes(box(fill.value, task.position).shape(),
                                        size_bytes(program_.value(fill.value).spec.dtype));
    if (bytes > 0) std::memset(storage_.writable(fill.value, task.position), 0, bytes);
  }

  void carry_out(const Program::Move& move, const ProgramTask& task) const {
    for (const Program::Move::Part& part : move.parts) carry_out(part, task);
  }

  void carry_out(const Program::Move::Part& part, const ProgramTask& task) const {
    const MovePhase& phase = part.plan.phases[task.phase];
    const MoveGroup& group = phase.groups[task.group];
    if (group.plan.copies_to(task.target).empty()) return;
    const auto from = phase.source == MovePhase::Source::new_value ? part.to : part.from;
    const auto framed = [&](Program::ValueId value, std::int64_t position) {
      const Box whole = box(value, position);
      return phase.frame == MovePhase::Frame::tensor ? whole : Box({0}, {whole.num_elements()});
    };
    const detail::SourceMemory source = [&](std::int64_t i) -> ConstBoxView {
      const std::int64_t position = group.sources[static_cast<std::size_t>(i)];
      return {storage_.data(from, position), framed(from, position)};
    };
    detail::fill_target(
        group.plan, task.target, program_.value(part.to).spec.dtype, source,
        {storage_.writable(part.to, task.position), framed(part.to, task.position)});
  }

  Box box(Program::ValueId value, std::int64_t position) const {
    return program_.value(value).box(position);
  }

  const Program& program_;
  const Storage& storage_;
};

}  // namespace

void count_traffic(const MovePlan& plan, const Devices& devices) {
  for (const DeviceBytes& bytes : plan.traffic) {
    devices.at(bytes.device).count_sent(bytes.sent);
    devices.at(bytes.device).count_received(bytes.received);
  }
}

void run(const Program& program, const Schedule& schedule, const Storage& storage,
         const Devices& devices) {
  const Run one(program, storage);
  const std::span<const ProgramTask> tasks = schedule.tasks();
  devices.executor().run(schedule.graph(), [&](TaskGraph::TaskId id) {
    one.task(tasks[static_cast<std::size_t>(id)]);
  });
  for (std::size_t step = schedule.first_step(); step < program.steps().size(); ++step) {
    const auto* move = std::get_if<Program::Move>(&program.steps()[step]);
    if (move == nullptr) continue;
    for (const Program::Move::Part& part : move->parts) count_traffic(part.plan, devices);
  }
}

}  // namespace shardwise
