#include "shardwise/runtime/spmd/detail/parts_of_sums.h"

#include <algorithm>

#include "shardwise/runtime/spmd/detail/control/loops.h"

namespace shardwise {

Linear linearity(const Node& node) {
  const auto* const pad = std::get_if<PadAttributes>(&node.attributes);
  return pad != nullptr && !pad->number.is_zero() ? Linear::no : row(node.op).traits().linear;
}

PartsOfSums::PartsOfSums(const Graph& graph, const std::vector<FactorRule>& rules,
                         const std::vector<CarriedSum>& sums)
    : graph_(graph),
      rules_(rules),
      uses_(graph.nodes.size(), 0),
      users_(graph.nodes.size()),
      is_output_(graph.nodes.size(), false),
      leaves_(graph.nodes.size(), false) {
  count_uses();
  find_zeros();
  for (const CarriedSum& sum : sums) {
    is_zero_[as_size(sum.nodes.front())] = true;
    leaves_[as_size(sum.nodes.back())] = true;
  }
  for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id) {
    hands_on_.push_back(hands_parts_on(id));
  }
  find_shares();
}

void PartsOfSums::count_uses() {
  for (const NodeId id : graph_.outputs) {
    ++uses_[as_size(id)];
    is_output_[as_size(id)] = true;
  }
  for (NodeId id = static_cast<NodeId>(graph_.nodes.size()); id-- > 0;) {
    if (uses_[as_size(id)] == 0) continue;
    for (const NodeId operand : graph_.node(id).operands) {
      ++uses_[as_size(operand)];
      users_[as_size(operand)].push_back(id);
    }
  }
}

/// Zeros can serve as parts of a zero: a sum over time steps begins with them.
void PartsOfSums::find_zeros() {
  is_zero_.assign(graph_.nodes.size(), false);
  for (std::size_t i = 0; i < is_zero_.size(); ++i) {
    const Node& node = graph_.nodes[i];
    const bool keeps = node.op == Op::broadcast || node.op == Op::reshape;
    is_zero_[i] = node.op == Op::constant
                      ? std::get<NumberAttributes>(node.attributes).number.is_zero()
                      : keeps && is_zero_[as_size(node.operands[0])];
  }
}

std::size_t PartsOfSums::zeros_among(const Node& node) const {
  return as_size(std::count_if(node.operands.begin(), node.operands.end(),
                               [&](NodeId operand) { return is_zero_[as_size(operand)]; }));
}

/// Sums over a factor that may stay parts until they are added to others are combined together:
/// each has its share of the one combination, like the gradients of a weight that is used at many
/// time steps.
void PartsOfSums::find_shares() {
  const std::size_t count = graph_.nodes.size();
  shares_.assign(count, 1);
  std::vector<double> sums(count, 0);  // that may be in it as parts
  std::vector<bool> passes(count, false);
  for (std::size_t i = 0; i < count; ++i) {
    if (uses_[i] == 0) continue;
    const auto id = static_cast<NodeId>(i);
    passes[i] = passes_parts_on(id, sums);
    if (passes[i]) {
      for (const NodeId operand : graph_.nodes[i].operands) sums[i] += sums[as_size(operand)];
    }
    if (is_sum(id)) sums[i] += 1;
  }
  for (std::size_t i = count; i-- > 0;) {
    if (sums[i] == 0) continue;
    const auto id = static_cast<NodeId>(i);
    const bool goes_on =
        hands_on_[i] && std::all_of(users_[i].begin(), users_[i].end(),
                                    [&](NodeId user) { return passes[as_size(user)]; });
    shares_[i] = goes_on ? 0 : 1 / sums[i];
    for (std::size_t u = 0; goes_on && u < users_[i].size(); ++u) {
      const NodeId user = users_[i][u];
      shares_[i] += shares_[as_size(user)] * static_cast<double>(elements(user)) /
                    static_cast<double>(std::max<std::int64_t>(elements(id), 1));
    }
  }
}

std::int64_t PartsOfSums::elements(NodeId node) const {
  return num_elements(graph_.node(node).type.shape);
}

/// True if cutting along a factor makes it parts of a sum.
bool PartsOfSums::is_sum(NodeId node) const {
  const FactorRule& rule = rules_[as_size(node)];
  return rule.reduction == Reduction::sum &&
         std::any_of(rule.factors.begin(), rule.factors.end(), [](const Factor& factor) {
           return factor.kind == Factor::Kind::reduction && factor.size > 1;
         });
}

/// True if its uses accept parts, and combining later moves no more bytes: one node, or slices that
/// take each element once.
bool PartsOfSums::hands_parts_on(NodeId node) const {
  if (is_output_[as_size(node)]) return leaves_[as_size(node)];
  const std::vector<NodeId>& users = users_[as_size(node)];
  std::int64_t taken = 0;
  for (const NodeId user : users) {
    if (linearity(graph_.node(user)) == Linear::no) return false;
    if (users.size() > 1 && graph_.node(user).op != Op::slice) return false;
    taken += elements(user);
  }
  return users.size() == 1 || taken <= elements(node);
}

/// True if it passes on parts as parts that are no larger.
bool PartsOfSums::passes_parts_on(NodeId node, const std::vector<double>& sums) const {
  const std::vector<NodeId>& operands = graph_.node(node).operands;
  std::size_t parts = 0;
  for (const NodeId operand : operands) {
    const bool is_marked = graph_.node(operand).mark.has_value();
    if (sums[as_size(operand)] == 0 || is_marked || !hands_on_[as_size(operand)]) continue;
    if (elements(node) > elements(operand)) return false;
    ++parts;
  }
  const Linear linear = linearity(graph_.node(node));
  if (linear == Linear::in_all) {
    return parts > 0 && parts + zeros_among(graph_.node(node)) == operands.size();
  }
  return linear == Linear::in_one && parts == 1;
}

}  // namespace shardwise
