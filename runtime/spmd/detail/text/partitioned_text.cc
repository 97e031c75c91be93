#include <fmt/format.h>

#include <string>

#include "shardwise/runtime/spmd/detail/partition.h"

namespace shardwise {
namespace {

/// The text of a partitioned graph, and of the bodies in it.
class Text {
 public:
  Text(const Mesh& mesh) : mesh_(mesh) {}

  void add(const Graph& graph, const PartitionedGraph& partitioned, const std::string& indent) {
    for (std::size_t i = 0; i < partitioned.inputs.size(); ++i) {
      text_ += fmt::format("{}{} = input %{} \"{}\"\n", indent,
                           value(partitioned, partitioned.inputs[i]), graph.inputs[i].node,
                           graph.inputs[i].label);
    }
    for (const PartitionedGraph::Step& step : partitioned.steps) {
      if (const auto* const compute = std::get_if<PartitionedGraph::Compute>(&step)) {
        const Node& node = graph.node(compute->node);
        text_ += fmt::format(
            "{}{} = {}({}) : {}  # %{}\n", indent, value(partitioned, compute->result),
            name(compute->only_converts ? Op::convert : node.op),
            list(partitioned, compute->operands),
            to_string(type_of(graph, partitioned.values[as_size(compute->result)])), compute->node);
      } else if (const auto* const move = std::get_if<PartitionedGraph::Move>(&step)) {
        text_ += fmt::format("{}{} = {}{{{}}}({}) {} bytes, wire {}  # for %{}\n", indent,
                             value(partitioned, move->to), name(move->kind), axes(move->axes),
                             value(partitioned, move->from), move->bytes, move->wire_bytes,
                             move->consumer);
      } else {
        add(graph, partitioned, std::get<PartitionedGraph::Loop>(step), indent);
      }
    }
    text_ += indent + "return";
    for (const auto output : partitioned.outputs) text_ += " " + value(partitioned, output);
    text_ += '\n';
  }

  std::string take() { return std::move(text_); }

 private:
  void add(const Graph& graph, const PartitionedGraph& partitioned,
           const PartitionedGraph::Loop& loop, const std::string& indent) {
    const Node& node = graph.node(loop.node);
    text_ += fmt::format("{}{} = {}({}) {}{{  # %{}\n", indent, list(partitioned, loop.results),
                         name(node.op), list(partitioned, loop.operands),
                         node.op == Op::scan ? fmt::format("{} times ", trips(graph, loop)) : "",
                         loop.node);
    add(*loop.body->graph, loop.body->partitioned, indent + "  ");
    if (loop.otherwise != nullptr) {
      text_ += indent + "} else {\n";
      add(*loop.otherwise->graph, loop.otherwise->partitioned, indent + "  ");
    }
    text_ += indent + "}\n";
  }

  std::string axes(AxisSet set) const {
    std::string text;
    for (std::size_t axis = 0; axis < mesh_.rank(); ++axis) {
      if (!(set >> axis & 1)) continue;
      text += fmt::format("{}{}:{}", text.empty() ? "" : ",", mesh_.axes()[axis].name,
                          mesh_.axes()[axis].size);
    }
    return text;
  }

  std::string value(const PartitionedGraph& partitioned, PartitionedGraph::ValueId id) const {
    const PartitionedGraph::Value& value = partitioned.values[as_size(id)];
    return fmt::format("v{}[{}{}]", id, to_text(value.cut, mesh_),
                       value.partial ? fmt::format(" parts{{{}}}", axes(value.partial)) : "");
  }

  std::string list(const PartitionedGraph& partitioned,
                   const std::vector<PartitionedGraph::ValueId>& values) const {
    std::string text;
    for (const auto one : values) {
      text += fmt::format("{}{}", text.empty() ? "" : ", ", value(partitioned, one));
    }
    return text;
  }

  const Mesh& mesh_;
  std::string text_;
};

}  // namespace

std::string dump(const Graph& graph, const Mesh& mesh, const PartitionedGraph& partitioned) {
  Text text(mesh);
  text.add(graph, partitioned, "");
  return fmt::format("mesh {}\n", mesh.to_string()) + text.take();
}

}  // namespace shardwise
