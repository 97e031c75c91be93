#include "shardwise/runtime/spmd/detail/control/live_results.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "shardwise/runtime/ops/detail/body.h"

namespace shardwise {
namespace {

using detail::BodyParts;

/// The nodes that these outputs of a graph need.
std::vector<bool> needed_by(const Graph& graph, const std::vector<bool>& outputs) {
  std::vector<bool> needed(graph.nodes.size(), false);
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    if (outputs[o]) needed[as_size(graph.outputs[o])] = true;
  }
  for (std::size_t id = needed.size(); id-- > 0;) {
    if (!needed[id]) continue;
    for (const NodeId operand : graph.nodes[id].operands) needed[as_size(operand)] = true;
  }
  return needed;
}

Graph pruned(Graph graph);

/// The body with only these results; its inputs are still to be found.
Graph with_results(const BodyParts& parts, const std::vector<bool>& results) {
  Graph body = parts.body();
  body.inputs.clear();
  body.outputs.clear();
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (results[r]) body.outputs.push_back(parts.output(r));
  }
  return pruned(std::move(body));
}

/// Keeps the operands and carries of a scan or cond that these results need. Returns, by result,
/// its new number; -1 if it was removed.
std::vector<std::int64_t> prune(Node& node, std::vector<bool> results) {
  const Node before = node;
  const BodyParts parts(before);
  results.resize(parts.carries + parts.ys, false);
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<bool> needed = needed_by(parts.body(), results);
    for (std::size_t k = 0; k < parts.carries; ++k) {
      if (results[k] || !needed[as_size(parts.input(parts.consts + k))]) continue;
      results[k] = changed = true;
    }
  }
  std::vector<std::int64_t> now(results.size(), -1);
  for (std::size_t r = 0, next = 0; r < results.size(); ++r) {
    if (results[r]) now[r] = static_cast<std::int64_t>(next++);
  }
  std::vector<BodyParts> both{parts};
  if (detail::has_otherwise(before)) both.emplace_back(before, BodyParts::Which::otherwise);
  std::vector<Graph> bodies;
  std::vector<bool> is_kept(parts.inputs(), false);
  for (const BodyParts& one : both) {
    bodies.push_back(with_results(one, results));
    const Graph& body = bodies.back();
    const std::vector<bool> needed = needed_by(body, std::vector<bool>(body.outputs.size(), true));
    for (std::size_t i = 0; i < is_kept.size(); ++i) {
      const bool is_carry = i >= one.consts && i < one.first_x();
      if (is_carry ? results[i - one.consts] : needed[as_size(one.input(i))]) is_kept[i] = true;
    }
  }
  node.operands.erase(node.operands.begin() + static_cast<std::ptrdiff_t>(parts.skip),
                      node.operands.end());
  std::int64_t carries = 0, xs = 0;
  for (std::size_t i = 0; i < is_kept.size(); ++i) {
    if (!is_kept[i]) continue;
    node.operands.push_back(before.operands[parts.skip + i]);
    for (std::size_t b = 0; b < both.size(); ++b) {
      bodies[b].inputs.push_back(both[b].body().inputs[i]);
    }
    carries += i >= parts.consts && i < parts.first_x() ? 1 : 0;
    xs += i >= parts.first_x() ? 1 : 0;
  }
  auto first = std::make_shared<const Graph>(std::move(bodies[0]));
  if (auto* const cond = std::get_if<CondAttributes>(&node.attributes)) {
    *cond = {std::move(first), std::make_shared<const Graph>(std::move(bodies[1]))};
  } else {
    auto& scan = std::get<ScanAttributes>(node.attributes);
    scan.body = std::move(first);
    scan.carries = carries;
    scan.xs = xs;
  }
  return now;
}

Graph pruned(Graph graph) {
  std::vector<bool> used(graph.nodes.size(), false);
  std::map<NodeId, std::vector<bool>> results;          // by scan or cond
  std::map<NodeId, std::vector<std::int64_t>> numbers;  // likewise
  for (const NodeId output : graph.outputs) used[as_size(output)] = true;
  for (auto id = static_cast<NodeId>(graph.nodes.size()) - 1; id >= 0; --id) {
    if (!used[as_size(id)]) continue;
    Node& node = graph.node(id);
    if (has_bodies(node.op)) numbers[id] = prune(node, std::move(results[id]));
    if (node.op == Op::result) {
      const auto index = as_size(std::get<ResultAttributes>(node.attributes).index);
      std::vector<bool>& of_node = results[node.operands[0]];
      if (of_node.size() <= index) of_node.resize(index + 1, false);
      of_node[index] = true;
    }
    for (const NodeId operand : node.operands) used[as_size(operand)] = true;
  }
  for (std::size_t id = 0; id < graph.nodes.size(); ++id) {
    Node& node = graph.nodes[id];
    if (node.op != Op::result) continue;
    std::int64_t& index = std::get<ResultAttributes>(node.attributes).index;
    index = used[id] ? numbers.at(node.operands[0])[as_size(index)] : -1;
  }
  return graph;
}

}  // namespace

std::shared_ptr<const Graph> without_unused_results(const std::shared_ptr<const Graph>& graph) {
  const bool has_any = std::any_of(graph->nodes.begin(), graph->nodes.end(),
                                   [](const Node& node) { return has_bodies(node.op); });
  return has_any ? std::make_shared<const Graph>(pruned(*graph)) : graph;
}

void drop_unused_steps(PartitionedGraph& partitioned) {
  std::vector<bool> is_read(partitioned.values.size(), false);
  for (const PartitionedGraph::ValueId output : partitioned.outputs) {
    is_read[as_size(output)] = true;
  }
  std::vector<PartitionedGraph::Step> kept;
  kept.reserve(partitioned.steps.size());
  for (std::size_t s = partitioned.steps.size(); s-- > 0;) {
    PartitionedGraph::Step& step = partitioned.steps[s];
    bool is_needed = false;
    visit_step(
        step, [](auto) {}, [&](auto made) { is_needed |= is_read[as_size(made)]; });
    if (!is_needed) continue;
    visit_step(
        step, [&](auto read) { is_read[as_size(read)] = true; }, [](auto) {});
    kept.push_back(std::move(step));
  }
  partitioned.steps.assign(std::make_move_iterator(kept.rbegin()),
                           std::make_move_iterator(kept.rend()));
}

}  // namespace shardwise
