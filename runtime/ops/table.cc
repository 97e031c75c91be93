#include <algorithm>
#include <cassert>
#include <vector>

#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise {
namespace {

/// The rows in the order of Op.
std::vector<OpRow> make_table() {
  std::vector<OpRow> rows;
  for (auto* const group :
       {detail::leaf_rows, detail::elementwise_rows, detail::layout_rows, detail::reduce_rows,
        detail::cumulative_rows, detail::dot_rows, detail::convolution_rows,
        detail::linear_algebra_rows, detail::window_rows, detail::index_rows, detail::scatter_rows,
        detail::control_rows, detail::manual_rows}) {
    for (OpRow& row : group()) rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end(),
            [](const OpRow& a, const OpRow& b) { return a.op() < b.op(); });
  assert(rows.size() == kOps);
  return rows;
}

}  // namespace

const OpRow& row(Op op) {
  static const std::vector<OpRow> table = make_table();
  return table[static_cast<std::size_t>(op)];
}

std::vector<TensorType> operand_types(const Graph& graph, const Node& node) {
  std::vector<TensorType> types;
  types.reserve(node.operands.size());
  for (const NodeId operand : node.operands) types.push_back(graph.node(operand).type);
  return types;
}

FactorRule factor_rule(const Graph& graph, const Node& node) {
  // In a manual region nothing is cut: each tensor belongs to one device.
  if (node.manual) return detail::whole_rule(node, operand_types(graph, node));
  return row(node.op).factors(node, operand_types(graph, node));
}

}  // namespace shardwise
