#include "shardwise/runtime/graph/graph.h"

#include <fmt/format.h>

#include <functional>
#include <string_view>

#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

void add_dims(Mixer& mixer, const Dims& dims) {
  mixer.add(dims.size());
  for (const std::int64_t value : dims) mixer.add(static_cast<std::uint64_t>(value));
}

void add(Mixer& mixer, std::int64_t value) { mixer.add(static_cast<std::uint64_t>(value)); }
void add(Mixer& mixer, const Scalar& number) {
  mixer.add(static_cast<std::uint64_t>(number.dtype()));
  mixer.add(number.bits());
}
void add(Mixer& mixer, const PartitionSpec& spec) {
  for (const PartitionSpec::Entry& entry : spec.entries()) {
    mixer.add(entry.size());
    for (const std::string& axis : entry) mixer.add(axis);
  }
}

void add(Mixer&, const NoAttributes&) {}
void add(Mixer& mixer, const NumberAttributes& a) { add(mixer, a.number); }
void add(Mixer& mixer, const LiteralAttributes& a) { mixer.add(a.hash()); }
void add(Mixer& mixer, const DimAttributes& a) { add(mixer, a.dim); }
void add(Mixer& mixer, const DimsAttributes& a) { add_dims(mixer, a.dims); }
void add(Mixer& mixer, const SliceAttributes& a) {
  for (const Dims* dims : {&a.begin, &a.end, &a.stride}) add_dims(mixer, *dims);
}
void add(Mixer& mixer, const PadAttributes& a) {
  for (const Dims* dims : {&a.low, &a.high, &a.stride}) add_dims(mixer, *dims);
  add(mixer, a.number);
}
void add(Mixer& mixer, const DotAttributes& a) {
  for (const std::string* letters : {&a.equation.lhs, &a.equation.rhs, &a.equation.result}) {
    mixer.add(*letters);
  }
  if (a.result) mixer.add(static_cast<std::uint64_t>(*a.result));
}
void add(Mixer& mixer, const ConvolutionAttributes& a) {
  for (const Dims* dims :
       {&a.lhs, &a.rhs, &a.out, &a.stride, &a.low, &a.high, &a.lhs_dilation, &a.rhs_dilation}) {
    add_dims(mixer, *dims);
  }
  add(mixer, a.feature_groups);
  add(mixer, a.batch_groups);
}
void add(Mixer& mixer, const WindowAttributes& a) {
  for (const Dims* dims : {&a.window, &a.stride, &a.low, &a.high, &a.dilation}) {
    add_dims(mixer, *dims);
  }
}
void add(Mixer& mixer, const ScatterAttributes& a) {
  add(mixer, a.dim);
  add(mixer, a.extent);
}
void add(Mixer& mixer, const ScatterIntoAttributes& a) {
  add(mixer, a.dim);
  mixer.add(static_cast<std::uint64_t>(a.combination));
  mixer.add(static_cast<std::uint64_t>(a.mode));
}
void add(Mixer& mixer, const ShapeAttributes& a) { add_dims(mixer, a.shape); }
void add(Mixer& mixer, const SortAttributes& a) {
  add(mixer, a.dim);
  mixer.add(a.descending ? 1 : 0);
}
void add(Mixer& mixer, const CumulativeAttributes& a) {
  add(mixer, a.dim);
  mixer.add(a.reverse ? 1 : 0);
}
void add(Mixer& mixer, const ManualAttributes& a) {
  add(mixer, a.spec);
  add(mixer, a.replicas);
  mixer.add(a.sums ? 1 : 0);
}
void add(Mixer& mixer, const ReduceAttributes& a) {
  for (const std::string& axis : a.axes) mixer.add(axis);
  mixer.add(static_cast<std::uint64_t>(a.reduction));
}

}  // namespace

std::uint64_t hash(const Graph& graph) {
  Mixer mixer;
  for (const Node& node : graph.nodes) {
    mixer.add(static_cast<std::uint64_t>(node.op) << 16 |
              static_cast<std::uint64_t>(node.type.dtype) << 8 | node.operands.size());
    add_dims(mixer, node.type.shape);
    for (const NodeId operand : node.operands) mixer.add(static_cast<std::uint64_t>(operand));
    std::visit([&](const auto& attributes) { add(mixer, attributes); }, node.attributes);
    if (node.backward || node.manual) mixer.add(node.manual ? 3 : 1);
    if (node.mark) add(mixer, *node.mark);
  }
  for (const GraphInput& input : graph.inputs) {
    mixer.add(static_cast<std::uint64_t>(input.node) << 8 | static_cast<std::uint64_t>(input.kind));
  }
  for (const NodeId output : graph.outputs) mixer.add(static_cast<std::uint64_t>(output));
  return mixer.state();
}

bool same_program(const Graph& a, const Graph& b) {
  if (a.nodes.size() != b.nodes.size() || a.outputs != b.outputs ||
      a.inputs.size() != b.inputs.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.inputs.size(); ++i) {
    if (a.inputs[i].node != b.inputs[i].node || a.inputs[i].kind != b.inputs[i].kind) return false;
  }
  for (std::size_t i = 0; i < a.nodes.size(); ++i) {
    const Node &x = a.nodes[i], &y = b.nodes[i];
    if (x.op != y.op || !(x.type == y.type) || x.operands != y.operands ||
        !(x.attributes == y.attributes) || x.mark != y.mark || x.backward != y.backward) {
      return false;
    }
  }
  return true;
}

std::string to_string(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::string operands;
  for (const NodeId operand : node.operands) {
    operands += fmt::format("{}%{}", operands.empty() ? "" : ", ", operand);
  }
  std::string label;
  for (const GraphInput& input : graph.inputs) {
    if (input.node == id) label = fmt::format(" \"{}\"", input.label);
  }
  return fmt::format("%{} = {}({}){}{} : {}{}", id, name(node.op), operands, label,
                     to_string(node.attributes), to_string(node.type),
                     node.mark ? fmt::format(" marked {}", node.mark->to_string()) : "");
}

std::string in_scope(const Graph& graph, std::int32_t scope) {
  const std::string& path = graph.scopes[static_cast<std::size_t>(scope)];
  return path.empty() ? "" : fmt::format(" in \"{}\"", path);
}

std::string with_scope(const Graph& graph, NodeId id) {
  return to_string(graph, id) + in_scope(graph, graph.node(id).scope);
}

std::string dump(const Graph& graph) {
  std::string text;
  for (std::size_t id = 0; id < graph.nodes.size(); ++id) {
    text += to_string(graph, static_cast<NodeId>(id));
    const std::string& scope = graph.scopes[static_cast<std::size_t>(graph.nodes[id].scope)];
    if (!scope.empty()) text += fmt::format("  # {}", scope);
    text += '\n';
  }
  text += "return";
  for (const NodeId output : graph.outputs) text += fmt::format(" %{}", output);
  return text + '\n';
}

}  // namespace shardwise
