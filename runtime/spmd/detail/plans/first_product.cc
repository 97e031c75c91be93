#include "shardwise/runtime/spmd/detail/plans/first_product.h"

#include <algorithm>
#include <string>
#include <variant>

#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/ops/detail/row.h"

namespace shardwise::detail {
namespace {

std::size_t longest_dim(const Shape& shape) {
  return static_cast<std::size_t>(std::ranges::max_element(shape) - shape.begin());
}

/// The column dim of an operand of a product: the dim that the result has and the other operand
/// lacks; without one, the longest.
std::size_t column_of(const Graph& graph, const Node& product, std::size_t operand) {
  const std::size_t longest = longest_dim(graph.node(product.operands[operand]).type.shape);
  if (product.op == Op::take) return as_size(std::get<DimAttributes>(product.attributes).dim);
  const auto* const dot = std::get_if<DotAttributes>(&product.attributes);
  if (dot == nullptr) return longest;
  const Equation& equation = dot->equation;
  const std::string& letters = operand == 0 ? equation.lhs : equation.rhs;
  const std::string& other = operand == 0 ? equation.rhs : equation.lhs;
  for (std::size_t dim = 0; dim < letters.size(); ++dim) {
    const bool is_kept = equation.result.find(letters[dim]) != std::string::npos;
    if (is_kept && other.find(letters[dim]) == std::string::npos) return dim;
  }
  return longest;
}

/// Searches the body of a loop that takes the tensor, or slices of it if it is stacked.
std::optional<FirstProduct> product_inside(const Node& loop, NodeId id, std::size_t operand) {
  const BodyParts parts(loop);
  if (operand < parts.skip) return std::nullopt;
  const std::size_t input = operand - parts.skip;
  auto inner = first_product(parts.body(), parts.input(input));
  if (!inner) return std::nullopt;
  inner->place.insert(inner->place.begin(), id);
  if (parts.is_loop && input >= parts.first_x()) ++inner->column;
  return inner;
}

}  // namespace

std::optional<FirstProduct> first_product(const Graph& graph, NodeId tensor) {
  constexpr int kMostHops = 8;
  bool is_itself = true;  // false for a copy, whose dims may differ
  const std::size_t longest = longest_dim(graph.node(tensor).type.shape);
  for (int hops = 0; hops < kMostHops; ++hops) {
    std::optional<NodeId> copy;
    for (std::size_t i = as_size(tensor) + 1; i < graph.nodes.size(); ++i) {
      const Node& node = graph.nodes[i];
      const auto at = std::ranges::find(node.operands, tensor);
      if (at == node.operands.end()) continue;
      const auto id = static_cast<NodeId>(i);
      const auto operand = static_cast<std::size_t>(at - node.operands.begin());
      std::optional<FirstProduct> found;
      if (has_bodies(node.op)) {
        found = product_inside(node, id, operand);
      } else if (row(node.op).traits().is_product || node.op == Op::take) {
        found = FirstProduct{{id}, column_of(graph, node, operand)};
      }
      if (found) {
        if (!is_itself) found->column = longest;
        return found;
      }
      if (!copy && node.operands.size() == 1 && !node.backward) copy = id;
    }
    if (!copy) return std::nullopt;
    tensor = *copy;
    is_itself = false;
  }
  return std::nullopt;
}

}  // namespace shardwise::detail
