#include "shardwise/shard/transfer_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/shard/detail/box_index.h"
#include "shardwise/shard/detail/cover.h"
#include "shardwise/shard/detail/replicas.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

std::vector<Piece> pieces_of(const Sharding& sharding, const Shape& shape) {
  std::vector<Piece> pieces;
  const std::int64_t devices = sharding.mesh().size();
  pieces.reserve(static_cast<std::size_t>(devices));
  for (std::int64_t position = 0; position < devices; ++position) {
    pieces.push_back({sharding.mesh().device_at(position), sharding.box_at(position, shape)});
  }
  return pieces;
}

/// The distinct pieces of a sharding as a grid, in row-major order: which of them overlap a box
/// follows from where the tiles of each dim begin. Empty tiles, which may be anywhere in the order
/// of tiles, are left out.
class TileGrid {
 public:
  TileGrid(const Sharding& sharding, const Shape& shape) : begins_(shape.size()) {
    Dims counts = shape;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      for (std::int64_t tile = 0; tile < sharding.tiles(dim); ++tile) {
        const TileRange range = sharding.tile_range(dim, tile, shape[dim]);
        if (range.begin < range.end) begins_[dim].push_back(range.begin);
      }
      counts[dim] = static_cast<std::int64_t>(begins_[dim].size());
    }
    strides_ = row_major_strides(counts);
  }

  /// Requires that `box` is not empty.
  void overlapping(const Box& box, std::vector<std::int64_t>& numbers) const {
    numbers.clear();
    const std::size_t rank = begins_.size();
    Dims first = strides_, last = strides_;
    for (std::size_t dim = 0; dim < rank; ++dim) {
      first[dim] = tile_of(dim, box.begin(dim));
      last[dim] = tile_of(dim, box.end(dim) - 1);
    }
    Dims tile = first;
    for (;;) {
      std::int64_t number = 0;
      for (std::size_t dim = 0; dim < rank; ++dim) number += tile[dim] * strides_[dim];
      numbers.push_back(number);
      std::size_t dim = rank;
      while (dim > 0 && tile[dim - 1] == last[dim - 1]) {
        --dim;
        tile[dim] = first[dim];
      }
      if (dim == 0) return;
      ++tile[dim - 1];
    }
  }

 private:
  std::int64_t tile_of(std::size_t dim, std::int64_t element) const {
    const std::vector<std::int64_t>& begins = begins_[dim];
    return std::upper_bound(begins.begin(), begins.end(), element) - begins.begin() - 1;
  }

  std::vector<std::vector<std::int64_t>> begins_;  // per dim, of the tiles that are not empty
  Dims strides_;                                   // of a tile's number
};

void check_ranks(std::span<const Piece> sources, std::span<const Piece> targets) {
  const Piece* first = nullptr;
  for (const std::span<const Piece> pieces : {sources, targets}) {
    for (const Piece& piece : pieces) {
      if (first == nullptr) first = &piece;
      if (piece.box.rank() == first->box.rank()) continue;
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("TransferPlan: the ranks of {} at place {} and {} at place {} differ",
                      to_string(first->box), first->place, to_string(piece.box), piece.place));
    }
  }
}

DeviceId place_of(std::span<const Piece> pieces, std::int64_t number) {
  return pieces[static_cast<std::size_t>(number)].place;
}

}  // namespace

std::string_view name(TransferClass c) {
  switch (c) {
    case TransferClass::nothing:
      return "nothing";
    case TransferClass::slice:
      return "slice";
    case TransferClass::permute:
      return "permute";
    case TransferClass::all_gather:
      return "all_gather";
    case TransferClass::all_to_all:
      return "all_to_all";
    case TransferClass::all_reduce:
      return "all_reduce";
    case TransferClass::reduce_scatter:
      return "reduce_scatter";
    case TransferClass::general:
      return "general";
  }
  return "unknown";
}

TransferPlan TransferPlan::reshard(const Sharding& from, const Sharding& to, const Shape& shape) {
  TransferPlan plan;
  plan.sources_ = pieces_of(from, shape);
  plan.targets_ = pieces_of(to, shape);
  plan.first_copy_.assign(plan.targets_.size() + 1, 0);
  if (num_elements(shape) == 0) return plan;

  std::vector<detail::Replicas> groups;
  for (DistinctPiece& piece : from.distinct_pieces(shape)) {
    groups.push_back({piece.box, std::move(piece.positions)});
  }
  const TileGrid grid(from, shape);
  detail::ReplicaChooser chooser(plan.sources_, plan.targets_, std::move(groups));
  std::vector<std::int64_t> hits;
  for (std::size_t target = 0; target < plan.targets_.size(); ++target) {
    const Box& box = plan.targets_[target].box;
    if (!box.empty()) {
      grid.overlapping(box, hits);
      chooser.choose_tiled(static_cast<std::int64_t>(target), hits, plan.copies_);
    }
    plan.first_copy_[target + 1] = plan.copies_.size();
  }
  return plan;
}

TransferPlan::TransferPlan(std::vector<Piece> sources, std::vector<Piece> targets,
                           Reduction reduction)
    : sources_(std::move(sources)), targets_(std::move(targets)), reduction_(reduction) {
  check_ranks(sources_, targets_);
  std::vector<detail::Replicas> groups = detail::group_replicas(sources_);
  std::vector<Box> boxes;
  boxes.reserve(groups.size());
  for (const detail::Replicas& group : groups) boxes.push_back(group.box);
  const detail::BoxIndex index(boxes);
  detail::ReplicaChooser chooser(sources_, targets_, std::move(groups));
  first_copy_.assign(targets_.size() + 1, 0);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (!targets_[i].box.empty()) {
      const std::int64_t target = static_cast<std::int64_t>(i);
      const std::vector<std::int64_t> hits = index.overlapping(targets_[i].box);
      if (reduction_ == Reduction::none) {
        chooser.choose(target, hits, copies_);
      } else {
        chooser.take_all(target, hits, copies_);
      }
    }
    first_copy_[i + 1] = copies_.size();
  }
}

std::span<const Copy> TransferPlan::copies_to(std::int64_t target) const {
  const std::size_t i = static_cast<std::size_t>(target);
  return copies().subspan(first_copy_[i], first_copy_[i + 1] - first_copy_[i]);
}

std::int64_t TransferPlan::moved_elements() const {
  std::int64_t moved = 0;
  for (const Copy& copy : copies_) {
    if (place_of(sources_, copy.source) != place_of(targets_, copy.target)) {
      moved += copy.box.num_elements();
    }
  }
  return moved;
}

TransferClass TransferPlan::classify() const {
  const bool reduced = reduction_ != Reduction::none;
  bool in_place = true;       // each target is filled by one source, in the same place
  bool one_to_one = true;     // each target is filled by one source, and no source is used twice
  bool many_to_one = true;    // each target is filled by several sources
  bool own_box = true;        // a source with the target's box lies in the same place
  bool whole_sources = true;  // each copy is all of its source
  bool whole_targets = true;  // each copy is all of its target
  std::vector<bool> used(sources_.size(), false);
  for (std::size_t target = 0; target < targets_.size(); ++target) {
    const std::span<const Copy> copies = copies_to(static_cast<std::int64_t>(target));
    if (copies.empty()) continue;
    bool has_own_box = false;
    for (const Copy& copy : copies) {
      const Piece& source = sources_[static_cast<std::size_t>(copy.source)];
      const bool local = source.place == targets_[target].place;
      has_own_box |= local && source.box == targets_[target].box;
      in_place &= local;
      whole_sources &= copy.box == source.box;
      whole_targets &= copy.box == targets_[target].box;
      one_to_one &= !used[static_cast<std::size_t>(copy.source)];
      used[static_cast<std::size_t>(copy.source)] = true;
    }
    const bool single = copies.front().source == copies.back().source;
    in_place &= single;
    one_to_one &= single;
    many_to_one &= !single;
    own_box &= has_own_box;
  }
  if (in_place) return own_box ? TransferClass::nothing : TransferClass::slice;
  if (reduced) {
    if (!whole_targets) return TransferClass::general;
    return own_box ? TransferClass::all_reduce : TransferClass::reduce_scatter;
  }
  if (whole_sources) return one_to_one ? TransferClass::permute : TransferClass::all_gather;
  return many_to_one ? TransferClass::all_to_all : TransferClass::general;
}

void check_cover(std::span<const Box> boxes, const Shape& shape) {
  const Box whole = Box::whole(shape);
  num_elements(shape);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (boxes[i].rank() != whole.rank() || !whole.contains(boxes[i])) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("check_cover: box {}, {}, is not inside the shape {}", i,
                              to_string(boxes[i]), to_string(shape)));
    }
  }
  const auto miscount = detail::find_miscount(boxes, whole);
  if (!miscount) return;
  const std::string element = fmt::format("check_cover: element {} of shape {}",
                                          to_string(miscount->element), to_string(shape));
  if (miscount->times == 0) {
    throw Error(ErrorCode::invalid_argument, element + " is in no box; needed is one");
  }
  Index next = miscount->element;
  for (std::int64_t& i : next) ++i;
  const Box one(miscount->element, next);
  constexpr int kMostListed = 4;
  std::string holders;
  int listed = 0;
  for (std::size_t i = 0; i < boxes.size() && listed < kMostListed; ++i) {
    if (!boxes[i].contains(one)) continue;
    holders += fmt::format("{} {} {}", listed == 0 ? ":" : " and", i, to_string(boxes[i]));
    ++listed;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is in {} boxes{}; needed is one", element, miscount->times, holders));
}

}  // namespace shardwise
