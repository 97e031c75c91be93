#include "shardwise/runtime/spmd/detail/remake.h"

#include <algorithm>

#include "shardwise/runtime/ops/detail/row.h"

namespace shardwise {
namespace {

/// True for a window that covers the whole dim, element by element, and so has no effect.
bool is_identity(const Window& window, std::int64_t size) {
  return window.scale == 1 && window.divide == 1 && window.low == 0 && window.high == 0 &&
         window.extent == size && window.least == 0 && window.limit >= size;
}

/// The part of a dim of `middle` elements that belongs to `wanted` through a window of a dim of
/// `size`.
std::optional<AxisList> through(const Window& window, std::int64_t size, const AxisList& wanted,
                                std::int64_t middle) {
  AxisList needed = wanted;
  Window both = window;
  if (wanted.window().is_set()) {
    const std::optional<Window> composed = compose(window, size, wanted.window(), middle);
    if (!composed) return std::nullopt;
    both = *composed;
  }
  const bool needs_all =
      wanted.empty() && both.range(0, both.extent, size) == std::pair(std::int64_t{0}, size);
  needed.set_window(needs_all || is_identity(both, size) ? Window() : both);
  return needed;
}

}  // namespace

bool can_be_remade(const Node& node) { return row(node.op).traits().is_remade && !node.manual; }

std::optional<Cut> needed_to_remake(const Graph& graph, const Node& node, const FactorRule& rule,
                                    std::size_t operand, const Cut& wanted) {
  const Shape& shape = graph.node(node.operands[operand]).type.shape;
  Cut needed(shape.size());
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const FactorList& list = rule.operands[operand][dim];
    if (list.empty()) continue;
    std::size_t at = 0;  // the result's dim that has the factor
    while (at < rule.result.size() &&
           !(rule.result[at].size() == 1 && rule.result[at][0] == list[0]))
      ++at;
    if (list.size() != 1 || at == rule.result.size()) return std::nullopt;
    if (list.windows.empty()) {
      needed[dim] = wanted[at];
      continue;
    }
    const std::optional<AxisList> seen =
        through(list.windows[0], shape[dim], wanted[at], node.type.shape[at]);
    if (!seen) return std::nullopt;
    needed[dim] = *seen;
  }
  return needed;
}

bool repeats(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::int64_t elements = 0;
  for (const NodeId operand : node.operands) {
    elements += num_elements(graph.node(operand).type.shape);
  }
  return elements < num_elements(node.type.shape);
}

std::vector<bool> weights_of(const Graph& graph) {
  std::vector<bool> result(graph.nodes.size(), false);
  for (const GraphInput& input : graph.inputs) {
    result[as_size(input.node)] = input.kind == MemoryKind::parameter;
  }
  for (std::size_t id = 0; id < result.size(); ++id) {
    const Node& node = graph.nodes[id];
    if (node.op == Op::convert) result[id] = result[as_size(node.operands[0])];
  }
  return result;
}

std::vector<std::int64_t> passes_of(const Graph& graph, const std::vector<bool>& is_weight) {
  std::vector<std::int64_t> result;
  std::int64_t pass = 0;
  bool was_backward = false;
  for (const Node& node : graph.nodes) {
    const bool uses_weights = std::ranges::any_of(
        node.operands, [&](NodeId operand) { return is_weight[as_size(operand)]; });
    if (uses_weights && node.backward != was_backward) {
      was_backward = node.backward;
      ++pass;
    }
    result.push_back(pass);
  }
  return result;
}

}  // namespace shardwise
