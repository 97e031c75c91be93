#include "shardwise/runtime/spmd/detail/program_facts.h"

#include <functional>
#include <string>

#include "shardwise/shard/host/splitmix64.h"

namespace shardwise::detail {
namespace {

/// Mixes numbers into one; order counts.
class Mixer {
 public:
  Mixer& add(std::uint64_t value) {
    state_ = splitmix64(state_ + value);
    return *this;
  }
  Mixer& add(const std::string& text) { return add(std::hash<std::string>()(text)); }
  std::uint64_t state() const { return state_; }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace

std::vector<ProcessGroup::Fact> program_facts(const Executable& executable,
                                              const CompileOptions& options) {
  const Graph& graph = executable.graph();
  const Mesh& mesh = executable.mesh();
  Mixer places, held, given, donated;
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    places.add(static_cast<std::uint64_t>(mesh.device_at(p)));
  }
  places.add(mesh.to_string());
  for (const NodeId output : graph.outputs) held.add(static_cast<std::uint64_t>(output));
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    given.add(executable.input_spec(i).sharding.to_string());
  }
  for (const bool may_donate : options.may_donate) donated.add(may_donate ? 1 : 0);
  return {{"a hash of the mesh", places.state()},
          {"the number of operations", graph.nodes.size()},
          {"the number of inputs", graph.inputs.size()},
          {"the number of tensors that are still held", graph.outputs.size()},
          {"a hash of the tensors that are still held", held.state()},
          {"a hash of how the inputs are cut", given.state()},
          {"a hash of which inputs nothing else holds", donated.state()},
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
