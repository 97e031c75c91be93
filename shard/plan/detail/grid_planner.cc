#include "shardwise/shard/plan/detail/grid_planner.h"

#include <algorithm>
#include <utility>

namespace shardwise::detail {
GridPlanner::GridPlanner(const Sharding& from, const PieceList& sources, const Sharding& to,
                         const PieceList& targets, const Shape& shape, const Topology& topology)
    : from_(from),
      to_(to),
      sources_(sources),
      targets_(targets),
      topology_(topology),
      at_(shape.size()) {
  if (num_elements(shape) == 0) return;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) add_dim(dim, shape[dim]);
  std::int64_t stride = 1;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    dims_[dim].stride = stride;
    stride *= static_cast<std::int64_t>(dims_[dim].tiles.size());
  }
  if (from_.num_replicas() > 1) make_chooser();
}

void GridPlanner::add_dim(std::size_t dim, std::int64_t extent) {
  Dim& cut = dims_.emplace_back();
  Index tile = Index::filled(from_.rank(), 0);
  for (; tile[dim] < from_.tiles(dim); ++tile[dim]) {
    const TileRange range = from_.tile_range(dim, tile[dim], extent);
    if (range.begin == range.end) continue;
    cut.tiles.push_back({range.begin, range.end, from_.position_of(tile, 0)});
  }
  std::vector<Reach>& reaches = reaches_.emplace_back();
  const auto number_of = [](auto tile_at, const auto& tiles) {
    return as_size(tile_at - tiles.begin());
  };
  for (std::int64_t number = 0; number < to_.tiles(dim); ++number) {
    const TileRange range = to_.tile_range(dim, number, extent);
    const auto first = std::partition_point(cut.tiles.begin(), cut.tiles.end(),
                                            [&](const Tile& t) { return t.end <= range.begin; });
    const auto last = std::partition_point(first, cut.tiles.end(),
                                           [&](const Tile& t) { return t.begin < range.end; });
    reaches.push_back(
        {range.begin, range.end, number_of(first, cut.tiles), number_of(last, cut.tiles)});
  }
}

void GridPlanner::make_chooser() {
  Box all;
  for (const Dim& dim : dims_) all.push_back(0, static_cast<std::int64_t>(dim.tiles.size()));
  std::vector<std::int64_t> offsets;
  for (std::int64_t r = 0; r < from_.num_replicas(); ++r) {
    offsets.push_back(from_.position_of(Index::filled(from_.rank(), 0), r));
  }
  Replicas replicas{{0}, {}};
  for_each_index(all, [&](const Index& tile) {
    std::int64_t first = 0;
    for (std::size_t dim = 0; dim < tile.size(); ++dim) {
      first += dims_[dim].tiles[as_size(tile[dim])].offset;
    }
    for (const std::int64_t offset : offsets) {
      replicas.members.push_back(static_cast<std::uint32_t>(first + offset));
    }
    replicas.first.push_back(static_cast<std::uint32_t>(replicas.members.size()));
  });
  chooser_.emplace(std::move(replicas), sources_.places(), topology_);
}

void GridPlanner::plan(std::int64_t position, TargetCopies& copies) {
  copies.sources.clear();
  if (reaches_.size() != at_.size()) return;  // the tensor is empty
  for (std::size_t dim = 0; dim < at_.size(); ++dim) {
    at_[dim] = reaches_[dim][as_size(to_.tile_index(position, dim))];
    if (at_[dim].begin == at_[dim].end) return;
  }
  if (chooser_) {
    plan_with_replicas(targets_.place(as_size(position)), copies);
  } else {
    plan_without_replicas(copies);
  }
  if (!std::is_sorted(copies.sources.begin(), copies.sources.end())) {
    std::sort(copies.sources.begin(), copies.sources.end());
  }
}

void GridPlanner::plan_without_replicas(TargetCopies& copies) const {
  // One dim at a time: each position so far is combined with each tile of the next dim.
  copies.sources.push_back(0);
  for (std::size_t dim = 0; dim < at_.size(); ++dim) {
    const Tile* tiles = dims_[dim].tiles.data();
    const std::size_t before = copies.sources.size(), more = at_[dim].last - at_[dim].first;
    copies.sources.resize(before * more);
    for (std::size_t i = before; i-- > 0;) {
      const std::uint32_t position = copies.sources[i];
      for (std::size_t k = 0; k < more; ++k) {
        copies.sources[i * more + k] =
            position + static_cast<std::uint32_t>(tiles[at_[dim].first + k].offset);
      }
    }
  }
}

void GridPlanner::plan_with_replicas(DeviceId place, TargetCopies& copies) {
  const Topology::Site site = topology_.site(place);
  Box reached;
  for (const Reach& reach : at_) {
    reached.push_back(static_cast<std::int64_t>(reach.first),
                      static_cast<std::int64_t>(reach.last));
  }
  for_each_index(reached, [&](const Index& tile) {
    std::int64_t group = 0, elements = 1;
    for (std::size_t dim = 0; dim < tile.size(); ++dim) {
      const Tile& t = dims_[dim].tiles[as_size(tile[dim])];
      group += tile[dim] * dims_[dim].stride;
      elements *= std::min(t.end, at_[dim].end) - std::max(t.begin, at_[dim].begin);
    }
    const auto choice = chooser_->choose(as_size(group), place, site);
    chooser_->count_sent(as_size(group), choice, elements);
    copies.sources.push_back(choice.source);
  });
}

}  // namespace shardwise::detail
