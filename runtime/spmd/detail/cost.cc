#include "shardwise/runtime/spmd/detail/cost.h"

#include <algorithm>
#include <utility>

namespace shardwise {
namespace {

double block(std::int64_t extent, std::int64_t parts) {
  const std::int64_t largest = (extent + parts - 1) / parts;
  return static_cast<double>(largest);
}

double block(std::int64_t extent, const AxisList& axes, const Mesh& mesh) {
  return static_cast<double>(tile_extent(extent, axes, mesh));
}

/// Whether one of the lists begins with the axes of the other.
bool starts_alike(const AxisList& a, const AxisList& b) {
  return std::equal(a.begin(), a.begin() + std::min(a.size(), b.size()), b.begin());
}

/// For a dim whose two cuts start with the same axes, and one cut has tiles of its own: each device
/// has a part under `from` and needs one under `to`. The result is the smallest overlap of the two
/// that a device has, as a share of a whole tile.
double held_in_tiles(std::int64_t extent, const AxisList& from, const AxisList& to,
                     const Mesh& mesh) {
  const std::int64_t parts = std::max(ways(from, mesh), ways(to, mesh));
  const auto tile_of = [&](const AxisList& axes, std::int64_t part) {
    const std::int64_t tile = tile_extent(extent, axes, mesh);
    const std::int64_t number = part / (parts / ways(axes, mesh));
    return std::pair(std::min(number * tile, extent), std::min((number + 1) * tile, extent));
  };
  std::int64_t most_missing = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    const auto [held_begin, held_end] = tile_of(from, part);
    const auto [begin, end] = tile_of(to, part);
    const std::int64_t shared = std::min(held_end, end) - std::max(held_begin, begin);
    most_missing = std::max(most_missing, end - begin - std::max<std::int64_t>(shared, 0));
  }
  return static_cast<double>(tile_extent(extent, to, mesh) - most_missing);
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
    if ((a.tile() > 0 || b.tile() > 0) && starts_alike(a, b)) {
      held *= held_in_tiles(shape[dim], a, b, mesh);
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

double combine_bytes(const TensorType& type, const Cut& to, AxisSet partial, const Mesh& mesh) {
  const double part =
      part_elements(type.shape, to, mesh) * static_cast<double>(size_bytes(type.dtype));
  const AxisSet scattered = partial & axes_of(to);
  const double group = static_cast<double>(ways(scattered, mesh));
  const double rest = static_cast<double>(ways(partial & ~scattered, mesh));
  return part * (group - 1) + part * 2 * (rest - 1) / rest;
}

}  // namespace shardwise
