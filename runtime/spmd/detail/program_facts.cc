#include "shardwise/runtime/spmd/detail/program_facts.h"

#include <string>

#include "shardwise/shard/host/random.h"

namespace shardwise::detail {
std::vector<ProcessGroup::Fact> program_facts(const PlannedProgram& planned) {
  const Graph& graph = *planned.graph;
  const Mesh& mesh = planned.mesh;
  const CompileOptions& options = planned.options;
  Mixer places, held, given, donated;
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    places.add(static_cast<std::uint64_t>(mesh.device_at(p)));
  }
  places.add(mesh.to_string());
  for (const NodeId output : graph.outputs) held.add(static_cast<std::uint64_t>(output));
  for (const Program::ValueId input : planned.lowered.inputs) {
    given.add(planned.lowered.program.value(input).layout.to_string());
  }
  for (const bool may_donate : options.may_donate) donated.add(may_donate ? 1 : 0);
  return {{"a hash of the mesh", places.state()},
          {"the number of operations", graph.nodes.size()},
          {"the number of inputs", graph.inputs.size()},
          {"the number of tensors that are still held", graph.outputs.size()},
          {"a hash of the tensors that are still held", held.state()},
          {"a hash of how the inputs are cut", given.state()},
          {"a hash of the inputs that nothing else holds", donated.state()},
          {"the NaN check", options.nan_check == NanCheck::on ? 1U : 0U},
          {"keep_gathered_weights", options.partition.keep_gathered_weights ? 1U : 0U},
          {"a hash of the operations", shardwise::hash(graph)}};
}

std::uint64_t hash(const std::vector<ProcessGroup::Fact>& facts) {
  Mixer mixer;
  for (const ProcessGroup::Fact& fact : facts) mixer.add(fact.value);
  return mixer.state();
}

}  // namespace shardwise::detail
