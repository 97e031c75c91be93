#include "shardwise/runtime/spmd/detail/control/loops.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace shardwise {
namespace {

using Compute = PartitionedGraph::Compute;
using Move = PartitionedGraph::Move;

bool combines(const Move& move) {
  return move.kind == CollectiveKind::all_reduce || move.kind == CollectiveKind::reduce_scatter;
}

}  // namespace

std::vector<CarriedSum> carried_sums(const detail::BodyParts& scan) {
  const Graph& body = scan.body();
  std::vector<std::vector<NodeId>> users(body.nodes.size());
  for (NodeId id = 0; id < static_cast<NodeId>(body.nodes.size()); ++id) {
    for (const NodeId operand : body.node(id).operands) users[as_size(operand)].push_back(id);
  }
  std::vector<int> leaves(body.nodes.size(), 0);
  for (const NodeId output : body.outputs) ++leaves[as_size(output)];
  std::vector<CarriedSum> sums;
  for (std::size_t k = 0; k < scan.carries; ++k) {
    CarriedSum sum{k, {scan.input(scan.consts + k)}};
    while (true) {
      const NodeId at = sum.nodes.back();
      const std::vector<NodeId>& next = users[as_size(at)];
      if (body.node(at).mark || leaves[as_size(at)] > 0 || next.size() != 1 ||
          body.node(next.front()).op != Op::add) {
        break;
      }
      sum.nodes.push_back(next.front());
    }
    const NodeId last = sum.nodes.back();
    const bool is_sum = sum.nodes.size() > 1 && last == scan.output(k) && !body.node(last).mark &&
                        leaves[as_size(last)] == 1 && users[as_size(last)].empty();
    if (is_sum) sums.push_back(std::move(sum));
  }
  return sums;
}

bool stays_parts(const PartitionedBody& body, const CarriedSum& sum) {
  const PartitionedGraph& p = body.partitioned;
  const auto value = [&](PartitionedGraph::ValueId id) { return p.values[as_size(id)]; };
  const PartitionedGraph::Value out = value(p.outputs[sum.carry]);
  if (out.partial == 0 || out.node != sum.nodes.back() ||
      !(out.cut == body.propagation->outputs[sum.carry])) {
    return false;
  }
  const auto is_in = [&](NodeId node) {
    return std::find(sum.nodes.begin(), sum.nodes.end(), node) != sum.nodes.end();
  };
  std::size_t additions = 0;
  for (const PartitionedGraph::Step& step : p.steps) {
    if (const auto* const move = std::get_if<Move>(&step)) {
      if (is_in(value(move->from).node) && combines(*move)) return false;
    } else if (const auto* const compute = std::get_if<Compute>(&step)) {
      if (!is_in(compute->node) || compute->only_converts) continue;
      if (value(compute->result).partial != out.partial) return false;
      ++additions;
    }
  }
  return additions == sum.nodes.size() - 1;
}

std::vector<InvariantMove> take_invariant_moves(PartitionedBody& body, std::size_t consts) {
  PartitionedGraph& p = body.partitioned;
  std::vector<InvariantMove> taken;
  std::vector<PartitionedGraph::ValueId> made;
  std::vector<PartitionedGraph::Step> kept;
  for (PartitionedGraph::Step& step : p.steps) {
    const auto* const move = std::get_if<Move>(&step);
    const auto first = p.inputs.begin(), end = first + static_cast<std::ptrdiff_t>(consts);
    const auto input = move == nullptr ? end : std::find(first, end, move->from);
    if (input == end) {
      kept.push_back(std::move(step));
      continue;
    }
    taken.push_back({static_cast<std::size_t>(input - first), p.values[as_size(move->to)].cut});
    made.push_back(move->to);
  }
  p.steps = std::move(kept);
  if (taken.empty()) return taken;
  auto graph = std::make_shared<Graph>(*body.graph);
  std::vector<GraphInput> inputs;
  inputs.reserve(taken.size());
  for (const InvariantMove& one : taken) inputs.push_back(graph->inputs[one.input]);
  const auto at = static_cast<std::ptrdiff_t>(consts);
  graph->inputs.insert(graph->inputs.begin() + at, inputs.begin(), inputs.end());
  p.inputs.insert(p.inputs.begin() + at, made.begin(), made.end());
  body.graph = std::move(graph);
  return taken;
}

}  // namespace shardwise
