#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shardwise/shard/torus/detail/torus.h"
#include "shardwise/shard/torus/hybrid_mesh.h"

namespace shardwise::detail {

/// The order for small topologies of this kind of device in which neighbours form rings: position p
/// of a mesh of this shape holds devices[order[p]]. Absent where none is known. Requires as many
/// devices as the shape has positions, filling a box where they have coordinates.
std::optional<std::vector<std::size_t>> ring_order(std::string_view device_kind,
                                                   std::span<const DeviceAttributes> devices,
                                                   const Shape& shape);

/// The torus with its axes in the order from which assign_torus() makes a mesh of this shape where
/// the devices of each process fill a box. Throws invalid_argument where none is known.
Torus with_contiguous_submeshes(const Torus& torus, const Shape& shape);

}  // namespace shardwise::detail
