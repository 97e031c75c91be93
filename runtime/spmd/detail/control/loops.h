#pragma once

#include <cstddef>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/spmd/detail/partition.h"

// What is done once for all trips of a loop, not in each.

namespace shardwise {

/// A carry to which the body only adds, as it does to the gradient of a weight that it uses: the
/// additions from what comes in to what goes out.
struct CarriedSum {
  std::size_t carry;
  std::vector<NodeId> nodes;  ///< what comes in, then the additions
};

/// All of a body that are in no other use and have no marks.
std::vector<CarriedSum> carried_sums(const detail::BodyParts& scan);

/// Whether the partitioned body adds parts of a sum to the carry and gives parts of one: what comes
/// in may be parts, too, and the sum is combined after the last trip.
bool stays_parts(const PartitionedBody& body, const CarriedSum& sum);

/// A move of an input that does not change.
struct InvariantMove {
  std::size_t input;
  Cut to;
};

/// Takes such moves out of the body: what each gives becomes an input after the first `consts`, in
/// their order.
std::vector<InvariantMove> take_invariant_moves(PartitionedBody& body, std::size_t consts);

}  // namespace shardwise
