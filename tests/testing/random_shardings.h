#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "shardwise/shard/sharding.h"

namespace shardwise {

/// Small random meshes, specs and shapes: every rank from 0 to 4, size-1 axes, axes merged on one
/// dim, permuted orders and sub-meshes, dims that are empty or smaller than the axis.
class RandomShardings {
 public:
  explicit RandomShardings(unsigned seed) : random_(seed) {}

  std::int64_t draw(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }

  Mesh mesh() {
    std::vector<Axis> axes(static_cast<std::size_t>(draw(0, 4)));
    std::int64_t size = 1;
    for (Axis& axis : axes) {
      const std::int64_t most = std::min<std::int64_t>(5, 24 / size);
      axis.size = draw(1, most);
      size *= axis.size;
    }
    const bool named = draw(0, 1) == 1;
    for (std::size_t i = 0; named && i < axes.size(); ++i) {
      axes[i].name = std::string(1, static_cast<char>('a' + i));
    }
    const std::int64_t order = draw(0, 2);
    if (order == 0) return Mesh(axes);
    std::vector<DeviceId> ids(static_cast<std::size_t>(order * size));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    ids.resize(static_cast<std::size_t>(size));
    return Mesh(axes, ids);
  }

  /// Some of the axes, shuffled, each on a random dim.
  PartitionSpec spec(const Mesh& mesh, std::size_t rank) {
    std::vector<PartitionSpec::Entry> entries(rank);
    std::vector<std::size_t> axes(mesh.rank());
    std::iota(axes.begin(), axes.end(), 0u);
    std::shuffle(axes.begin(), axes.end(), random_);
    for (const std::size_t axis : axes) {
      if (rank == 0 || draw(0, 3) == 0) continue;
      const std::string name = draw(0, 1) == 0 ? mesh.axes()[axis].name : std::to_string(axis);
      entries[static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(rank) - 1))].push_back(
          name);
    }
    return PartitionSpec(entries);
  }

  Shape shape(std::size_t rank) {
    const std::int64_t most = rank <= 2 ? 13 : 6;
    Shape shape;
    for (std::size_t dim = 0; dim < rank; ++dim) {
      shape.push_back(draw(0, 19) == 0 ? 0 : draw(1, most));
    }
    return shape;
  }

  Sharding sharding(std::size_t rank) {
    Mesh m = mesh();
    PartitionSpec s = spec(m, rank);
    return Sharding(std::move(m), std::move(s));
  }

  /// The same from whole axes and the two halves of axes of 4.
  PartitionSpec spec_with_parts(const Mesh& mesh, std::size_t rank) {
    std::vector<std::string> parts;
    for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
      const std::string name = std::to_string(axis);
      if (mesh.axes()[axis].size == 4 && draw(0, 1) == 0) {
        parts.insert(parts.end(), {name + ":(1)2", name + ":(2)2"});
      } else {
        parts.push_back(name);
      }
    }
    std::shuffle(parts.begin(), parts.end(), random_);
    std::vector<PartitionSpec::Entry> entries(rank);
    for (const std::string& part : parts) {
      if (rank == 0 || draw(0, 3) == 0) continue;
      entries[static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(rank) - 1))].push_back(
          part);
    }
    return PartitionSpec(entries);
  }

  /// Cut by any policy that allows the shape.
  Sharding sharding(std::size_t rank, const Shape& tensor) {
    const Mesh m = mesh();
    return sharding(m, spec(m, rank), tensor);
  }
  Sharding sharding(const Mesh& m, const PartitionSpec& s, const Shape& tensor) {
    const std::size_t rank = tensor.size();
    const Sharding plain(m, s);
    std::vector<std::vector<std::int64_t>> sizes(rank);
    bool divisible = true;
    for (std::size_t dim = 0; dim < rank; ++dim) {
      const std::int64_t tiles = plain.tiles(dim);
      divisible &= tensor[dim] % tiles == 0;
      std::vector<std::int64_t> ends{0, tensor[dim]};
      for (std::int64_t i = 1; i < tiles; ++i) ends.push_back(draw(0, tensor[dim]));
      std::sort(ends.begin(), ends.end());
      for (std::size_t i = 1; i < ends.size(); ++i) sizes[dim].push_back(ends[i] - ends[i - 1]);
    }
    switch (draw(0, 4)) {
      case 0:
        return Sharding(m, plain.spec(), UnevenPolicy::balanced());
      case 1:
        return Sharding(m, plain.spec(), UnevenPolicy::nested_chunk());
      case 2:
        return Sharding(m, plain.spec(), UnevenPolicy::tile_sizes(std::move(sizes)));
      case 3:
        return divisible ? Sharding(m, plain.spec(), UnevenPolicy::strict()) : plain;
      default:
        return plain;
    }
  }

  std::mt19937& engine() { return random_; }

 private:
  std::mt19937 random_;
};

/// Every index of the box, in row-major order.
inline std::vector<Index> indices_of(const Box& box) {
  std::vector<Index> all;
  if (box.empty()) return all;
  Index at = box.begin();
  for (;;) {
    all.push_back(at);
    std::size_t dim = at.size();
    while (dim > 0 && at[dim - 1] + 1 == box.end(dim - 1)) {
      --dim;
      at[dim] = box.begin(dim);
    }
    if (dim == 0) return all;
    ++at[dim - 1];
  }
}

/// Whether the box holds the element, dim by dim.
inline bool holds(const Box& box, const Index& at) {
  for (std::size_t dim = 0; dim < at.size(); ++dim) {
    if (at[dim] < box.begin(dim) || at[dim] >= box.end(dim)) return false;
  }
  return true;
}

/// Row-major number of a global index in memory that holds the box.
inline std::size_t offset_in(const Box& box, const Index& at) {
  std::int64_t offset = 0;
  for (std::size_t dim = 0; dim < at.size(); ++dim) {
    offset = offset * box.extent(dim) + at[dim] - box.begin(dim);
  }
  return static_cast<std::size_t>(offset);
}

}  // namespace shardwise
