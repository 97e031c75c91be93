#include <fmt/format.h>

#include <string>

#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

void dump(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
          const std::string& indent, std::string& text) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    const Node& node = graph.nodes[i];
    text += fmt::format("{}{} [{}]{}\n", indent, to_string(graph, id),
                        to_text(propagation.cuts[i], mesh), has_bodies(node.op) ? " {" : "");
    if (!has_bodies(node.op)) continue;
    dump(detail::BodyParts(node).body(), mesh, *propagation.bodies.at(id), indent + "  ", text);
    if (detail::has_otherwise(node)) {
      text += indent + "} else {\n";
      dump(detail::BodyParts(node, detail::BodyParts::Which::otherwise).body(), mesh,
           *propagation.otherwise.at(id), indent + "  ", text);
    }
    text += indent + "}\n";
  }
}

}  // namespace

std::string dump(const Graph& graph, const Mesh& mesh, const Propagation& propagation) {
  std::string text = fmt::format("mesh {}\n", mesh.to_string());
  dump(graph, mesh, propagation, "", text);
  return text;
}

std::vector<NodeId> way_to_mark(const Graph& graph, const Propagation& propagation, NodeId node,
                                std::size_t dim) {
  constexpr std::size_t kMostHops = 1000;
  const AxisSet axes = propagation.cuts[as_size(node)][dim].set();
  std::vector<NodeId> way;
  NodeId at = node;
  while (way.size() < kMostHops && !graph.node(at).mark) {
    if (has_bodies(graph.node(at).op)) break;  // its body explains the rest
    const NodeId from = propagation.origins[as_size(at)][dim];
    if (from < 0 || from == at) break;
    way.push_back(from);
    const Cut& next = propagation.cuts[as_size(from)];
    for (std::size_t d = 0; d < next.size(); ++d) {
      if (next[d].set() & axes) dim = d;
    }
    at = from;
  }
  return way;
}

std::string explain(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
                    NodeId node) {
  const Cut& cut = propagation.cuts[as_size(node)];
  std::string text = fmt::format("{} is cut as {}\n", to_string(graph, node), to_text(cut, mesh));
  for (std::size_t dim = 0; dim < cut.size(); ++dim) {
    text += fmt::format("  dim {}: ", dim);
    if (cut[dim].empty()) {
      text += "whole\n";
      continue;
    }
    Cut one(1);
    one[0] = cut[dim];
    text += to_text(one, mesh);
    const std::vector<NodeId> way = way_to_mark(graph, propagation, node, dim);
    for (const NodeId from : way) text += fmt::format(" from %{}", from);
    const NodeId at = way.empty() ? node : way.back();
    if (graph.node(at).mark) text += ", marked" + in_scope(graph, graph.node(at).scope);
    text += '\n';
  }
  for (const Propagation::Conflict& conflict : propagation.conflicts) {
    if (conflict.node == node) text += "  conflict: " + conflict.text + '\n';
  }
  return text;
}

}  // namespace shardwise
