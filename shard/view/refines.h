#pragma once

#include "shardwise/shard/sharding.h"

namespace shardwise {

/// True where each device's box under `fine` is inside its box under `coarse`: what is sharded as
/// `coarse` becomes `fine` without communication. A device that holds nothing under `fine` needs
/// nothing; on abstract meshes a position stands for a device.
///
/// O(rank) where one tiling splits the tiles of the other by minor axes and blocks are of one size;
/// O(tiles) per dim for such a split under another policy; else O(devices). Throws as
/// Sharding::shard_shape(), for both, and as Mesh::devices() where one mesh alone is abstract.
bool refines(const Sharding& fine, const Sharding& coarse, const Shape& shape);

}  // namespace shardwise
