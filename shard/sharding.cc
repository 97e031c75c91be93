#include "shardwise/shard/sharding.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <utility>

#include "shardwise/shard/detail/list_size.h"
#include "shardwise/shard/detail/same_boxes.h"
#include "shardwise/shard/detail/sharding_data.h"
#include "shardwise/shard/detail/spec_axes.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/owned_tiles.h"

namespace shardwise {
namespace {

/// "8 or 16"; only the lower one if the other is beyond 2^63 - 1.
std::string nearest_multiples(std::int64_t extent, std::int64_t ways) {
  const std::int64_t below = extent / ways * ways;
  std::int64_t above = 0;
  if (__builtin_add_overflow(below, ways, &above)) return std::to_string(below);
  return fmt::format("{} or {}", below, above);
}

std::vector<detail::DimCut> cuts_of(const PartitionSpec& spec, const UnevenPolicy& policy,
                                    const std::vector<detail::SpecAxis>& axes) {
  const auto fail = [&](const std::string& what) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("sharding \"{}\": policy {}: {}", spec.to_string(), policy.to_string(), what));
  };
  const bool given = policy.kind() == UnevenPolicy::Kind::tile_sizes;
  if (given && policy.sizes().size() != spec.rank()) {
    fail(fmt::format("it is for {} dims; needed are {}", policy.sizes().size(), spec.rank()));
  }
  std::vector<detail::DimCut> cuts;
  cuts.reserve(spec.rank());
  std::size_t next = 0;
  for (std::size_t dim = 0; dim < spec.rank(); ++dim) {
    detail::Digits digits;
    for (; next < axes.size() && axes[next].dim == dim; ++next) {
      digits.append(axes[next].stride, axes[next].size,
                    policy.kind() != UnevenPolicy::Kind::nested_chunk);
    }
    std::vector<std::int64_t> sizes;
    if (given) sizes = policy.sizes()[dim];
    const std::size_t tiles = static_cast<std::size_t>(digits.range.divisor());
    if (given && sizes.size() != tiles && !(sizes.empty() && tiles == 1)) {
      fail(fmt::format("dim {} has {} tile sizes; needed are {}", dim, sizes.size(), tiles));
    }
    cuts.emplace_back(std::move(digits), policy.kind(), std::move(sizes));
  }
  return cuts;
}

}  // namespace

void Sharding::Data::check(const Shape& shape) const {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("cut by the spec \"{}\": {}", spec.to_string(), what));
  };
  if (shape.size() != cuts.size() ||
      std::any_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent < 0; })) {
    fail(fmt::format("shape {}; needed are {} extents of at least 0", shardwise::to_string(shape),
                     cuts.size()));
  }
  for (std::size_t dim = 0; dim < cuts.size(); ++dim) {
    if (cuts[dim].allows(shape[dim])) continue;
    const std::int64_t ways = cuts[dim].num_tiles();
    const std::string needed =
        policy.kind() == UnevenPolicy::Kind::strict
            ? fmt::format("a multiple of {}, as {}", ways, nearest_multiples(shape[dim], ways))
            : "the sum of the tile sizes";
    fail(
        fmt::format("dim {} of shape {} has extent {} over axes \"{}\", {} ways; needed under the "
                    "policy {} is {}",
                    dim, shardwise::to_string(shape), shape[dim], fmt::join(spec[dim], "+"), ways,
                    policy.to_string(), needed));
  }
}

Sharding::Sharding(Mesh mesh, PartitionSpec spec, UnevenPolicy policy) {
  if (spec.rank() > kMaxRank) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("sharding \"{}\": it has rank {}; needed is at most {}",
                            spec.to_string(), spec.rank(), kMaxRank));
  }
  const std::vector<detail::SpecAxis> axes = detail::resolve(mesh, spec);
  detail::Digits replicas;
  for (const detail::SpecAxis& part : detail::unused(mesh, axes)) {
    replicas.append(part.stride, part.size, true);
  }
  std::vector<detail::DimCut> cuts = cuts_of(spec, policy, axes);
  data_ = std::make_shared<Data>(Data{std::move(mesh), std::move(spec), std::move(policy),
                                      std::move(cuts), std::move(replicas)});
}

Sharding Sharding::replicated(Mesh mesh, std::size_t rank) {
  return Sharding(std::move(mesh), PartitionSpec::replicated(rank));
}

const Mesh& Sharding::mesh() const { return data_->mesh; }

const PartitionSpec& Sharding::spec() const { return data_->spec; }

const UnevenPolicy& Sharding::policy() const { return data_->policy; }

std::int64_t Sharding::tiles(std::size_t dim) const { return data_->cuts[dim].num_tiles(); }

std::int64_t Sharding::tile_index(std::int64_t position, std::size_t dim) const {
  return data_->cuts[dim].digits().at(position);
}

TileRange Sharding::tile_range(std::size_t dim, std::int64_t tile, std::int64_t extent) const {
  const detail::Interval interval = data_->cuts[dim].tile(tile, extent);
  return {tile, interval.begin, interval.end};
}

std::int64_t Sharding::tile_of(std::size_t dim, std::int64_t element, std::int64_t extent) const {
  return data_->cuts[dim].tile_of(element, extent);
}

std::int64_t Sharding::position_of(const Index& tile, std::int64_t replica) const {
  std::int64_t position = data_->replicas.offset_of(replica);
  for (std::size_t dim = 0; dim < rank(); ++dim) {
    position += data_->cuts[dim].digits().offset_of(tile[dim]);
  }
  return position;
}

Shape Sharding::shard_shape(const Shape& shape) const {
  data_->check(shape);
  Shape block = shape;
  for (std::size_t dim = 0; dim < rank(); ++dim) block[dim] = data_->cuts[dim].block(shape[dim]);
  return block;
}

Box Sharding::box_at(std::int64_t position, const Shape& shape) const {
  data_->check(shape);
  Box box = Box::whole(shape);
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const detail::DimCut& cut = data_->cuts[dim];
    const detail::Interval tile = cut.tile(cut.digits().at(position), shape[dim]);
    box.set(dim, tile.begin, tile.end);
  }
  return box;
}

Box Sharding::box(DeviceId device, const Shape& shape) const {
  const auto position = mesh().position_of(device);
  if (!position) {
    throw Error(ErrorCode::not_found,
                fmt::format("box of device {}: it is not among the {} devices of "
                            "the sharding \"{}\"",
                            device, mesh().size(), spec().to_string()));
  }
  return box_at(*position, shape);
}

std::int64_t Sharding::num_replicas() const { return data_->replicas.range.divisor(); }

std::int64_t Sharding::replica_id(std::int64_t position) const {
  return data_->replicas.at(position);
}

bool Sharding::is_fully_replicated() const { return num_replicas() == mesh().size(); }

std::vector<DistinctPiece> Sharding::distinct_pieces(const Shape& shape) const {
  data_->check(shape);
  std::vector<DistinctPiece> pieces;
  std::int64_t positions = 0;
  for (const OwnedTile& owned : OwnedTiles(*this, shape)) {
    pieces.push_back({owned.box, positions_of(*this, owned.tile)});
    positions += num_replicas();
    detail::list_size(positions, "the distinct pieces of a sharding, with their positions");
  }
  return pieces;
}

std::string Sharding::to_string() const {
  std::string text = fmt::format("{} on {}", spec().to_string(), mesh().to_string());
  if (policy().kind() != UnevenPolicy::Kind::ceil)
    text += fmt::format(" ({})", policy().to_string());
  return text;
}

std::ostream& operator<<(std::ostream& out, const Sharding& sharding) {
  return out << sharding.to_string();
}

bool Sharding::operator==(const Sharding& other) const {
  return data_ == other.data_ || detail::same_boxes(*this, other, data_->cuts, other.data_->cuts);
}

}  // namespace shardwise

std::size_t std::hash<shardwise::Sharding>::operator()(
    const shardwise::Sharding& sharding) const noexcept {
  return shardwise::detail::hash_of_boxes(sharding);
}
