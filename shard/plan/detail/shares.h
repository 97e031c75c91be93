#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shardwise/shard/plan/packed_boxes.h"

namespace shardwise::detail {

/// A part of a region, and the number of the box that gives it.
struct Share {
  std::int64_t giver;
  Box box;
};

struct Shares {
  std::vector<Share> shares;     ///< disjoint, in no particular order
  std::optional<Index> missing;  ///< the first element, in row-major order, that no box holds
};

/// Each element of a region is given by the first of the boxes that holds it. Space is halved if
/// there are many boxes, so that a thousand boxes that overlap their neighbours are not all
/// compared with each other. Requires equal ranks.
Shares share_out(const PackedBoxes& boxes, const Box& region);

}  // namespace shardwise::detail
