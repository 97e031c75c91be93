#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shardwise/shard/plan/packed_boxes.h"

namespace shardwise::detail {

/// True if every element of `region` is in exactly one of the boxes. Requires boxes inside the
/// region and a region of less than 2^63 elements; empty boxes are ignored.
///
/// Space is halved until a part holds few boxes: O(m log m) for m boxes, cut along any
/// dims, as long as planes can be found that cut few boxes; else as find_miscount().
bool is_tiling(const PackedBoxes& boxes, const Box& region);

/// An element and how many boxes hold it.
struct Miscount {
  Index element;
  std::int64_t times;
};

/// The first element of `region`, in row-major order, that is not in exactly one of the boxes;
/// absent if they tile the region. Requires boxes inside the region; empty ones are ignored. O(m
/// log m) for m boxes, cut along any dims, as long as most faces match; else up to 2^rank times
/// that.
std::optional<Miscount> find_miscount(const PackedBoxes& boxes, const Box& region);

/// `box` without `hole`, as at most 2 * rank boxes. Requires equal ranks.
std::vector<Box> subtract(const Box& box, const Box& hole);

}  // namespace shardwise::detail
