#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/detail/plans/tensors.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/runtime/spmd/plans.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace detail {

std::string tensor_text(const Graph& graph, NodeId node) {
  for (const GraphInput& input : graph.inputs) {
    if (input.node == node) return fmt::format("\"{}\"", input.label);
  }
  return fmt::format("%{}", node);
}

std::string mark_text(const Graph& graph, NodeId node, const LineOf& line_of) {
  const std::string line = line_of ? line_of(node) : "";
  return fmt::format("{}{} as {}", line.empty() ? "the mark of " : line + " marks ",
                     tensor_text(graph, node), graph.node(node).mark->to_string());
}

std::vector<CutReason> cut_reasons(const Graph& graph, const Mesh& mesh,
                                   const Propagation& propagation, NodeId node) {
  std::vector<CutReason> reasons;
  const Cut& cut = propagation.cuts[as_size(node)];
  for (std::size_t dim = 0; dim < cut.size(); ++dim) {
    Cut one(1);
    one[0] = cut[dim];
    CutReason reason{.dim = dim, .axes = to_text(one, mesh), .way = {}, .marked = {}};
    if (!cut[dim].empty()) {
      reason.way = way_to_mark(graph, propagation, node, dim);
      const NodeId end = reason.way.empty() ? node : reason.way.back();
      if (graph.node(end).mark) reason.marked = end;
    } else if (graph.node(node).mark) {
      reason.marked = node;
    }
    reasons.push_back(std::move(reason));
  }
  return reasons;
}

std::string reason_text(const Graph& graph, const CutReason& reason, const LineOf& line_of) {
  std::string text = reason.axes == "-" ? fmt::format("dim {} is whole", reason.dim)
                                        : fmt::format("dim {} by {}", reason.dim, reason.axes);
  if (reason.marked) text += ": because " + mark_text(graph, *reason.marked, line_of);
  if (!reason.marked && reason.axes == "-") text += ": no mark reaches it";
  constexpr std::size_t kMostShown = 8;
  const std::size_t between = reason.way.size() - (reason.way.empty() ? 0 : 1);
  if (between == 0) return text;
  text += ", by way of ";
  for (std::size_t i = 0; i < std::min(between, kMostShown); ++i) {
    text += (i == 0 ? "" : ", ") + tensor_text(graph, reason.way[i]);
  }
  return between > kMostShown ? text + fmt::format(" and {} more", between - kMostShown) : text;
}

}  // namespace detail

NodeId find_tensor(const Graph& graph, std::string_view text) {
  std::vector<std::string_view> labels;
  for (const GraphInput& input : graph.inputs) {
    if (input.label == text) return input.node;
    labels.push_back(input.label);
  }
  if (text.starts_with('%')) {
    const auto number = parse_count(text.substr(1));
    if (number && as_size(*number) < graph.nodes.size()) return *number;
    throw Error(ErrorCode::no_such_name,
                fmt::format("find a tensor: found no operation {}, needed one from %0 to %{}", text,
                            graph.nodes.size() - 1));
  }
  const std::vector<std::string_view> nearest = nearest_names(labels, text);
  constexpr std::size_t kMostShown = 10;
  if (labels.size() > kMostShown) labels.resize(kMostShown);
  throw Error(ErrorCode::no_such_name,
              fmt::format("find a tensor: found no input \"{}\", needed one of {}, or an operation "
                          "as in %98",
                          text, fmt::join(nearest.empty() ? labels : nearest, ", ")));
}

std::vector<CutReason> cut_reasons(const Executable& executable, NodeId node) {
  return detail::cut_reasons(executable.graph(), executable.mesh(),
                             planned_program(executable).propagation, node);
}

std::string why(const Executable& executable, NodeId node, const LineOf& line_of) {
  const Graph& graph = executable.graph();
  const Propagation& propagation = planned_program(executable).propagation;
  std::string text = fmt::format("{} is cut as {}\n", detail::tensor_text(graph, node),
                                 to_text(propagation.cuts[as_size(node)], executable.mesh()));
  for (const CutReason& reason : cut_reasons(executable, node)) {
    text += "  " + detail::reason_text(graph, reason, line_of) + '\n';
  }
  for (const Propagation::Conflict& conflict : propagation.conflicts) {
    if (conflict.kept != node && conflict.dropped != node && conflict.node != node) continue;
    text += "  two wishes at " + conflict.text + '\n';
  }
  return text;
}

}  // namespace shardwise
