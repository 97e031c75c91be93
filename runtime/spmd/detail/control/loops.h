#pragma once

#include <cstddef>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/spmd/detail/partition.h"

// Work that is done once for all trips of a loop, not in each.

namespace shardwise {

/// A carry that the body only adds to, such as the gradient of a weight that it uses: the
/// additions from its input to its output.
struct CarriedSum {
  std::size_t carry;
  std::vector<NodeId> nodes;  ///< the input, then the additions
};

/// All carried sums of a body that have no other use and no marks.
std::vector<CarriedSum> carried_sums(const detail::BodyParts& scan);

/// True if the partitioned body adds parts of a sum to the carry and gives parts of one: the input
/// may then be parts, too, and the sum is combined after the last trip.
bool stays_parts(const PartitionedBody& body, const CarriedSum& sum);

/// A move of an input that does not change.
struct InvariantMove {
  std::size_t input;
  Cut to;
};

/// Takes such moves out of the body: their results become inputs after the first `consts`, in
/// order.
std::vector<InvariantMove> take_invariant_moves(PartitionedBody& body, std::size_t consts);

}  // namespace shardwise
