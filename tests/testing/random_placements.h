#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "shardwise/shard/notation/placements.h"

namespace shardwise {

/// A placement per axis on meshes of up to 256 devices and rank 4, for tensors of rank 1 to 4:
/// split factors that are what later axes make up, and others; dims that are empty, of one element,
/// smaller than their ways, and uneven.
class RandomPlacements {
 public:
  explicit RandomPlacements(unsigned seed) : random_(seed) {}

  std::int64_t draw(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }

  Mesh mesh() {
    const std::int64_t sizes[] = {1, 2, 2, 3, 4, 5, 8};
    std::vector<Axis> axes(static_cast<std::size_t>(draw(1, 4)));
    for (Axis& axis : axes) axis.size = sizes[draw(0, 6)];
    while (product(axes, 0) > 256) axes.pop_back();
    return Mesh(axes);
  }

  Placements placements(const Mesh& mesh, std::size_t rank) {
    const std::vector<Axis> axes(mesh.axes().begin(), mesh.axes().end());
    const std::int64_t splits[] = {1, 2, 3, 4, 6, 8};
    std::vector<Placement> list;
    for (std::size_t axis = 0; axis < axes.size(); ++axis) {
      const auto dim = static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(rank) - 1));
      const std::int64_t kind = draw(0, 9);
      const std::int64_t split = draw(0, 1) == 0 ? product(axes, axis + 1) : splits[draw(0, 5)];
      list.push_back(kind < 2   ? Placement::replicate()
                     : kind < 6 ? Placement::shard(dim)
                                : Placement::strided_shard(dim, split));
    }
    return Placements(mesh, list);
  }

  /// Extents near the numbers of parts into which the placements cut a dim.
  Shape shape(const Placements& placements, std::size_t rank) {
    Shape ways = Shape::filled(rank, 1);
    for (std::size_t axis = 0; axis < placements.list().size(); ++axis) {
      const Placement& placement = placements.list()[axis];
      if (placement.cuts()) ways[placement.dim] *= placements.mesh().axes()[axis].size;
    }
    const std::int64_t others[] = {1, 2, 3, 5, 7, 11, 13, 17, 31, 64};
    Shape shape;
    for (const std::int64_t w : ways) {
      const std::int64_t kind = draw(0, 24);
      const std::int64_t extent = kind == 0  ? 0
                                  : kind < 7 ? w * draw(1, 4)
                                  : kind < 15
                                      ? w * draw(1, 3) + draw(1, std::max<std::int64_t>(1, w - 1))
                                  : kind < 20 ? draw(1, std::max<std::int64_t>(1, w - 1))
                                              : others[draw(0, 9)];
      shape.push_back(std::min<std::int64_t>(extent, 400));
    }
    return shape;
  }

 private:
  static std::int64_t product(const std::vector<Axis>& axes, std::size_t first) {
    std::int64_t result = 1;
    for (std::size_t i = first; i < axes.size(); ++i) result *= axes[i].size;
    return result;
  }

  std::mt19937 random_;
};

/// torch.chunk on a list: blocks of ceil(length / count), the last ones short or empty.
inline std::vector<std::vector<std::int64_t>> chunks(const std::vector<std::int64_t>& list,
                                                     std::int64_t count) {
  std::vector<std::vector<std::int64_t>> result(static_cast<std::size_t>(count));
  const std::size_t block = (list.size() + result.size() - 1) / result.size();
  for (std::size_t i = 0; i < list.size(); ++i) result[i / block].push_back(list[i]);
  return result;
}

/// The indices of a dim that a position holds, one by one, as DTensor's rules say.
inline std::vector<std::int64_t> chunked_elements(const Placements& placements, std::size_t dim,
                                                  std::int64_t extent, std::int64_t position) {
  std::vector<std::int64_t> held(static_cast<std::size_t>(extent));
  std::iota(held.begin(), held.end(), 0);
  const Mesh& mesh = placements.mesh();
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
    const Placement& placement = placements.list()[axis];
    if (!placement.cuts() || placement.dim != dim) continue;
    std::vector<std::int64_t> kept;
    for (const auto& chunk : chunks(held, placement.split)) {
      const auto parts = chunks(chunk, mesh.axes()[axis].size);
      const auto& part = parts[static_cast<std::size_t>(mesh.coordinate(position, axis))];
      kept.insert(kept.end(), part.begin(), part.end());
    }
    held = kept;
  }
  return held;
}

/// The runs that a list of ascending indices has.
inline std::vector<IndexRun> runs_of(const std::vector<std::int64_t>& indices) {
  std::vector<IndexRun> runs;
  for (const std::int64_t i : indices) {
    if (runs.empty() || runs.back().end != i) runs.push_back({i, i});
    ++runs.back().end;
  }
  return runs;
}

}  // namespace shardwise
