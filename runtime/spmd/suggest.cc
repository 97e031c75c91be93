#include "shardwise/runtime/spmd/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

namespace shardwise {
namespace {

constexpr std::size_t kInputsTried = 4;

/// The cut with one more axis on the longest dim that is whole and that the axis divides.
std::optional<Cut> cut_further(const Cut& cut, const Shape& shape, std::size_t axis,
                               const Mesh& mesh) {
  const std::int64_t size = mesh.axes()[axis].size;
  if (size == 1 || (axes_of(cut) >> axis & 1)) return std::nullopt;
  std::optional<std::size_t> best;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (!cut[dim].empty() || shape[dim] % size != 0 || shape[dim] == 0) continue;
    if (!best || shape[dim] > shape[*best]) best = dim;
  }
  if (!best) return std::nullopt;
  Cut further = cut;
  further[*best].push_back(axis);
  return further;
}

std::size_t peak(const Executable& executable) {
  std::size_t most = 0;
  for (std::int64_t p = 0; p < executable.mesh().size(); ++p) {
    most = std::max(most, executable.memory(p).peak_bytes);
  }
  return most;
}

/// Marks an input anew, in the graph and where it says how the array is cut.
void mark(Graph& graph, CompileOptions& options, std::size_t input, const Cut& cut,
          const Mesh& mesh) {
  const PartitionSpec spec = to_spec(cut, mesh);
  graph.node(graph.inputs[input].node).mark = spec;
  if (input < options.input_specs.size()) options.input_specs[input] = spec;
}

}  // namespace

std::string suggest(const Graph& graph, const Mesh& mesh, const CompileOptions& options,
                    std::size_t capacity_bytes) {
  const Propagation now = propagate(graph, mesh);
  const auto cut = [&](std::size_t input) -> const Cut& {
    return now.cuts[as_size(graph.inputs[input].node)];
  };
  const auto shape = [&](std::size_t input) -> const Shape& {
    return graph.node(graph.inputs[input].node).type.shape;
  };
  std::vector<std::size_t> order(graph.inputs.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto bytes = [&](std::size_t input) {
    const TensorType& type = graph.node(graph.inputs[input].node).type;
    return num_bytes(type.shape, size_bytes(type.dtype)) / as_size(ways(axes_of(cut(input)), mesh));
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return bytes(a) > bytes(b); });
  order.resize(std::min(order.size(), kInputsTried));
  for (const std::size_t input : order) {
    for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
      const std::optional<Cut> further = cut_further(cut(input), shape(input), axis, mesh);
      if (!further) continue;
      auto other = std::make_shared<Graph>(graph);
      CompileOptions changed = options;
      mark(*other, changed, input, *further, mesh);
      const std::size_t most = peak(Executable(other, mesh, changed));
      if (most > capacity_bytes) continue;
      return fmt::format("it fits with \"{}\" cut as {}: peak {} bytes", graph.inputs[input].label,
                         to_spec(*further, mesh).to_string(), most);
    }
  }
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
    auto other = std::make_shared<Graph>(graph);
    CompileOptions changed = options;
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
      const MemoryKind kind = graph.inputs[i].kind;
      if (kind != MemoryKind::parameter && kind != MemoryKind::optimizer) continue;
      const std::optional<Cut> further = cut_further(cut(i), shape(i), axis, mesh);
      if (further) mark(*other, changed, i, *further, mesh);
    }
    const std::size_t most = peak(Executable(other, mesh, changed));
    if (most > capacity_bytes) continue;
    return fmt::format(
        "it fits with all weights and optimizer state cut over {} too: peak {} bytes",
        mesh.axes()[axis].name, most);
  }
  return "no single input, nor all weights and optimizer state, cut over one more axis would make "
         "it fit";
}

}  // namespace shardwise
