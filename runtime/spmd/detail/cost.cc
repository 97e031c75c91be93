#include "shardwise/runtime/spmd/detail/cost.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace shardwise {
namespace {

double block(std::int64_t extent, std::int64_t parts) {
  const std::int64_t largest = (extent + parts - 1) / parts;
  return static_cast<double>(largest);
}

/// The range of a dim on device number `part` of those that the axes distinguish.
std::pair<std::int64_t, std::int64_t> part_of(std::int64_t extent, const AxisList& axes,
                                              std::int64_t part, const Mesh& mesh) {
  const Window& window = axes.window();
  const std::int64_t frame = window.is_set() ? window.extent : extent;
  const std::int64_t tile = tile_extent(frame, axes, mesh);
  const std::int64_t begin = std::min(part * tile, frame), end = std::min(begin + tile, frame);
  return window.is_set() ? window.range(begin, end, extent) : std::pair(begin, end);
}

/// The largest part.
double block(std::int64_t extent, const AxisList& axes, const Mesh& mesh) {
  if (!axes.window().is_set()) return static_cast<double>(tile_extent(extent, axes, mesh));
  std::int64_t most = 0;
  for (std::int64_t part = 0; part < ways(axes, mesh); ++part) {
    const auto [begin, end] = part_of(extent, axes, part, mesh);
    most = std::max(most, end - begin);
  }
  return static_cast<double>(most);
}

/// The number of a device's part among those that `axes` distinguish, given its mesh coordinates.
std::int64_t part_number(const AxisList& axes, const std::vector<std::int64_t>& place,
                         const Mesh& mesh) {
  std::int64_t part = 0;
  for (const std::uint8_t axis : axes) part = part * mesh.axes()[axis].size + place[axis];
  return part;
}

/// The most elements of a dim that any device lacks.
std::int64_t most_missing(std::int64_t extent, const AxisList& from, const AxisList& to,
                          const Mesh& mesh) {
  std::vector<std::size_t> axes;
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
    if ((from.set() | to.set()) >> axis & 1) axes.push_back(axis);
  }
  std::vector<std::int64_t> place(mesh.rank(), 0);
  std::int64_t most = 0;
  for (;;) {
    const auto [held_begin, held_end] = part_of(extent, from, part_number(from, place, mesh), mesh);
    const auto [begin, end] = part_of(extent, to, part_number(to, place, mesh), mesh);
    const std::int64_t shared = std::min(held_end, end) - std::max(held_begin, begin);
    most = std::max(most, end - begin - std::max<std::int64_t>(shared, 0));
    std::size_t i = 0;
    while (i < axes.size() && ++place[axes[i]] == mesh.axes()[axes[i]].size) place[axes[i++]] = 0;
    if (i == axes.size()) return most;
  }
}

/// True if parts have one size and their offsets follow from the number of the part.
bool is_even(std::int64_t extent, const AxisList& axes, const Mesh& mesh) {
  return axes.tile() == 0 && !axes.window().is_set() && extent % ways(axes, mesh) == 0;
}

}  // namespace

double part_elements(const Shape& shape, const Cut& cut, const Mesh& mesh) {
  double elements = 1;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    elements *= block(shape[dim], cut[dim], mesh);
  }
  return elements;
}

double missing_elements(const Shape& shape, const Cut& from, const Cut& to, const Mesh& mesh) {
  double needed = 1, held = 1;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const AxisList &a = from[dim], &b = to[dim];
    const double part = block(shape[dim], b, mesh);
    needed *= part;
    if (!is_even(shape[dim], a, mesh) || !is_even(shape[dim], b, mesh)) {
      held *= part - static_cast<double>(most_missing(shape[dim], a, b, mesh));
    } else if (a.is_prefix_of(b)) {
      held *= part;
    } else if (b.is_prefix_of(a)) {
      held *= block(shape[dim], a, mesh);
    } else {
      // Independent beyond the axes that both start with.
      std::size_t common = 0;
      while (a[common] == b[common]) ++common;
      std::int64_t shared = 1;
      for (std::size_t i = 0; i < common; ++i) shared *= mesh.axes()[a[i]].size;
      held *= std::min(part, block(shape[dim], ways(a, mesh) * ways(b, mesh) / shared));
    }
  }
  return needed - held;
}

bool holds(const Shape& shape, const Cut& have, const Cut& needed, const Mesh& mesh) {
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (have[dim] == needed[dim]) continue;
    if (!needed[dim].window().is_set()) return false;
    if (most_missing(shape[dim], have[dim], needed[dim], mesh) > 0) return false;
  }
  return true;
}

TensorType sum_type(const TensorType& type) {
  const bool is_narrow = type.dtype == DType::bf16 || type.dtype == DType::f16;
  return {is_narrow ? DType::f32 : type.dtype, type.shape};
}

double combine_bytes(const TensorType& type, const Cut& to, AxisSet partial, const Mesh& mesh) {
  const double part =
      part_elements(type.shape, to, mesh) * static_cast<double>(size_bytes(type.dtype));
  const AxisSet scattered = partial & axes_of(to);
  const double group = static_cast<double>(ways(scattered, mesh));
  const double rest = static_cast<double>(ways(partial & ~scattered, mesh));
  return part * (group - 1) + part * 2 * (rest - 1) / rest;
}

}  // namespace shardwise
