#include "shardwise/runtime/spmd/detail/cost.h"

#include <algorithm>

namespace shardwise {
namespace {

double block(std::int64_t extent, std::int64_t parts) {
  const std::int64_t largest = (extent + parts - 1) / parts;
  return static_cast<double>(largest);
}

}  // namespace

double part_elements(const Shape& shape, const Cut& cut, const Mesh& mesh) {
  double elements = 1;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    elements *= block(shape[dim], ways(cut[dim], mesh));
  }
  return elements;
}

double missing_elements(const Shape& shape, const Cut& from, const Cut& to, const Mesh& mesh) {
  double needed = 1, held = 1;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const AxisList &a = from[dim], &b = to[dim];
    const double part = block(shape[dim], ways(b, mesh));
    needed *= part;
    if (a.is_prefix_of(b)) {
      held *= part;
    } else if (b.is_prefix_of(a)) {
      held *= block(shape[dim], ways(a, mesh));
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
