#include "shardwise/shard/sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// One axis of a mesh seen as a digit of the position, and its weight in a number made of such
/// digits.
struct Digit {
  std::int64_t stride, size, weight;

  bool operator==(const Digit&) const = default;
};

/// A number read from a position: a tile index along one dim, or a replica id.
///
/// Canonical: no digit of size 1, and neighbouring digits that are neighbours in the position too
/// are one digit. Two counts over meshes of equal size give the same number at every position
/// exactly where they are equal.
struct Count {
  std::int64_t size = 1;      // of the range: 0 <= at(position) < size
  std::vector<Digit> digits;  // the least significant first

  std::int64_t at(std::int64_t position) const {
    std::int64_t number = 0;
    for (const Digit& digit : digits) number += position / digit.stride % digit.size * digit.weight;
    return number;
  }

  bool operator==(const Count&) const = default;

  /// How far a position with this number lies from the one with number 0, all else equal.
  std::int64_t offset_of(std::int64_t number) const {
    std::int64_t offset = 0;
    for (const Digit& digit : digits) offset += number / digit.weight % digit.size * digit.stride;
    return offset;
  }
};

/// `axes` in order of significance, major first.
Count count_over(const Mesh& mesh, const std::vector<std::size_t>& axes) {
  Count count;
  for (std::size_t i = axes.size(); i-- > 0;) {
    const Digit digit{mesh.stride(axes[i]), mesh.axes()[axes[i]].size, count.size};
    count.size *= digit.size;
    if (digit.size == 1) continue;
    if (!count.digits.empty() &&
        digit.stride == count.digits.back().stride * count.digits.back().size) {
      count.digits.back().size *= digit.size;
    } else {
      count.digits.push_back(digit);
    }
  }
  return count;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

/// Axis numbers per dim of the spec. Throws as the constructor of Sharding.
std::vector<std::vector<std::size_t>> resolve(const Mesh& mesh, const PartitionSpec& spec) {
  const auto fail = [&](ErrorCode code, std::size_t dim, const std::string& what) {
    throw Error(code, fmt::format("Sharding \"{}\": dim {}: {}", spec.to_string(), dim, what));
  };
  if (spec.rank() > kMaxRank) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("Sharding \"{}\": rank {} is over the limit of {}", spec.to_string(),
                            spec.rank(), kMaxRank));
  }
  std::vector<std::vector<std::size_t>> axes(spec.rank());
  std::vector<bool> used(mesh.rank(), false);
  for (std::size_t dim = 0; dim < spec.rank(); ++dim) {
    for (const std::string& axis_name : spec[dim]) {
      std::size_t axis = 0;
      try {
        axis = mesh.axis_index(axis_name);
      } catch (const Error& error) {
        fail(error.code(), dim, error.what());
      }
      if (used[axis]) {
        fail(ErrorCode::invalid_argument, dim,
             fmt::format("axis \"{}\" is used twice", mesh.axes()[axis].name));
      }
      used[axis] = true;
      axes[dim].push_back(axis);
    }
  }
  return axes;
}

}  // namespace

struct Sharding::Data {
  Mesh mesh;
  PartitionSpec spec;
  std::vector<Count> tiles;  // per dim
  Count replicas;            // over the axes that no dim uses

  void check(const char* operation, const Shape& shape) const {
    if (shape.size() == tiles.size() &&
        std::all_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent >= 0; })) {
      return;
    }
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{}: shape {}; needed for the spec \"{}\" are {} extents of at least 0",
                    operation, shardwise::to_string(shape), spec.to_string(), tiles.size()));
  }
};

Sharding::Sharding(Mesh mesh, PartitionSpec spec) {
  const auto axes_of_dims = resolve(mesh, spec);
  std::vector<Count> tiles;
  std::vector<bool> used(mesh.rank(), false);
  for (const auto& axes : axes_of_dims) {
    tiles.push_back(count_over(mesh, axes));
    for (const std::size_t axis : axes) used[axis] = true;
  }
  std::vector<std::size_t> unused;
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
    if (!used[axis]) unused.push_back(axis);
  }
  Count replicas = count_over(mesh, unused);
  data_ = std::make_shared<Data>(
      Data{std::move(mesh), std::move(spec), std::move(tiles), std::move(replicas)});
}

Sharding Sharding::replicated(Mesh mesh, std::size_t rank) {
  return Sharding(std::move(mesh), PartitionSpec::replicated(rank));
}

const Mesh& Sharding::mesh() const { return data_->mesh; }

const PartitionSpec& Sharding::spec() const { return data_->spec; }

std::size_t Sharding::rank() const { return data_->tiles.size(); }

std::int64_t Sharding::tiles(std::size_t dim) const { return data_->tiles[dim].size; }

std::int64_t Sharding::tile_index(std::int64_t position, std::size_t dim) const {
  return data_->tiles[dim].at(position);
}

Shape Sharding::shard_shape(const Shape& shape) const {
  data_->check("shard_shape", shape);
  Shape block = shape;
  for (std::size_t dim = 0; dim < rank(); ++dim) {
    block[dim] = ceil_div(shape[dim], data_->tiles[dim].size);
  }
  return block;
}

Box Sharding::box_at(std::int64_t position, const Shape& shape) const {
  data_->check("box", shape);
  Index begin = shape, end = shape;
  for (std::size_t dim = 0; dim < rank(); ++dim) {
    const Count& tiles = data_->tiles[dim];
    const std::int64_t extent = shape[dim];
    const std::int64_t block = ceil_div(extent, tiles.size);
    // The last tiles may begin past the end, even past 2^63 - 1.
    std::int64_t first = 0;
    if (__builtin_mul_overflow(tiles.at(position), block, &first)) first = extent;
    begin[dim] = std::min(first, extent);
    end[dim] = begin[dim] + std::min(block, extent - begin[dim]);
  }
  return Box(begin, end);
}

Box Sharding::box(DeviceId device, const Shape& shape) const {
  const auto position = mesh().position_of(device);
  if (!position) {
    throw Error(ErrorCode::not_found, fmt::format("box: device {} is not among the {} devices of "
                                                  "the sharding \"{}\"",
                                                  device, mesh().size(), spec().to_string()));
  }
  return box_at(*position, shape);
}

std::int64_t Sharding::num_replicas() const { return data_->replicas.size; }

std::int64_t Sharding::replica_id(std::int64_t position) const {
  return data_->replicas.at(position);
}

std::int64_t Sharding::xla_replica_id(std::int64_t position) const {
  const Count& replicas = data_->replicas;
  const std::int64_t id = replicas.at(position);
  if (mesh().is_iota()) return id;
  const DeviceId device = mesh().device_at(position);
  const std::int64_t first = position - replicas.offset_of(id);
  std::int64_t smaller = 0;
  for (std::int64_t other = 0; other < replicas.size; ++other) {
    if (mesh().device_at(first + replicas.offset_of(other)) < device) ++smaller;
  }
  return smaller;
}

bool Sharding::is_fully_replicated() const { return num_replicas() == mesh().size(); }

std::vector<DistinctPiece> Sharding::distinct_pieces(const Shape& shape) const {
  const Shape block = shard_shape(shape);
  if (num_elements(shape) == 0) return {};
  Dims counts = block;  // the tiles per dim that are not empty
  for (std::size_t dim = 0; dim < rank(); ++dim) counts[dim] = ceil_div(shape[dim], block[dim]);
  const Dims strides = row_major_strides(counts);
  std::vector<DistinctPiece> pieces(static_cast<std::size_t>(num_elements(counts)));
  for (std::int64_t position = 0; position < mesh().size(); ++position) {
    std::int64_t number = 0;
    bool empty = false;
    for (std::size_t dim = 0; dim < rank(); ++dim) {
      const std::int64_t tile = tile_index(position, dim);
      empty |= tile >= counts[dim];
      number += tile * strides[dim];
    }
    if (empty) continue;
    DistinctPiece& piece = pieces[static_cast<std::size_t>(number)];
    if (piece.positions.empty()) piece.box = box_at(position, shape);
    piece.positions.push_back(position);
  }
  return pieces;
}

std::string Sharding::to_string() const {
  return fmt::format("{} on {}", spec().to_string(), mesh().to_string());
}

bool Sharding::operator==(const Sharding& other) const {
  if (data_ == other.data_) return true;
  if (rank() != other.rank() || mesh().size() != other.mesh().size()) return false;
  for (std::size_t dim = 0; dim < rank(); ++dim) {
    if (tiles(dim) != other.tiles(dim)) return false;
  }
  if ((mesh().is_iota() && other.mesh().is_iota()) || mesh() == other.mesh()) {
    return std::equal(data_->tiles.begin(), data_->tiles.end(), other.data_->tiles.begin());
  }
  for (std::int64_t position = 0; position < mesh().size(); ++position) {
    const auto place = other.mesh().position_of(mesh().device_at(position));
    if (!place) return false;
    for (std::size_t dim = 0; dim < rank(); ++dim) {
      if (tile_index(position, dim) != other.tile_index(*place, dim)) return false;
    }
  }
  return true;
}

}  // namespace shardwise
