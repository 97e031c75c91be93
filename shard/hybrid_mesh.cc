#include "shardwise/shard/hybrid_mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "shardwise/shard/detail/known_orders.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/torus_assignment.h"

namespace shardwise {
namespace {

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

Shape sizes_of(std::span<const Axis> axes) {
  Shape sizes;
  for (const Axis& axis : axes) sizes.push_back(axis.size);
  return sizes;
}

/// The box that the coordinates span.
struct Span {
  Index low;
  Shape extents;
};

Span span_of(std::span<const DeviceAttributes> devices) {
  const Index& first = devices.front().coordinates;
  Index low = first, high = first;
  for (const DeviceAttributes& device : devices) {
    if (device.coordinates.size() != first.size() || first.empty()) {
      fail(fmt::format(
          "physical_mesh: device {} has the coordinates {} and device {} {}; needed "
          "are equally many, and at least 1",
          devices.front().id, to_string(first), device.id, to_string(device.coordinates)));
    }
    for (std::size_t axis = 0; axis < first.size(); ++axis) {
      low[axis] = std::min(low[axis], device.coordinates[axis]);
      high[axis] = std::max(high[axis], device.coordinates[axis]);
    }
  }
  Shape extents;
  std::int64_t size = 1;
  for (std::size_t axis = 0; axis < first.size(); ++axis) {
    std::int64_t extent = 0;
    if (__builtin_sub_overflow(high[axis], low[axis], &extent) ||
        __builtin_add_overflow(extent, 1, &extent) || __builtin_mul_overflow(size, extent, &size)) {
      fail(
          fmt::format("physical_mesh: the coordinates from {} to {} span more than 2^63 - 1 places",
                      to_string(low), to_string(high)));
    }
    extents.push_back(extent);
  }
  return {low, extents};
}

[[noreturn]] void fail_place(const Span& span, std::int64_t place, std::size_t devices,
                             const std::string& what) {
  const Dims strides = row_major_strides(span.extents);
  Index at = span.low;
  for (std::size_t axis = 0; axis < at.size(); ++axis) {
    at[axis] += place / strides[axis] % span.extents[axis];
  }
  fail(
      fmt::format("physical_mesh: {} at {}, where {} devices span a box of {} places; needed is "
                  "one device at each",
                  what, to_string(at), devices, to_string(span.extents)));
}

/// The ids in row-major order of places. Throws invalid_argument unless each place has one device.
std::vector<DeviceId> fill(const Span& span, std::span<const DeviceAttributes> devices) {
  const Dims strides = row_major_strides(span.extents);
  std::vector<std::pair<std::int64_t, DeviceId>> places;
  places.reserve(devices.size());
  for (const DeviceAttributes& device : devices) {
    std::int64_t place = 0;
    for (std::size_t axis = 0; axis < strides.size(); ++axis) {
      place += (device.coordinates[axis] - span.low[axis]) * strides[axis];
    }
    places.emplace_back(place, device.id);
  }
  std::sort(places.begin(), places.end());
  std::vector<DeviceId> ids;
  ids.reserve(places.size());
  for (const auto& [place, id] : places) {
    const auto expected = static_cast<std::int64_t>(ids.size());
    if (place < expected) {
      fail_place(span, place, devices.size(), fmt::format("devices {} and {} are", ids.back(), id));
    }
    if (place > expected) fail_place(span, expected, devices.size(), "nothing is");
    ids.push_back(id);
  }
  if (std::cmp_less(ids.size(), num_elements(span.extents))) {
    fail_place(span, std::ssize(ids), devices.size(), "nothing is");
  }
  return ids;
}

/// Devices in the order of the list, and what they have in common.
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
      fail(fmt::format(
          "hybrid_mesh: device {} has a slice index and device {} has none; needed is "
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
  std::vector<Axis> inner, all;  // named as the mesh's axes
  Shape outer;
  std::int64_t slice_size = 1, num_slices = 1;
};

HybridShape shape_of(std::span<const HybridAxis> axes) {
  HybridShape shape;
  for (const HybridAxis& axis : axes) {
    std::int64_t size = 0;
    if (axis.inner < 1 || axis.outer < 1) {
      fail(
          fmt::format("hybrid_mesh: axis {} has inner size {} and outer size {}; needed is at "
                      "least 1",
                      shape.all.size(), axis.inner, axis.outer));
    }
    if (__builtin_mul_overflow(axis.inner, axis.outer, &size) ||
        __builtin_mul_overflow(shape.slice_size, axis.inner, &shape.slice_size) ||
        __builtin_mul_overflow(shape.num_slices, axis.outer, &shape.num_slices)) {
      fail("hybrid_mesh: the axes have more than 2^63 - 1 devices");
    }
    shape.inner.push_back({axis.name, axis.inner});
    shape.all.push_back({axis.name, size});
    shape.outer.push_back(axis.outer);
  }
  return shape;
}

void check_slices(const HybridShape& shape, std::span<const Slice> slices, Granule granule) {
  if (std::cmp_not_equal(slices.size(), shape.num_slices)) {
    const char* what = granule == Granule::process ? "processes" : "slices";
    fail(
        fmt::format("hybrid_mesh: the devices are in {} {}; needed are {}, the product of the "
                    "outer sizes {}",
                    slices.size(), what, shape.num_slices, to_string(shape.outer)));
  }
  for (const Slice& slice : slices) {
    if (std::cmp_equal(slice.devices.size(), shape.slice_size)) continue;
    fail(
        fmt::format("hybrid_mesh: {} has {} devices; needed are {}, the product of the inner "
                    "sizes {}",
                    name_of(slice, granule), slice.devices.size(), shape.slice_size,
                    to_string(sizes_of(shape.inner))));
  }
}

}  // namespace

Mesh physical_mesh(std::span<const DeviceAttributes> devices) {
  if (devices.empty()) fail("physical_mesh: there are no devices; needed is at least 1");
  const Span span = span_of(devices);
  std::vector<Axis> axes;
  for (const std::int64_t extent : span.extents) axes.push_back({"", extent});
  return Mesh(std::move(axes), fill(span, devices));
}

Mesh device_mesh(std::vector<Axis> axes, std::span<const DeviceAttributes> devices,
                 const DeviceMeshOptions& options) {
  const Shape shape = sizes_of(axes);
  for (const std::int64_t size : shape) {
    if (size >= 1) continue;
    fail(fmt::format("device_mesh: the axes {} have a size of {}; needed is at least 1",
                     to_string(shape), size));
  }
  if (std::cmp_not_equal(num_elements(shape), devices.size())) {
    fail(fmt::format("device_mesh: there are {} devices; needed are {}, the product of the axes {}",
                     devices.size(), num_elements(shape), to_string(shape)));
  }
  const auto is_placed = [](const DeviceAttributes& d) { return !d.coordinates.empty(); };
  std::optional<Mesh> torus;
  if (std::any_of(devices.begin(), devices.end(), is_placed)) torus = physical_mesh(devices);

  std::vector<DeviceId> ids;
  if (const auto order = detail::ring_order(options.device_kind, devices, shape)) {
    for (const std::size_t device : *order) ids.push_back(devices[device].id);
  } else if (torus) {
    if (options.contiguous_submeshes) torus = detail::with_contiguous_submeshes(*torus, shape);
    const PhysicalAxes split =
        options.split_physical_axes ? PhysicalAxes::splittable : PhysicalAxes::whole;
    const TorusAssignment assignment = assign_torus(sizes_of(torus->axes()), shape, split);
    return logical_mesh(*torus, std::move(axes), assignment);
  } else {
    for (const DeviceAttributes& device : devices) ids.push_back(device.id);
    std::sort(ids.begin(), ids.end());
  }
  return Mesh(std::move(axes), std::move(ids));
}

Mesh hybrid_mesh(const std::vector<HybridAxis>& axes, std::span<const DeviceAttributes> devices,
                 const HybridMeshOptions& options) {
  const HybridShape shape = shape_of(axes);
  const std::vector<Slice> slices = slices_of(devices, options);
  check_slices(shape, slices, options.granule);

  std::vector<DeviceId> ids;
  for (const Slice& slice : slices) {
    try {
      const Mesh block = device_mesh(shape.inner, slice.devices, options.inner);
      for (std::int64_t p = 0; p < block.size(); ++p) ids.push_back(block.device_at(p));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("hybrid_mesh: {}: {}", name_of(slice, options.granule),
                                            error.what()));
    }
  }

  // The outer and the inner sizes are axes of a grid of their own, of which each axis takes two.
  std::vector<Axis> grid;
  TorusAssignment assignment;
  for (const bool outer : {true, false}) {
    for (std::size_t axis = 0; axis < axes.size(); ++axis) {
      const std::int64_t size = outer ? axes[axis].outer : axes[axis].inner;
      grid.push_back({"", size});
      assignment.factors.push_back(Dims::filled(axes.size(), 1));
      assignment.factors.back()[axis] = size;
    }
  }
  return logical_mesh(Mesh(std::move(grid), std::move(ids)), shape.all, assignment);
}

}  // namespace shardwise
