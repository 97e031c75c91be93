#include "shardwise/shard/owned_tiles.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/shard/detail/list_size.h"
#include "shardwise/shard/error.h"

namespace shardwise {

OwnedTiles::OwnedTiles(const Sharding& sharding, const Shape& shape)
    : OwnedTiles(sharding, shape, Box::whole(shape)) {}

OwnedTiles::OwnedTiles(const Sharding& sharding, const Shape& shape, const Box& region)
    : sharding_(sharding), shape_(shape), region_(region) {
  sharding.shard_shape(shape);  // checks the shape
  const Box whole = Box::whole(shape);
  if (region.rank() != whole.rank() || !whole.contains(region)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tiles that hold region {}: it is not inside the shape {}",
                            to_string(region), to_string(shape)));
  }
}

OwnedTiles OwnedTiles::of_rows(const Sharding& sharding, const Shape& shape, std::int64_t begin,
                               std::int64_t end) {
  sharding.shard_shape(shape);
  if (shape.empty() || begin < 0 || end < begin || end > shape[0]) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tiles that hold rows [{}:{}]: the shape {} has no such rows", begin,
                            end, to_string(shape)));
  }
  Box rows = Box::whole(shape);
  rows.set(0, begin, end);
  return OwnedTiles(sharding, shape, rows);
}

OwnedTiles::iterator::iterator(const OwnedTiles& tiles)
    : tiles_(&tiles),
      at_{tiles.shape_, tiles.region_, tiles.region_},
      done_(tiles.region_.empty()) {
  if (done_) return;
  for (std::size_t dim = 0; dim < tiles.shape_.size(); ++dim) {
    move_to(dim, tiles.region_.begin(dim));
  }
}

void OwnedTiles::iterator::move_to(std::size_t dim, std::int64_t element) {
  const Sharding& sharding = tiles_->sharding_;
  const Box& region = tiles_->region_;
  const std::int64_t extent = tiles_->shape_[dim];
  at_.tile[dim] = sharding.tile_of(dim, element, extent);
  const TileRange range = sharding.tile_range(dim, at_.tile[dim], extent);
  at_.box.set(dim, range.begin, range.end);
  at_.part.set(dim, std::max(range.begin, region.begin(dim)), std::min(range.end, region.end(dim)));
}

OwnedTiles::iterator& OwnedTiles::iterator::operator++() {
  const Box& region = tiles_->region_;
  for (std::size_t dim = region.rank(); dim-- > 0;) {
    // Moves to the tile of the next element, skipping empty tiles.
    if (at_.box.end(dim) < region.end(dim)) {
      move_to(dim, at_.box.end(dim));
      return *this;
    }
    move_to(dim, region.begin(dim));
  }
  done_ = true;
  return *this;
}

std::vector<std::int64_t> positions_of(const Sharding& sharding, const Index& tile) {
  std::vector<std::int64_t> positions;
  positions.reserve(detail::list_size(sharding.num_replicas(), "the positions that hold a tile"));
  for (std::int64_t replica = 0; replica < sharding.num_replicas(); ++replica) {
    positions.push_back(sharding.position_of(tile, replica));
  }
  return positions;
}

}  // namespace shardwise
