#include "shardwise/runtime/program/detail/program.h"

#include <fmt/format.h>

#include <functional>

#include "shardwise/runtime/program/detail/loop.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/random.h"

namespace shardwise {

Program::ValueId Program::add_value(Value value) {
  const Mesh& mesh = value.layout.mesh();
  if (!(mesh == mesh_)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("add a value to a program: \"{}\" is on mesh {}, needed {}",
                            value.label, mesh.to_string(), mesh_.to_string()));
  }
  values_.push_back(std::move(value));
  return static_cast<ValueId>(values_.size()) - 1;
}

void Program::check(ValueId id, std::string_view step) const {
  if (id >= 0 && id < static_cast<ValueId>(values_.size())) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("add a step to a program: \"{}\" names value {}, needed one of {} values",
                          step, id, values_.size()));
}

void Program::add_step(Step step) {
  const std::string& label = name(step);
  if (const auto* call = std::get_if<Call>(&step)) {
    for (const ValueId id : call->inputs) check(id, label);
    for (const ValueId id : call->outputs) check(id, label);
  } else if (const auto* move = std::get_if<Move>(&step)) {
    for (const Move::Part& part : move->parts) {
      check(part.from, label);
      check(part.to, label);
      if (part.plan.same_targets(move->parts.front().plan)) continue;
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("add a step to a program: \"{}\" moves values {} and {} between other "
                      "groups of devices, needed the same for all",
                      label, move->parts.front().to, part.to));
    }
  } else if (const auto* loop = std::get_if<Loop>(&step)) {
    for (const ValueId id : loop->read()) check(id, label);
    for (const ValueId id : loop->made()) check(id, label);
  } else {
    check(std::get<Fill>(step).value, label);
  }
  steps_.push_back(std::move(step));
}

std::vector<Program::ValueId> Program::Loop::read() const {
  std::vector<ValueId> all = inputs;
  if (predicate >= 0) all.push_back(predicate);
  return all;
}

std::vector<Program::ValueId> Program::Loop::made() const {
  std::vector<ValueId> all = outputs;
  if (memory >= 0) all.push_back(memory);
  return all;
}

std::uint64_t hash(const Program& program) {
  Mixer mixer;
  const auto add_value = [&](Program::ValueId value) {
    mixer.add(static_cast<std::uint64_t>(value));
  };
  for (std::int64_t p = 0; p < program.mesh().size(); ++p) {
    mixer.add(static_cast<std::uint64_t>(program.mesh().device_at(p)));
  }
  for (const Program::Value& value : program.values()) {
    mixer.add(static_cast<std::uint64_t>(value.dtype));
    mixer.add(to_string(value.shape));
    mixer.add(value.layout.to_string());
  }
  for (const Program::Step& step : program.steps()) {
    mixer.add(name(step));
    if (const auto* const call = std::get_if<Program::Call>(&step)) {
      for (const Program::ValueId value : call->inputs) add_value(value);
      for (const Program::ValueId value : call->outputs) add_value(value);
    } else if (const auto* const move = std::get_if<Program::Move>(&step)) {
      for (const Program::Move::Part& part : move->parts) {
        add_value(part.from);
        add_value(part.to);
        mixer.add(part.plan.phases.size());
      }
    } else if (const auto* const loop = std::get_if<Program::Loop>(&step)) {
      for (const Program::ValueId value : loop->read()) add_value(value);
      for (const Program::ValueId value : loop->made()) add_value(value);
      mixer.add(hash(loop->body->program));
      if (loop->otherwise != nullptr) mixer.add(hash(loop->otherwise->program));
      mixer.add(static_cast<std::uint64_t>(loop->body->trips));
    } else {
      add_value(std::get<Program::Fill>(step).value);
    }
  }
  return mixer.state();
}

const std::string& name(const Program::Step& step) {
  return std::visit([](const auto& s) -> const std::string& { return s.name; }, step);
}

}  // namespace shardwise
