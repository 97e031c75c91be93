#include "shardwise/runtime/spmd/detail/control/live_results.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "shardwise/runtime/ops/detail/body.h"

namespace shardwise {
namespace {

using detail::ScanParts;

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

/// Keeps what results need of a scan. Gives, by result, the number that it has now; -1: it went.
std::vector<std::int64_t> prune(Node& node, std::vector<bool> results) {
  const Node before = node;
  const ScanParts scan(before);
  results.resize(scan.carries + scan.ys, false);
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<bool> needed = needed_by(scan.body(), results);
    for (std::size_t k = 0; k < scan.carries; ++k) {
      if (results[k] || !needed[as_size(scan.input(scan.consts + k))]) continue;
      results[k] = changed = true;
    }
  }
  Graph body = scan.body();
  body.inputs.clear();
  body.outputs.clear();
  std::vector<std::int64_t> now(results.size(), -1);
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (!results[r]) continue;
    now[r] = std::ssize(body.outputs);
    body.outputs.push_back(scan.output(r));
  }
  body = pruned(std::move(body));
  const std::vector<bool> needed = needed_by(body, std::vector<bool>(body.outputs.size(), true));
  auto& attributes = std::get<ScanAttributes>(node.attributes);
  attributes.carries = attributes.xs = 0;
  node.operands.clear();
  for (std::size_t i = 0; i < before.operands.size(); ++i) {
    const bool is_carry = i >= scan.consts && i < scan.first_x();
    if (is_carry ? !results[i - scan.consts] : !needed[as_size(scan.input(i))]) continue;
    node.operands.push_back(before.operands[i]);
    body.inputs.push_back(scan.body().inputs[i]);
    attributes.carries += is_carry ? 1 : 0;
    attributes.xs += i >= scan.first_x() ? 1 : 0;
  }
  attributes.body = std::make_shared<const Graph>(std::move(body));
  return now;
}

Graph pruned(Graph graph) {
  std::vector<bool> used(graph.nodes.size(), false);
  std::map<NodeId, std::vector<bool>> results;          // by scan
  std::map<NodeId, std::vector<std::int64_t>> numbers;  // likewise
  for (const NodeId output : graph.outputs) used[as_size(output)] = true;
  for (auto id = static_cast<NodeId>(graph.nodes.size()) - 1; id >= 0; --id) {
    if (!used[as_size(id)]) continue;
    Node& node = graph.node(id);
    if (node.op == Op::scan) numbers[id] = prune(node, std::move(results[id]));
    if (node.op == Op::result) {
      const auto index = as_size(std::get<ResultAttributes>(node.attributes).index);
      std::vector<bool>& of_scan = results[node.operands[0]];
      if (of_scan.size() <= index) of_scan.resize(index + 1, false);
      of_scan[index] = true;
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

std::shared_ptr<const Graph> without_unused_results(std::shared_ptr<const Graph> graph) {
  const bool has_scans = std::any_of(graph->nodes.begin(), graph->nodes.end(),
                                     [](const Node& node) { return node.op == Op::scan; });
  return has_scans ? std::make_shared<const Graph>(pruned(*graph)) : graph;
}

}  // namespace shardwise
