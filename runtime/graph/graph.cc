#include "shardwise/runtime/graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

#include "shardwise/runtime/graph/detail/attribute_fields.h"
#include "shardwise/runtime/graph/detail/line_reader.h"
#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

void add_dims(Mixer& mixer, const Dims& dims) {
  mixer.add(dims.size());
  for (const std::int64_t value : dims) mixer.add(static_cast<std::uint64_t>(value));
}

void add_spec(Mixer& mixer, const PartitionSpec& spec) {
  for (const PartitionSpec::Entry& entry : spec.entries()) {
    mixer.add(entry.size());
    for (const std::string& axis : entry) mixer.add(axis);
  }
}

/// Mixes the fields of attribute_fields.h.
class FieldHasher {
 public:
  explicit FieldHasher(Mixer& mixer) : mixer_(mixer) {}

  void list(std::string_view, const Dims& dims) { add_dims(mixer_, dims); }
  void numbers(std::string_view, std::same_as<std::int64_t> auto... values) { (add(values), ...); }
  void number(const Scalar& number) {
    add(number.dtype());
    mixer_.add(number.bits());
  }
  void number_but_zero(const Scalar& scalar) { number(scalar); }
  void literal(const LiteralAttributes& a) { mixer_.add(a.hash()); }
  void text(const Equation& equation) {
    for (const std::string* letters : {&equation.lhs, &equation.rhs, &equation.result}) {
      mixer_.add(*letters);
    }
  }
  void text(const PartitionSpec& spec) { add_spec(mixer_, spec); }
  void text(const std::vector<std::string>& axes) {
    for (const std::string& axis : axes) mixer_.add(axis);
  }
  void dtype(std::string_view, const std::optional<DType>& dtype) {
    if (dtype) add(*dtype);
  }
  void count(std::string_view, std::int64_t number) { add(number); }
  void word(auto enumerator, const auto&) { add(enumerator); }
  void flag(std::string_view, bool is_set) { add(is_set); }
  void body(const std::shared_ptr<const Graph>& graph) { mixer_.add(hash(*graph)); }

 private:
  void add(auto value) { mixer_.add(static_cast<std::uint64_t>(value)); }

  Mixer& mixer_;
};

std::vector<const Graph*> bodies_of(const Node& node) {
  if (const auto* const scan = std::get_if<ScanAttributes>(&node.attributes)) {
    return {scan->body.get()};
  }
  if (const auto* const cond = std::get_if<CondAttributes>(&node.attributes)) {
    return {cond->body.get(), cond->otherwise.get()};
  }
  return {};
}

void add_literals(const Graph& graph, std::set<std::uint64_t>& known,
                  std::vector<const Node*>& nodes) {
  for (const Node& node : graph.nodes) {
    const auto* const literal = std::get_if<LiteralAttributes>(&node.attributes);
    if (literal != nullptr && known.insert(literal->hash()).second) nodes.push_back(&node);
    for (const Graph* const body : bodies_of(node)) add_literals(*body, known, nodes);
  }
}

/// The graph input that the node is; null for any other node.
const GraphInput* input_at(const Graph& graph, NodeId id) {
  if (graph.node(id).op != Op::input) return nullptr;
  const auto is_it = [&](const GraphInput& input) { return input.node == id; };
  const auto at = std::find_if(graph.inputs.begin(), graph.inputs.end(), is_it);
  return at == graph.inputs.end() ? nullptr : &*at;
}

/// `input`: the graph input that the node is, or null.
std::string node_text(const Graph& graph, NodeId id, const GraphInput* input) {
  const Node& node = graph.node(id);
  std::string operands;
  for (const NodeId operand : node.operands) {
    operands += fmt::format("{}%{}", operands.empty() ? "" : ", ", operand);
  }
  const std::string label = input == nullptr ? "" : ' ' + detail::quoted(input->label);
  std::string mark;
  if (node.mark) mark = node.mark->rank() == 0 ? "\"\"" : node.mark->to_string();
  return fmt::format("%{} = {}({}){}{} : {}{}{}", id, name(node.op), operands, label,
                     to_string(node.attributes), to_string(node.type), node.mark ? " marked " : "",
                     mark);
}

/// Facts that node_text() does not show, as far as they differ from the defaults.
std::string other_facts(const Node& node, const GraphInput* input) {
  std::string text;
  if (input != nullptr && input->kind != MemoryKind::array) {
    text += fmt::format(" kind={}", name(input->kind));
  }
  if (node.backward) text += " backward";
  if (node.block != 0) text += fmt::format(" block={}", node.block);
  if (node.is_saved) text += " saved";
  return text;
}

}  // namespace

bool ScanAttributes::operator==(const ScanAttributes& other) const {
  return length == other.length && carries == other.carries && xs == other.xs &&
         reverse == other.reverse && (body == other.body || same_program(*body, *other.body));
}

bool CondAttributes::operator==(const CondAttributes& other) const {
  const auto same = [](const auto& a, const auto& b) { return a == b || same_program(*a, *b); };
  return same(body, other.body) && same(otherwise, other.otherwise);
}

GraphBuilder::GraphBuilder(Graph graph) : Graph(std::move(graph)) {
  for (const Node& node : nodes) blocks = std::max(blocks, node.block);
}

std::uint64_t hash(const Graph& graph) {
  Mixer mixer;
  for (const Node& node : graph.nodes) {
    mixer.add(static_cast<std::uint64_t>(node.op) << 16 |
              static_cast<std::uint64_t>(node.type.dtype) << 8 | node.operands.size());
    add_dims(mixer, node.type.shape);
    for (const NodeId operand : node.operands) mixer.add(static_cast<std::uint64_t>(operand));
    FieldHasher fields(mixer);
    std::visit([&](const auto& attributes) { detail::visit(fields, attributes); }, node.attributes);
    if (node.backward || node.manual) mixer.add(node.manual ? 3 : 1);
    if (node.mark) add_spec(mixer, *node.mark);
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
  return node_text(graph, id, input_at(graph, id));
}

std::string in_scope(const Graph& graph, std::int32_t scope) {
  const std::string& path = graph.scopes[static_cast<std::size_t>(scope)];
  return path.empty() ? "" : " in " + detail::quoted(path);
}

namespace {

constexpr std::string_view kWrittenAttention = "written attention";

/// The place of a kernel's name in the path; npos if it has no such name.
std::size_t kernel_name(std::string_view path, std::string_view name) {
  const std::size_t begin = path.rfind('/') + 1;
  const std::string_view last = path.substr(begin);
  const bool is_it =
      last == name || (last.starts_with(name) && last.substr(name.size(), 2) == " [");
  return is_it ? begin : std::string_view::npos;
}

bool has_scope(const Graph& graph, std::string_view name) {
  const auto is_it = [&](const std::string& path) {
    return kernel_name(path, name) != std::string::npos;
  };
  const auto has_it = [&](const Node& node) {
    return std::ranges::any_of(bodies_of(node),
                               [&](const Graph* body) { return has_scope(*body, name); });
  };
  return std::ranges::any_of(graph.scopes, is_it) || std::ranges::any_of(graph.nodes, has_it);
}

}  // namespace

bool is_of_fused_attention(const Graph& graph, std::int32_t scope) {
  return kernel_name(graph.scopes[static_cast<std::size_t>(scope)], kFusedAttention) !=
         std::string::npos;
}

std::string_view planned_attention(const Graph& graph) {
  if (has_scope(graph, kFusedAttention)) return "fused";
  return has_scope(graph, kWrittenAttention) ? "written" : "";
}

std::shared_ptr<const Graph> with_written_attention(const std::shared_ptr<const Graph>& graph) {
  if (!has_scope(*graph, kFusedAttention)) return graph;
  auto written = std::make_shared<Graph>(*graph);
  for (std::string& path : written->scopes) {
    const std::size_t begin = kernel_name(path, kFusedAttention);
    if (begin != std::string::npos) path.replace(begin, kFusedAttention.size(), kWrittenAttention);
  }
  for (Node& node : written->nodes) {
    if (auto* const scan = std::get_if<ScanAttributes>(&node.attributes)) {
      scan->body = with_written_attention(scan->body);
    } else if (auto* const cond = std::get_if<CondAttributes>(&node.attributes)) {
      cond->body = with_written_attention(cond->body);
      cond->otherwise = with_written_attention(cond->otherwise);
    }
  }
  return written;
}

std::vector<bool> within_kernels(const Graph& graph) {
  std::vector<bool> is_kernel;  // by scope
  for (std::size_t scope = 0; scope < graph.scopes.size(); ++scope) {
    is_kernel.push_back(is_of_fused_attention(graph, static_cast<std::int32_t>(scope)));
  }
  if (std::ranges::none_of(is_kernel, std::identity())) return {};
  std::vector<bool> within;
  for (const Node& node : graph.nodes) {
    within.push_back(node.op != Op::input && is_kernel[static_cast<std::size_t>(node.scope)]);
  }
  for (const Node& node : graph.nodes) {
    for (const NodeId id : node.operands) {
      const Node& operand = graph.node(id);
      if (operand.scope != node.scope || operand.backward != node.backward)
        within[static_cast<std::size_t>(id)] = false;
    }
  }
  for (const NodeId output : graph.outputs) within[static_cast<std::size_t>(output)] = false;
  return within;
}

std::string with_scope(const Graph& graph, NodeId id) {
  return to_string(graph, id) + in_scope(graph, graph.node(id).scope);
}

namespace {

void dump(const Graph& graph, const std::string& indent, std::string& text) {
  std::vector<const GraphInput*> inputs(graph.nodes.size(), nullptr);
  for (const GraphInput& input : graph.inputs)
    inputs[static_cast<std::size_t>(input.node)] = &input;
  for (std::size_t id = 0; id < graph.nodes.size(); ++id) {
    const std::vector<const Graph*> bodies = bodies_of(graph.nodes[id]);
    text += indent + node_text(graph, static_cast<NodeId>(id), inputs[id]);
    text += other_facts(graph.nodes[id], inputs[id]);
    if (!bodies.empty()) text += " {";
    const std::string& scope = graph.scopes[static_cast<std::size_t>(graph.nodes[id].scope)];
    if (!scope.empty()) text += "  # " + detail::escaped(scope);
    text += '\n';
    for (const Graph* const body : bodies) {
      if (body != bodies.front()) text += indent + "} else {\n";
      dump(*body, indent + "  ", text);
    }
    if (!bodies.empty()) text += indent + "}\n";
  }
  text += indent + "return";
  for (const NodeId output : graph.outputs) text += fmt::format(" %{}", output);
  text += '\n';
}

}  // namespace

std::vector<const Node*> literals(const Graph& graph) {
  std::set<std::uint64_t> known;
  std::vector<const Node*> nodes;
  add_literals(graph, known, nodes);
  return nodes;
}

std::string dump(const Graph& graph) {
  std::string text;
  dump(graph, "", text);
  return text;
}

}  // namespace shardwise
