#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "shardwise/shard/sharding.h"

namespace shardwise::detail {

/// The number of tiles, and the number of those drawn, which are the first ones.
struct Shown {
  std::int64_t all = 1, drawn = 1;
};

/// The content of a picture: a tensor's tiles on planes of rows and columns. A scalar is one tile,
/// a tensor of rank 1 one row.
///
/// Immutable, thread-safe.
class PicturePlanes {
 public:
  /// Throws as Sharding::shard_shape(). At least one tile is drawn.
  PicturePlanes(const Sharding& sharding, const Shape& shape, std::int64_t max_tiles);

  const Shown& planes() const { return planes_; }
  const Shown& rows() const { return rows_; }
  const Shown& columns() const { return columns_; }
  std::int64_t tiles_not_drawn() const;

  struct Tile {
    Index number;  ///< along each dim
    Box box;
    double down, across;  ///< how much of its slot it fills, 0 to 1
  };
  Tile tile(std::int64_t plane, std::int64_t row, std::int64_t column) const;

  /// "0,4 +6": as many devices as the width allows, and the number of further ones that hold the
  /// tile.
  std::string devices(const Tile& tile, std::size_t width) const;

  /// "0:3", "10:10"; "" if the tensor has no such dim.
  std::string row_label(std::int64_t row) const;
  std::string column_label(std::int64_t column) const;

  /// "[0:2, 3:6, :, :]"; "" if there is only one plane.
  std::string plane_label(std::int64_t plane) const;

  /// Describes the picture in one line of at most `width` characters.
  std::string title(std::size_t width) const;

  /// "and 12 more tiles: .."; "" if all are drawn.
  std::string rest() const;

 private:
  Index number_of(std::int64_t plane, std::int64_t row, std::int64_t column) const;
  std::string range_label(std::size_t dim, std::int64_t tile) const;

  Sharding sharding_;
  Shape shape_, block_;
  Shown planes_, rows_, columns_;
};

}  // namespace shardwise::detail
