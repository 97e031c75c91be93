#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// XLA's kinds of sharding, with PyTorch/XLA's numbers.
enum class ShardingType : std::uint8_t {
  replicated = 0,  ///< every device holds all
  maximal = 1,     ///< one device holds all
  tuple = 2,       ///< a list of shardings, for a tuple of tensors
  tiled = 3,       ///< every device holds a tile of its own
  manual = 4,      ///< the program decides each device's part
  partial = 5,     ///< tiles with several replicas
  unknown = 6,     ///< left to the compiler
};

/// "REPLICATED", "TILED", ..., as PyTorch/XLA spells them.
std::string_view name(ShardingType type);

/// The type by the spelling of mesh and spec (PyTorch/XLA's Mesh): partial if a dim is whole or the
/// mesh has unused axes, even of size 1; maximal on one device.
ShardingType declared_type(const Sharding& sharding);

/// The type of the placement, ignoring everything of size 1: replicated, tiled or partial.
ShardingType sharding_type(const Sharding& sharding);

/// Devices in an array of this shape, row-major.
struct TileAssignment {
  std::vector<std::int64_t> dims;
  std::vector<DeviceId> devices;
};

/// The mesh transposed to the axes in spec order, one dim per entry of the spec that names any, and
/// then a dim for each axis, or part of one, that the spec does not use. Throws as
/// Mesh::devices(). O(devices).
TileAssignment tile_assignment(const Sharding& sharding);

/// The shape of the grid of replication groups, 1 for a whole dim; group i of replication_groups()
/// is its i-th entry, row-major. Empty if declared_type() is not partial.
std::vector<std::int64_t> group_assignment_dims(const Sharding& sharding);

/// The devices that share a tile, group by group in row-major order of tiles, each in mesh order.
/// Empty if declared_type() is not partial. O(devices).
std::vector<std::vector<DeviceId>> replication_groups(const Sharding& sharding);

/// The replica number that XLA gives the device at a position: its rank by device id among the
/// devices that hold the same tile; among all devices if the sharding is replicated.
/// O(num_replicas()) if the devices are not in ascending order, else O(rank).
std::int64_t xla_replica_id(const Sharding& sharding, std::int64_t position);

/// The replica number that JAX gives the device at a position: how many devices before it in mesh
/// order hold the same slice of a tensor of this shape. As replica_id(), except that the tiles of a
/// dim without elements are one slice. Throws as Sharding::box_at().
std::int64_t jax_replica_id(const Sharding& sharding, std::int64_t position, const Shape& shape);

}  // namespace shardwise
