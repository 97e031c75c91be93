#include "shardwise/shard/torus/hybrid_mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/shard/torus/detail/known_orders.h"
#include "shardwise/shard/torus/detail/torus.h"
#include "shardwise/shard/torus/detail/torus_assignment.h"

namespace shardwise {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, what);
}

Shape sizes_of(std::span<const Axis> axes) {
  Shape sizes;
  for (const Axis& axis : axes) sizes.push_back(axis.size);
  return sizes;
}

/// The ids in the order of a mesh of this shape. Requires as many devices as it has positions.
std::vector<DeviceId> device_order(const Shape& shape, std::span<const DeviceAttributes> devices,
                                   const DeviceMeshOptions& options) {
  const auto is_placed = [](const DeviceAttributes& d) { return !d.coordinates.empty(); };
  std::optional<detail::Torus> torus;
  if (std::any_of(devices.begin(), devices.end(), is_placed)) torus = detail::torus_of(devices);

  std::vector<DeviceId> ids;
  if (const auto order = detail::ring_order(options.device_kind, devices, shape)) {
    for (const std::size_t device : *order) ids.push_back(devices[device].id);
  } else if (torus) {
    if (options.contiguous_submeshes) *torus = detail::with_contiguous_submeshes(*torus, shape);
    const PhysicalAxes split =
        options.split_physical_axes ? PhysicalAxes::splittable : PhysicalAxes::whole;
    return detail::laid_out(torus->ids, assign_torus(torus->shape, shape, split));
  } else {
    for (const DeviceAttributes& device : devices) ids.push_back(device.id);
    std::sort(ids.begin(), ids.end());
  }
  return ids;
}

/// A granule: its slice index or process, and its devices in the order of the list.
struct Slice {
  std::int64_t key;
  std::vector<DeviceAttributes> devices;
};

std::vector<Slice> slices_of(std::span<const DeviceAttributes> devices,
                             const HybridMeshOptions& options) {
  std::vector<Slice> slices;
  std::map<std::int64_t, std::size_t> index;
  for (const DeviceAttributes& device : devices) {
    if (device.slice_index.has_value() != devices.front().slice_index.has_value() &&
        options.granule == Granule::slice) {
      const bool first = device.slice_index.has_value();
      refuse(fmt::format(
          "hybrid mesh: device {} has a slice index and device {} has none; needed is "
          "one on all or on none",
          first ? device.id : devices.front().id, first ? devices.front().id : device.id));
    }
    const std::int64_t key =
        options.granule == Granule::process ? device.process : device.slice_index.value_or(0);
    const auto [found, is_new] = index.try_emplace(key, slices.size());
    if (is_new) slices.push_back({key, {}});
    slices[found->second].devices.push_back(device);
  }
  if (options.granule_order == GranuleOrder::by_key) {
    std::sort(slices.begin(), slices.end(),
              [](const Slice& a, const Slice& b) { return a.key < b.key; });
  }
  return slices;
}

std::string name_of(const Slice& slice, Granule granule) {
  return fmt::format("{} {}", granule == Granule::process ? "process" : "slice", slice.key);
}

struct HybridShape {
  std::vector<Axis> all;
  Shape inner, outer;
  std::int64_t slice_size = 1, num_slices = 1;
};

HybridShape shape_of(std::span<const HybridAxis> axes) {
  HybridShape shape;
  for (const HybridAxis& axis : axes) {
    std::int64_t size = 0;
    if (axis.inner < 1 || axis.outer < 1) {
      refuse(
          fmt::format("hybrid mesh: axis {} has inner size {} and outer size {}; needed is at "
                      "least 1",
                      shape.all.size(), axis.inner, axis.outer));
    }
    if (__builtin_mul_overflow(axis.inner, axis.outer, &size) ||
        __builtin_mul_overflow(shape.slice_size, axis.inner, &shape.slice_size) ||
        __builtin_mul_overflow(shape.num_slices, axis.outer, &shape.num_slices)) {
      refuse("hybrid mesh: the axes have more than 2^63 - 1 devices");
    }
    shape.inner.push_back(axis.inner);
    shape.all.push_back({axis.name, size});
    shape.outer.push_back(axis.outer);
  }
  return shape;
}

void check_slices(const HybridShape& shape, std::span<const Slice> slices, Granule granule) {
  if (std::cmp_not_equal(slices.size(), shape.num_slices)) {
    const char* what = granule == Granule::process ? "processes" : "slices";
    refuse(
        fmt::format("hybrid mesh: the devices are in {} {}; needed are {}, the product of the "
                    "outer sizes {}",
                    slices.size(), what, shape.num_slices, to_string(shape.outer)));
  }
  for (const Slice& slice : slices) {
    if (std::cmp_equal(slice.devices.size(), shape.slice_size)) continue;
    refuse(fmt::format(
        "hybrid mesh: {} has {} devices; needed are {}, the product of the inner "
        "sizes {}",
        name_of(slice, granule), slice.devices.size(), shape.slice_size, to_string(shape.inner)));
  }
}

}  // namespace

Mesh physical_mesh(std::span<const DeviceAttributes> devices) {
  detail::Torus torus = detail::torus_of(devices);
  std::vector<Axis> axes;
  for (const std::int64_t size : torus.shape) axes.push_back({"", size});
  return Mesh(std::move(axes), std::move(torus.ids));
}

Mesh device_mesh(std::vector<Axis> axes, std::span<const DeviceAttributes> devices,
                 const DeviceMeshOptions& options) {
  const Shape shape = sizes_of(axes);
  for (const std::int64_t size : shape) {
    if (size >= 1) continue;
    refuse(fmt::format("device mesh: the axes {} have a size of {}; needed is at least 1",
                       to_string(shape), size));
  }
  if (std::cmp_not_equal(num_elements(shape), devices.size())) {
    refuse(
        fmt::format("device mesh: there are {} devices; needed are {}, the product of the axes {}",
                    devices.size(), num_elements(shape), to_string(shape)));
  }
  return Mesh(std::move(axes), device_order(shape, devices, options));
}

Mesh hybrid_mesh(const std::vector<HybridAxis>& axes, std::span<const DeviceAttributes> devices,
                 const HybridMeshOptions& options) {
  const HybridShape shape = shape_of(axes);
  const std::vector<Slice> slices = slices_of(devices, options);
  check_slices(shape, slices, options.granule);

  std::vector<DeviceId> ids;
  for (const Slice& slice : slices) {
    try {
      const std::vector<DeviceId> block = device_order(shape.inner, slice.devices, options.inner);
      ids.insert(ids.end(), block.begin(), block.end());
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("hybrid mesh: {}: {}", name_of(slice, options.granule),
                                            error.what()));
    }
  }

  // The outer and the inner sizes are axes of a grid; each axis of the mesh takes two of them.
  TorusAssignment assignment;
  for (const Shape& sizes : {shape.outer, shape.inner}) {
    for (std::size_t axis = 0; axis < axes.size(); ++axis) {
      assignment.factors.push_back(Dims::filled(axes.size(), 1));
      assignment.factors.back()[axis] = sizes[axis];
    }
  }
  return Mesh(shape.all, detail::laid_out(ids, assignment));
}

}  // namespace shardwise
