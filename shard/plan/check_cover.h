#pragma once

#include <span>

#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Proves that the boxes cover every element of a tensor exactly once; boxes may be empty. About
/// O(m log m) for m boxes, cut along any dims. Throws invalid_argument, naming an element that is
/// missing or held twice, and the boxes that hold it.
void check_cover(std::span<const Box> boxes, const Shape& shape);

}  // namespace shardwise
