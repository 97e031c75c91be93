#include "shardwise/loader/detail/engine/batch_array.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::detail {

BatchArray::BatchArray(const Options& options, const Sharding& sharding, const IsHere& is_here)
    : dtype_(options.dtype), shape_(options.shape), halo_(options.halo), sharding_(sharding) {
  const std::size_t element_bytes = size_bytes(dtype_);
  num_bytes(shape_, element_bytes);  // throws if the size of the whole batch overflows
  for (std::size_t dim = 1; dim < shape_.size(); ++dim) {
    record_.push_back(0, std::min(shape_[dim], options.available[dim - 1]));
  }
  tile_ = Shape::filled(shape_.size() - 1, 0);
  if (!halo_.empty()) widen(options);
  num_bytes(shape_, element_bytes);
  const Mesh& mesh = sharding_.mesh();
  bytes_at_.reserve(static_cast<std::size_t>(mesh.size()));
  is_here_.reserve(bytes_at_.capacity());
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    const Shape shape = sharding_.box_at(position, shape_).shape();
    is_here_.push_back(is_here(position));
    bytes_at_.push_back(is_here_.back() ? num_bytes(shape, element_bytes) : 0);
  }
  std::map<std::int64_t, std::int64_t> elements;  // of one record, per first row
  for (DistinctPiece& distinct : sharding_.distinct_pieces(shape_)) {
    std::erase_if(distinct.positions, [&](std::int64_t position) { return !is_here(position); });
    if (distinct.positions.empty()) continue;
    pieces_.push_back(make_piece(distinct));
    elements[pieces_.back().begin_row] += pieces_.back().valid.num_elements();
  }
  covers_records_ = halo_.empty() && std::ranges::all_of(elements, [&](const auto& of_rows) {
                      return of_rows.second == record_.num_elements();
                    });
}

void BatchArray::widen(const Options& options) {
  if (halo_.size() != shape_.size() - 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("got {} halos, needed is one for each of the {} dims of a record",
                            halo_.size(), shape_.size() - 1));
  }
  for (std::size_t i = 0; i < halo_.size(); ++i) {
    const auto [low, high] = halo_[i];
    if (low < 0 || high < 0) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("the halo of record dim {} is {} and {}, needed is 0 or more", i, low, high));
    }
    if (low == 0 && high == 0) continue;
    const std::int64_t extent = options.shape[i + 1], tiles = sharding_.tiles(i + 1);
    std::int64_t wide = 0;
    if (__builtin_add_overflow(extent / tiles, low, &tile_[i]) ||
        __builtin_add_overflow(tile_[i], high, &tile_[i]) ||
        __builtin_mul_overflow(tile_[i], tiles, &wide)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the halo of record dim {} is {} and {}, too wide", i, low, high));
    }
    shape_[i + 1] = wide;
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const TileRange narrow = sharding_.tile_range(i + 1, tile, extent);
      const TileRange widened = sharding_.tile_range(i + 1, tile, wide);
      if (narrow.begin == tile * (extent / tiles) && widened.begin == tile * tile_[i] &&
          extent % tiles == 0 && widened.end - widened.begin == tile_[i]) {
        continue;
      }
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("record dim {} of extent {} has a halo and is cut into {} tiles, "
                              "needed are even tiles",
                              i, extent, tiles));
    }
  }
}

// What a box of the delivered array holds of a record: its halos are taken off, and the box is
// widened at its place in the record.
Box BatchArray::block_of(const Box& box) const {
  Box block;
  for (std::size_t i = 0; i + 1 < box.rank(); ++i) {
    std::int64_t begin = box.begin(i + 1), end = box.end(i + 1);
    if (tile_[i] > 0) {
      const auto [low, high] = halo_[i];
      const std::int64_t tile = begin / tile_[i];
      begin = tile * (tile_[i] - low - high) - low;
      end = begin + tile_[i];
    }
    block.push_back(begin, end);
  }
  return block;
}

BatchArray::Piece BatchArray::make_piece(const DistinctPiece& distinct) const {
  const std::size_t element_bytes = size_bytes(dtype_);
  const Box block = block_of(distinct.box);
  Box valid;
  for (std::size_t i = 0; i < block.rank(); ++i) {
    const std::int64_t begin = std::min(std::max<std::int64_t>(block.begin(i), 0), record_.end(i));
    valid.push_back(begin, std::max(begin, std::min(block.end(i), record_.end(i))));
  }
  const std::size_t row_bytes = num_bytes(block.shape(), element_bytes);
  Piece piece{distinct.box.begin(0), distinct.box.end(0), block, valid, row_bytes, true, 0,
              distinct.positions};
  if (valid.empty()) return piece;
  const RunWalk walk = walk_runs(valid, block, valid);
  piece.is_direct = walk.run_elements == valid.num_elements();
  if (!piece.is_direct) return piece;
  piece.direct_begin = static_cast<std::size_t>(walk.a_offset) * element_bytes;
  return piece;
}

std::size_t BatchArray::bytes() const {
  std::size_t sum = 0;
  for (const std::size_t bytes : bytes_at_) sum += bytes;
  return sum;
}

void BatchArray::copy_to_replicas(std::span<const Slab> slabs, std::int64_t begin_row,
                                  std::int64_t end_row) const {
  for (const Piece& piece : pieces_) {
    const std::int64_t begin = std::max(begin_row, piece.begin_row);
    const std::int64_t end = std::min(end_row, piece.end_row);
    if (begin >= end) continue;
    const std::size_t offset = static_cast<std::size_t>(begin - piece.begin_row) * piece.row_bytes;
    const std::size_t size = static_cast<std::size_t>(end - begin) * piece.row_bytes;
    const auto data = [&](std::size_t replica) {
      return slabs[static_cast<std::size_t>(piece.positions[replica])].data + offset;
    };
    for (std::size_t replica = 1; replica < piece.positions.size(); ++replica) {
      std::memcpy(data(replica), data(0), size);
    }
  }
}

BatchArray::Part BatchArray::part(std::int64_t position) const {
  const Box box = sharding_.box_at(position, shape_);
  const Box block = block_of(box);
  Part part{box, {}, {}};
  part.batch.push_back(box.begin(0), box.end(0));
  part.at.push_back(0);
  for (std::size_t i = 0; i < block.rank(); ++i) {
    const std::int64_t begin = std::min(std::max<std::int64_t>(block.begin(i), 0), record_.end(i));
    part.batch.push_back(begin, std::max(begin, std::min(block.end(i), record_.end(i))));
    part.at.push_back(begin - block.begin(i));
  }
  return part;
}

}  // namespace shardwise::detail
