#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/ops/detail/row.h"

namespace shardwise {

struct CarriedSum;  // control/loops.h

/// A padding with another number than zero is not linear.
Linear linearity(const Node& node);

/// Which tensors of a graph may stay parts of a sum, by what uses them; the graph and its rules
/// must outlive it.
class PartsOfSums {
 public:
  /// `sums`: carries that may come in as parts, as zeros may be taken for parts, and go out so.
  PartsOfSums(const Graph& graph, const std::vector<FactorRule>& rules,
              const std::vector<CarriedSum>& sums);

  bool is_used(NodeId node) const { return uses_[as_size(node)] > 0; }
  const std::vector<NodeId>& users(NodeId node) const { return users_[as_size(node)]; }
  bool is_output(NodeId node) const { return is_output_[as_size(node)]; }

  bool is_zero(NodeId node) const { return is_zero_[as_size(node)]; }

  /// An output that need not be combined.
  bool leaves_as_parts(NodeId node) const { return leaves_[as_size(node)]; }

  /// Operands that are zeros: they can be taken for parts of a zero.
  std::size_t zeros_among(const Node& node) const;

  /// What uses it can do with parts of it, and to combine them later moves no more.
  bool hands_on(NodeId node) const { return hands_on_[as_size(node)]; }

  /// Of what its combination costs: sums that are combined together share it.
  double share(NodeId node) const { return shares_[as_size(node)]; }

 private:
  void count_uses();
  void find_zeros();
  void find_shares();
  std::int64_t elements(NodeId node) const;
  bool is_sum(NodeId node) const;
  bool hands_parts_on(NodeId node) const;
  bool passes_parts_on(NodeId node, const std::vector<double>& sums) const;

  const Graph& graph_;
  const std::vector<FactorRule>& rules_;
  std::vector<std::int64_t> uses_;          ///< by node; 0: nothing needs it
  std::vector<std::vector<NodeId>> users_;  ///< by node: what needs it, of what is needed
  std::vector<bool> is_output_, is_zero_, hands_on_, leaves_;  // by node
  std::vector<double> shares_;                                 // by node
};

}  // namespace shardwise
