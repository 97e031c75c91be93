#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shardwise/shard/device_order.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

struct DeviceMeshOptions {
  /// Let several mesh axes share one axis of the torus; see PhysicalAxes::splittable.
  bool split_physical_axes = false;

  /// Make the devices of each process fill a box of the mesh. A way is known for the tori 2x2x1,
  /// 2x2x4, 4x4x4, 4x8x8, 8x8x8 and 8x16x16 and a few meshes on each.
  bool contiguous_submeshes = false;

  /// The platform's name of its devices. For the small topologies of "TPU v2", "TPU v3", "TPU v4
  /// lite", "TPU v5 lite", "TPU v5e", "TPU v5", "TPU v5p", "TPU v6 lite", "TPU7", "TPU7x" and
  /// "TPU8i" an order is known whose neighbours form rings; it takes precedence over the other
  /// options.
  std::string device_kind = {};
};

/// The devices of one torus as a mesh of the torus, with an unnamed axis per coordinate. The order
/// of the list has no meaning.
///
/// Throws invalid_argument if there are no devices or no coordinates, or if the coordinates do not
/// fill a box with one device at each place. The box may begin anywhere.
Mesh physical_mesh(std::span<const DeviceAttributes> devices);

/// A mesh with these axes, listed by rising communication, whose neighbours are near each other in
/// the torus: the order of JAX's create_device_mesh.
///
/// Devices with coordinates are ordered by assign_torus(physical_mesh(devices), axes); devices
/// without are taken by rising id. A known order for `device_kind` takes precedence; the orders for
/// v2, v3, v4 lite, 7x and 8i expect the list as the platform gives it: by z, y, x, core.
///
/// Throws invalid_argument if the number of devices is not the axes' product, if ids repeat, if
/// only some have coordinates, or if contiguous sub-meshes are asked for but no way to make them is
/// known; and as physical_mesh() and assign_torus().
Mesh device_mesh(std::vector<Axis> axes, std::span<const DeviceAttributes> devices,
                 const DeviceMeshOptions& options = {});

/// A mesh axis over two networks: `outer` blocks, each of `inner` devices of one slice. Its size is
/// the product; its index is outer index * inner + inner index.
struct HybridAxis {
  std::string name = {};  ///< empty stands for the axis's index, as in Mesh
  std::int64_t inner = 1;
  std::int64_t outer = 1;
};

/// The unit that the slow, outer network joins.
enum class Granule { slice, process };

/// The granule that comes first in the outer mesh.
enum class GranuleOrder {
  by_key,     ///< the one with the lowest slice index or process
  as_listed,  ///< that of the first device in the list
};

struct HybridMeshOptions {
  Granule granule = Granule::slice;
  GranuleOrder granule_order = GranuleOrder::by_key;

  /// For the mesh inside each granule.
  DeviceMeshOptions inner = {};
};

/// A mesh over several slices (or processes): device_mesh() over the inner sizes within each slice,
/// slices row-major over the outer sizes. As JAX's create_hybrid_device_mesh and, with
/// `inner.split_physical_axes`, PyTorch/XLA's HybridMesh.
///
///   // two slices of 2x2 devices, ids 0 .. 3 and 4 .. 7
///   hybrid_mesh({{"data", 2, 2}, {"model", 2, 1}}, devices);   // data=4,model=2@[2,2,2]T(0,2,1)
///
/// Devices without a slice index are one slice. Throws invalid_argument if a size is under 1, if
/// the number of slices is not the outer sizes' product, if the number of devices in a slice is not
/// the inner sizes' product, or if only some devices have a slice index; and as device_mesh(),
/// naming the slice.
Mesh hybrid_mesh(const std::vector<HybridAxis>& axes, std::span<const DeviceAttributes> devices,
                 const HybridMeshOptions& options = {});

}  // namespace shardwise
