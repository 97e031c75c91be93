#include "shardwise/shard/view/detail/picture_planes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace shardwise::detail {
namespace {

/// Cuts the text off at `width`, between characters.
std::string shortened(std::string text, std::size_t width) {
  if (text.size() <= width) return text;
  std::size_t end = width - std::min<std::size_t>(width, 2);
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "..";
}

double filled(std::int64_t extent, std::int64_t block) {
  return block == 0 ? 0 : static_cast<double>(extent) / static_cast<double>(block);
}

}  // namespace

PicturePlanes::PicturePlanes(const Sharding& sharding, const Shape& shape, std::int64_t max_tiles)
    : sharding_(sharding), shape_(shape), block_(sharding.shard_shape(shape)) {
  const std::size_t rank = shape.size();
  if (rank > 0) columns_.all = sharding.tiles(rank - 1);
  if (rank > 1) rows_.all = sharding.tiles(rank - 2);
  for (std::size_t dim = 0; dim + 2 < rank; ++dim) planes_.all *= sharding.tiles(dim);
  max_tiles = std::max<std::int64_t>(max_tiles, 1);
  const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(max_tiles)));
  columns_.drawn = std::min(columns_.all, std::max(side, max_tiles / rows_.all));
  rows_.drawn = std::min(rows_.all, max_tiles / columns_.drawn);
  planes_.drawn = std::min(planes_.all, max_tiles / (rows_.drawn * columns_.drawn));
}

std::int64_t PicturePlanes::tiles_not_drawn() const {
  return planes_.all * rows_.all * columns_.all - planes_.drawn * rows_.drawn * columns_.drawn;
}

Index PicturePlanes::number_of(std::int64_t plane, std::int64_t row, std::int64_t column) const {
  const std::size_t rank = shape_.size();
  Index number = Index::filled(rank, 0);
  if (rank > 0) number[rank - 1] = column;
  if (rank > 1) number[rank - 2] = row;
  for (std::size_t dim = rank; dim-- > 0;) {
    if (dim + 2 >= rank) continue;
    number[dim] = plane % sharding_.tiles(dim);
    plane /= sharding_.tiles(dim);
  }
  return number;
}

PicturePlanes::Tile PicturePlanes::tile(std::int64_t plane, std::int64_t row,
                                        std::int64_t column) const {
  const std::size_t rank = shape_.size();
  Tile tile{number_of(plane, row, column), Box::whole(shape_), 1, 1};
  bool leading_empty = false;
  for (std::size_t dim = 0; dim < rank; ++dim) {
    const TileRange range = sharding_.tile_range(dim, tile.number[dim], shape_[dim]);
    tile.box.set(dim, range.begin, range.end);
    const double share = filled(range.end - range.begin, block_[dim]);
    if (dim + 1 == rank) {
      tile.across = share;
    } else if (dim + 2 == rank) {
      tile.down = share;
    } else {
      leading_empty |= share == 0;
    }
  }
  if (leading_empty) tile.down = tile.across = 0;
  return tile;
}

std::string PicturePlanes::devices(const Tile& tile, std::size_t width) const {
  const Mesh& mesh = sharding_.mesh();
  const std::int64_t all = sharding_.num_replicas();
  std::string text;
  for (std::int64_t replica = 0; replica < all; ++replica) {
    const std::int64_t position = sharding_.position_of(tile.number, replica);
    std::string next = text.empty() ? "" : text + ",";
    next += std::to_string(mesh.is_abstract() ? position : mesh.device_at(position));
    // The first device is always named. The width must also hold the count of the devices left out.
    const std::string count = replica + 1 < all ? fmt::format(" +{}", all - replica - 1) : "";
    const std::string count_now = fmt::format(" +{}", all - replica);
    if (replica > 0 && next.size() + count.size() > width) return text + count_now;
    text = std::move(next);
  }
  return text;
}

std::string PicturePlanes::range_label(std::size_t dim, std::int64_t tile) const {
  const TileRange range = sharding_.tile_range(dim, tile, shape_[dim]);
  return fmt::format("{}:{}", range.begin, range.end);
}

std::string PicturePlanes::row_label(std::int64_t row) const {
  return shape_.size() < 2 ? "" : range_label(shape_.size() - 2, row);
}

std::string PicturePlanes::column_label(std::int64_t column) const {
  return shape_.empty() ? "" : range_label(shape_.size() - 1, column);
}

std::string PicturePlanes::plane_label(std::int64_t plane) const {
  if (shape_.size() < 3) return "";
  const Index number = number_of(plane, 0, 0);
  std::vector<std::string> ranges;
  for (std::size_t dim = 0; dim + 2 < shape_.size(); ++dim) {
    ranges.push_back(range_label(dim, number[dim]));
  }
  return fmt::format("[{}, :, :]", fmt::join(ranges, ", "));
}

std::string PicturePlanes::title(std::size_t width) const {
  const std::int64_t copies = sharding_.num_replicas();
  const std::string held = fmt::format("{} {}", copies, copies == 1 ? "copy" : "copies");
  if (shape_.empty()) return fmt::format("scalar: {}", held);
  std::vector<std::int64_t> tiles;
  for (std::size_t dim = 0; dim < shape_.size(); ++dim) tiles.push_back(sharding_.tiles(dim));
  return shortened(
      fmt::format("{}: {} tiles of {}, {} of each; {}", to_string(shape_), fmt::join(tiles, " x "),
                  to_string(block_), held, sharding_.to_string()),
      width);
}

std::string PicturePlanes::rest() const {
  if (tiles_not_drawn() == 0) return "";
  std::vector<std::string> parts;
  const auto add = [&parts](const Shown& shown, const char* what) {
    if (shown.drawn < shown.all) {
      parts.push_back(fmt::format("{} of {} {}", shown.drawn, shown.all, what));
    }
  };
  add(planes_, "planes");
  add(rows_, "rows");
  add(columns_, "columns");
  return fmt::format("and {} more tiles: drawn are the first {}", tiles_not_drawn(),
                     fmt::join(parts, ", "));
}

}  // namespace shardwise::detail
