#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shardwise/shard/box.h"

namespace shardwise::detail {

/// An element and how many boxes hold it.
struct Miscount {
  Index element;
  std::int64_t times;
};

/// The first element of `region`, in row-major order, that is not in exactly one of the boxes;
/// absent where they tile the region. Requires boxes inside the region; empty ones are ignored.
/// O(m log m) for m boxes, whichever dims they are cut along, as long as most faces match.
std::optional<Miscount> find_miscount(std::span<const Box> boxes, const Box& region);

/// `box` without `hole`, as at most 2 * rank boxes. Requires equal ranks.
std::vector<Box> subtract(const Box& box, const Box& hole);

}  // namespace shardwise::detail
