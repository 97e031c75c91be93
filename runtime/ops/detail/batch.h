#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/ops/control.h"
#include "shardwise/shard/partition_spec.h"

namespace shardwise::detail {

/// The operations of a function, recorded once and then appended for all slices of its arguments at
/// once: each tensor that depends on a slice gets one more dim 0.
class BatchedBody {
 public:
  /// Records body(carry, slices), whose arguments have these types, in the graph around it.
  BatchedBody(std::string_view operation, GraphBuilder& outside, const FlatBody<NodeRef>& body,
              const CarryAndSlices<TensorType>& arguments);

  /// The types of the body's results.
  const CarryAndSlices<TensorType>& results() const { return results_; }

  /// Appends the operations to the innermost body of the first argument's graph. Each argument has
  /// one more dim 0, of one extent; so have the results. Marks in the body get `cut` for that dim.
  /// Throws unsupported, naming an operation that has no batched form.
  CarryAndSlices<NodeRef> append_all(const std::vector<NodeRef>& carry,
                                     const std::vector<NodeRef>& slices,
                                     const PartitionSpec::Entry& cut) const;

 private:
  std::string_view operation_;
  GraphBuilder* outside_;
  GraphBuilder body_;  ///< its inputs: the carries, then the slices, then values from outside
  std::vector<NodeId> made_;  ///< carries first
  CarryAndSlices<TensorType> results_;
};

/// How dim 0 of the first tensor that is marked is cut; empty if none is.
PartitionSpec::Entry cut_of_dim_0(const std::vector<NodeRef>& tensors);

}  // namespace shardwise::detail
