#include "shardwise/runtime/spmd/detail/control/lower_body.h"

#include <optional>
#include <utility>

#include "shardwise/runtime/memory/detail/offsets.h"

namespace shardwise {
namespace {

/// The places of the values that are neither inputs nor made outputs.
std::vector<LoopBody::Place> places(const MemoryPlan& plan) {
  std::vector<LoopBody::Place> all;
  for (std::size_t v = 0; v < plan.homes.size(); ++v) {
    if (plan.homes[v] != MemoryPlan::Home::region) continue;
    const Program::ValueId root = plan.roots[v];
    const bool is_in_input = plan.homes[as_size(root)] == MemoryPlan::Home::input;
    all.push_back({static_cast<Program::ValueId>(v), is_in_input ? root : -1, plan.offset(v)});
  }
  return all;
}

}  // namespace

Schedule made_schedule(const Program& program, const MemoryReuse& reuse, MovePlans move_plans) {
  return move_plans == MovePlans::made ? Schedule(program, 0, reuse)
                                       : Schedule(Program(program.mesh()));
}

LoweredBody lower_body(const detail::BodyParts& parts, const PartitionedBody& body,
                       const Mesh& mesh, NanCheck nan_check, MovePlans move_plans) {
  LoweredBody made;
  made.steps = fuse(*body.graph, body.partitioned, nan_check);
  LoweredProgram lowered =
      lower(body.graph, mesh, body.partitioned, made.steps, nan_check, move_plans);
  const std::size_t first = lowered.inputs.size() - parts.carries - parts.xs;
  made.plan = plan_memory(*body.graph, lowered, {}, OutputsHost::no, {first, parts.carries});
  made.bodies = std::move(lowered.bodies);
  made.region_bytes = made.plan.region_bytes;
  std::vector<std::optional<std::size_t>> spare_offsets(parts.carries);
  for (std::size_t k = 0; parts.length > 1 && k < parts.carries; ++k) {
    if (made.plan.donated[k] >= 0) continue;
    made.region_bytes = aligned_offset(made.region_bytes);
    spare_offsets[k] = made.region_bytes;
    made.region_bytes += made.plan.bytes[as_size(lowered.outputs[k])];
  }
  Schedule schedule = made_schedule(lowered.program, made.plan.reuse, move_plans);
  std::vector<LoopBody::Place> where = places(made.plan);
  made.body = std::make_shared<const LoopBody>(LoopBody{.program = std::move(lowered.program),
                                                        .schedule = std::move(schedule),
                                                        .trips = parts.length,
                                                        .reverse = parts.reverse,
                                                        .carries = parts.carries,
                                                        .xs = parts.xs,
                                                        .inputs = std::move(lowered.inputs),
                                                        .outputs = std::move(lowered.outputs),
                                                        .is_made = made.plan.is_made,
                                                        .places = std::move(where),
                                                        .spare_offsets = std::move(spare_offsets)});
  return made;
}

}  // namespace shardwise
