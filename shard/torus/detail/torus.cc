#include "shardwise/shard/torus/detail/torus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "physical mesh: " + what);
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
          "device {} has the coordinates {} and device {} {}; needed "
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
      fail(fmt::format("the coordinates from {} to {} span more than 2^63 - 1 places",
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
      fmt::format("{} at {}, where {} devices span a box of {} places; needed is "
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

}  // namespace

Torus torus_of(std::span<const DeviceAttributes> devices) {
  if (devices.empty()) fail("there are no devices; needed is at least 1");
  const Span span = span_of(devices);
  return {span.extents, fill(span, devices)};
}

std::vector<DeviceId> laid_out(std::span<const DeviceId> ids, const TorusAssignment& assignment) {
  const std::vector<Dims>& factors = assignment.factors;
  struct Factor {
    std::int64_t size, stride, value = 0;
  };
  // First the factors of a place, by physical and logical axis; then those of a logical position,
  // by logical and physical axis, the last counting fastest.
  std::vector<std::vector<Factor>> of_axis(factors.empty() ? 0 : factors[0].size());
  std::int64_t stride = 1;
  for (std::size_t p = factors.size(); p-- > 0;) {
    for (std::size_t l = of_axis.size(); l-- > 0;) {
      if (factors[p][l] > 1) of_axis[l].push_back({factors[p][l], stride});
      stride *= factors[p][l];
    }
  }
  std::vector<Factor> digits;
  for (std::vector<Factor>& axis : of_axis) digits.insert(digits.end(), axis.rbegin(), axis.rend());

  std::vector<DeviceId> result;
  result.reserve(ids.size());
  for (std::size_t place = 0; result.size() < ids.size();) {
    result.push_back(ids[place]);
    for (std::size_t d = digits.size(); d-- > 0;) {
      place += static_cast<std::size_t>(digits[d].stride);
      if (++digits[d].value < digits[d].size) break;
      place -= static_cast<std::size_t>(digits[d].size * digits[d].stride);
      digits[d].value = 0;
    }
  }
  return result;
}

}  // namespace shardwise::detail
