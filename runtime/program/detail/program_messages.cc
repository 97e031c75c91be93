#include "shardwise/runtime/program/detail/program_messages.h"

#include <utility>
#include <variant>

namespace shardwise::detail {
namespace {

PhaseMessages phase_messages(const Program& program, const Program::Move& move, std::size_t phase,
                             const Devices& devices) {
  const auto device = [&program](std::int64_t position) {
    return program.mesh().device_at(position);
  };
  std::vector<PhaseMessages::Group> groups;
  std::vector<PhaseMessages::Target> targets;
  std::vector<Transfer> transfers;
  for (std::size_t p = 0; p < move.parts.size(); ++p) {
    const MovePhase& at_phase = move.parts[p].plan.phases[phase];
    for (std::size_t g = 0; g < at_phase.groups.size(); ++g) {
      const MoveGroup& group = at_phase.groups[g];
      for (std::size_t i = 0; i < group.targets.size(); ++i) {
        if (!devices.is_addressable(device(group.targets[i]))) continue;
        targets.push_back({groups.size(), static_cast<std::int64_t>(i)});
      }
      groups.push_back({p, g});
      transfers.push_back({.plan = &group.plan,
                           .dtype = program.value(move.parts[p].to).dtype,
                           .source_device =
                               [&group, device](std::int64_t source) {
                                 return device(group.sources[as_size(source)]);
                               },
                           .target_device =
                               [&group, device](std::int64_t target) {
                                 return device(group.targets[as_size(target)]);
                               }});
    }
  }
  return {std::move(groups), std::move(targets), RemotePlan(transfers, devices)};
}

}  // namespace

ProgramMessages::ProgramMessages(const Program& program, std::size_t first_step,
                                 const Devices& devices)
    : devices_(devices.size()),
      processes_(devices.group().size()),
      rank_(devices.group().rank()),
      positions_(program.steps().size()),
      phases_(program.steps().size()) {
  for (std::size_t s = first_step; s < program.steps().size(); ++s) {
    const Program::Step& step = program.steps()[s];
    if (const auto* const move = std::get_if<Program::Move>(&step)) {
      for (std::size_t phase = 0; phase < move->parts.front().plan.phases.size(); ++phase) {
        phases_[s].push_back(phase_messages(program, *move, phase, devices));
      }
      continue;
    }
    const auto add = [&](std::int64_t position) {
      if (devices.is_addressable(program.mesh().device_at(position))) {
        positions_[s].push_back(position);
      }
    };
    if (const auto* const fill = std::get_if<Program::Fill>(&step)) {
      for (const std::int64_t position : fill->positions) add(position);
    } else {
      for (std::int64_t position = 0; position < program.mesh().size(); ++position) add(position);
    }
  }
}

bool ProgramMessages::is_for(const Devices& devices) const {
  return devices.size() == devices_ && devices.group().size() == processes_ &&
         devices.group().rank() == rank_;
}

}  // namespace shardwise::detail
