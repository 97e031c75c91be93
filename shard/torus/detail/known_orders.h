#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shardwise/shard/torus/detail/torus.h"
#include "shardwise/shard/torus/hybrid_mesh.h"

namespace shardwise::detail {

/// The order that makes neighbours form rings, for small topologies of this kind of device:
/// position p of a mesh of this shape holds devices[order[p]]. Absent if no order is known.
/// Requires as many devices as the shape has positions; devices with coordinates must fill a box.
std::optional<std::vector<std::size_t>> ring_order(std::string_view device_kind,
                                                   std::span<const DeviceAttributes> devices,
                                                   const Shape& shape);

/// The torus with its axes reordered so that assign_torus() gives a mesh of this shape where the
/// devices of each process fill a box. Throws invalid_argument if no such order is known.
Torus with_contiguous_submeshes(const Torus& torus, const Shape& shape);

}  // namespace shardwise::detail
