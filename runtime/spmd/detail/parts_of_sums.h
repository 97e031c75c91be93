#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/ops/detail/row.h"

namespace shardwise {

struct CarriedSum;  // control/loops.h

/// The linearity of an op. Padding with a number other than zero is not linear.
Linear linearity(const Node& node);

/// Finds the tensors of a graph that may stay parts of a sum, by their uses; the graph and its
/// rules must outlive it.
class PartsOfSums {
 public:
  /// `sums`: carries that may come in as parts, since zeros can serve as parts, and go out as
  /// parts.
  PartsOfSums(const Graph& graph, const std::vector<FactorRule>& rules,
              const std::vector<CarriedSum>& sums);

  bool is_used(NodeId node) const { return uses_[as_size(node)] > 0; }
  const std::vector<NodeId>& users(NodeId node) const { return users_[as_size(node)]; }
  bool is_output(NodeId node) const { return is_output_[as_size(node)]; }

  bool is_zero(NodeId node) const { return is_zero_[as_size(node)]; }

  /// An output that need not be combined.
  bool leaves_as_parts(NodeId node) const { return leaves_[as_size(node)]; }

  /// The number of operands that are zeros, which can serve as parts of a zero.
  std::size_t zeros_among(const Node& node) const;

  /// True if its uses accept parts, and combining later moves no more bytes.
  bool hands_on(NodeId node) const { return hands_on_[as_size(node)]; }

  /// Its share of the cost of its combination: sums that are combined together share it.
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
  std::vector<std::vector<NodeId>> users_;  ///< by node: the needed nodes that need it
  std::vector<bool> is_output_, is_zero_, hands_on_, leaves_;  // by node
  std::vector<double> shares_;                                 // by node
};

}  // namespace shardwise
