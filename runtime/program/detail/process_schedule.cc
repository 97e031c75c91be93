#include "shardwise/runtime/program/detail/process_schedule.h"

#include <utility>
#include <variant>

#include "shardwise/runtime/program/detail/schedule_builder.h"

namespace shardwise::detail {
namespace {

PhaseMessages phase_messages(const Program& program, const Program::Move& move, std::size_t phase,
                             const Devices& devices) {
  const auto device = [&program](std::int64_t position) {
    return program.mesh().device_at(position);
  };
  std::vector<Transfer> transfers;
  for (const Program::Move::Part& part : move.parts) {
    for (const MoveGroup& group : part.plan.phases[phase].groups) {
      transfers.push_back({.plan = &group.plan,
                           .dtype = program.value(part.to).dtype,
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
  return {RemotePlan(transfers, devices), move.parts.front().plan.phases[phase].groups.size()};
}

}  // namespace

ProcessSchedule::ProcessSchedule(const Program& program, std::size_t first_step,
                                 const MemoryReuse& reuse, const Devices& devices)
    : devices_(devices.size()),
      processes_(devices.group().size()),
      rank_(devices.group().rank()),
      phases_(program.steps().size()) {
  std::vector<bool> is_here;
  for (std::int64_t position = 0; position < program.mesh().size(); ++position) {
    is_here.push_back(devices.is_addressable(program.mesh().device_at(position)));
  }
  const std::size_t last_step = program.steps().size();
  for (std::size_t step = first_step; step < last_step;) {
    Section& section = sections_.emplace_back(Section{.first_step = step, .last_step = step + 1});
    if (std::holds_alternative<Program::Loop>(program.steps()[step])) {
      section.is_loop = true;
      ++step;
      continue;
    }
    ScheduleBuilder builder(program, reuse, section.graph, section.tasks,
                            {.is_here = &is_here, .section = &section});
    for (; step < last_step; ++step) {
      if (std::holds_alternative<Program::Loop>(program.steps()[step])) break;
      if (const auto* const move = std::get_if<Program::Move>(&program.steps()[step])) {
        for (std::size_t phase = 0; phase < move->parts.front().plan.phases.size(); ++phase) {
          phases_[step].push_back(phase_messages(program, *move, phase, devices));
        }
      }
      builder.add(step, phases_[step]);
    }
    section.last_step = step;
  }
}

bool ProcessSchedule::is_for(const Devices& devices) const {
  return devices.size() == devices_ && devices.group().size() == processes_ &&
         devices.group().rank() == rank_;
}

}  // namespace shardwise::detail
