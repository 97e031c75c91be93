#include "shardwise/shard/torus/detail/known_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

using Order = std::vector<std::size_t>;

// Rings through small topologies, by the number of the device in the order z, y, x (x fastest) or,
// for chips with two cores, y, x, core.
constexpr std::array<std::size_t, 4> kRing2x2 = {0, 1, 3, 2};
constexpr std::array<std::size_t, 8> kRingOfCores = {0, 1, 2, 3, 6, 7, 4, 5};  // 2x2 chips, 2 cores
constexpr std::array<std::size_t, 8> kRing4x2 = {0, 1, 2, 3, 7, 6, 5, 4};
constexpr std::array<std::size_t, 8> kRing2x2x2 = {0, 1, 3, 2, 6, 7, 5, 4};
constexpr std::array<std::size_t, 8> kByZ2x2x2 = {0, 4, 2, 6, 1, 5, 3, 7};  // no ring: rows along z
constexpr std::array<std::size_t, 16> kRing4x4 = {0,  1,  2,  3,  7,  6,  5, 9,
                                                  10, 11, 15, 14, 13, 12, 8, 4};

/// Repeats `ring` over the devices as they are listed. Requires that it fits a whole number of
/// times.
Order repeat(std::span<const std::size_t> ring, std::size_t devices) {
  Order order(devices);
  for (std::size_t p = 0; p < devices; ++p) {
    order[p] = p / ring.size() * ring.size() + ring[p % ring.size()];
  }
  return order;
}

std::int64_t coordinate(const DeviceAttributes& device, std::size_t axis) {
  return axis < device.coordinates.size() ? device.coordinates[axis] : 0;
}

/// `ring` on the devices by z, y, x.
Order by_place(std::span<const std::size_t> ring, std::span<const DeviceAttributes> devices) {
  Order sorted(devices.size());
  std::iota(sorted.begin(), sorted.end(), std::size_t{0});
  std::stable_sort(sorted.begin(), sorted.end(), [&](std::size_t a, std::size_t b) {
    const Index &first = devices[a].coordinates, &second = devices[b].coordinates;
    return std::lexicographical_compare(
        std::reverse_iterator(first.end()), std::reverse_iterator(first.begin()),
        std::reverse_iterator(second.end()), std::reverse_iterator(second.begin()));
  });
  Order order;
  for (const std::size_t device : ring) order.push_back(sorted[device]);
  return order;
}

/// The end of the devices' box along x, y and z.
std::array<std::int64_t, 3> bounds(std::span<const DeviceAttributes> devices) {
  std::array<std::int64_t, 3> result{};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    for (const DeviceAttributes& device : devices) {
      result[axis] = std::max(result[axis], coordinate(device, axis) + 1);
    }
  }
  return result;
}

std::optional<Order> order_v3(std::span<const DeviceAttributes> devices, const Shape& shape) {
  const bool by_trays = !shape.empty() && shape[shape.size() - 1] == 8;
  if (devices.size() == 8 || by_trays) return repeat(kRingOfCores, devices.size());
  return repeat(std::array<std::size_t, 1>{0}, devices.size());
}

std::optional<Order> order_v4_lite(std::span<const DeviceAttributes> devices) {
  if (devices.size() == 4) return repeat(kRing2x2, 4);
  return std::nullopt;
}

std::optional<Order> order_v5e(std::span<const DeviceAttributes> devices, const Shape& shape) {
  const std::array<std::int64_t, 3> end = bounds(devices);
  if (devices.size() == 4 && end == std::array<std::int64_t, 3>{2, 2, 1}) {
    return by_place(kRing2x2, devices);
  }
  if (devices.size() == 8) {
    const bool cube = end == std::array<std::int64_t, 3>{2, 2, 2};
    return by_place(cube ? kByZ2x2x2 : kRing4x2, devices);
  }
  const bool one_axis = std::any_of(shape.begin(), shape.end(), [&devices](std::int64_t size) {
    return std::cmp_equal(size, devices.size());
  });
  if (devices.size() == 16 && end == std::array<std::int64_t, 3>{4, 4, 1} && one_axis) {
    return by_place(kRing4x4, devices);
  }
  return std::nullopt;
}

std::optional<Order> order_v5p(std::span<const DeviceAttributes> devices) {
  if (devices.size() == 8 && bounds(devices) == std::array<std::int64_t, 3>{2, 2, 2}) {
    return by_place(kRing2x2x2, devices);
  }
  return std::nullopt;
}

/// Rings over the cores of 2x2 chips, one for each z.
std::optional<Order> order_7x(std::span<const DeviceAttributes> devices) {
  if (devices.size() % 8 != 0 || devices.size() > 32) return std::nullopt;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const auto [low, high] = std::minmax_element(
        devices.begin(), devices.end(),
        [axis](const auto& a, const auto& b) { return coordinate(a, axis) < coordinate(b, axis); });
    if (coordinate(*high, axis) - coordinate(*low, axis) > 1) return std::nullopt;
  }
  return repeat(kRingOfCores, devices.size());
}

struct ContiguousMesh {
  Shape torus, mesh;  // the mesh without its axes of size 1
  bool swap;          // whether the last two axes of the torus are swapped
};

const ContiguousMesh kContiguousMeshes[] = {
    {{2, 2, 1}, {2, 2}, false},    {{2, 2, 4}, {4, 4}, false},   {{4, 4, 4}, {16, 4}, true},
    {{4, 8, 8}, {64, 4}, true},    {{4, 8, 8}, {4, 64}, true},   {{8, 8, 8}, {64, 8}, true},
    {{8, 16, 16}, {256, 8}, true}, {{8, 16, 16}, {8, 256}, true}};

Torus with_last_axes_swapped(const Torus& torus) {
  const std::int64_t x = torus.shape[0], y = torus.shape[1], z = torus.shape[2];
  return {{x, z, y}, laid_out(torus.ids, {{Dims{x, 1, 1}, Dims{1, 1, y}, Dims{1, z, 1}}})};
}

}  // namespace

std::optional<std::vector<std::size_t>> ring_order(std::string_view device_kind,
                                                   std::span<const DeviceAttributes> devices,
                                                   const Shape& shape) {
  const auto is = [device_kind](auto... kinds) { return ((device_kind == kinds) || ...); };
  if (is("TPU v2", "TPU v3")) return order_v3(devices, shape);
  if (is("TPU v4 lite", "TPU8i")) return order_v4_lite(devices);
  if (is("TPU v5 lite", "TPU v5e", "TPU v6 lite")) return order_v5e(devices, shape);
  if (is("TPU v5", "TPU v5p")) return order_v5p(devices);
  if (is("TPU7", "TPU7x")) return order_7x(devices);
  return std::nullopt;
}

Torus with_contiguous_submeshes(const Torus& torus, const Shape& shape) {
  Shape mesh;
  for (const std::int64_t size : shape) {
    if (size != 1) mesh.push_back(size);
  }
  std::string known;
  for (const ContiguousMesh& row : kContiguousMeshes) {
    if (row.torus != torus.shape) continue;
    if (row.mesh == mesh) return row.swap ? with_last_axes_swapped(torus) : torus;
    known += (known.empty() ? "" : " and ") + to_string(row.mesh);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("device mesh: contiguous sub-meshes of mesh {} on torus {}; known how to "
                          "make are {}",
                          to_string(shape), to_string(torus.shape),
                          known.empty() ? "none on this torus" : known));
}

}  // namespace shardwise::detail
