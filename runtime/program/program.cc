#include "shardwise/runtime/program/program.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"

namespace shardwise {

Program::ValueId Program::add_value(Value value) {
  const Mesh& mesh = value.spec.sharding.mesh();
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
  } else {
    check(std::get<Fill>(step).value, label);
  }
  steps_.push_back(std::move(step));
}

const std::string& name(const Program::Step& step) {
  return std::visit([](const auto& s) -> const std::string& { return s.name; }, step);
}

}  // namespace shardwise
