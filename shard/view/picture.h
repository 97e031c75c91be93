#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "shardwise/shard/error.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

struct PictureOptions {
  /// Most tiles drawn, over all planes; a note counts the others.
  std::int64_t max_tiles = 256;
};

/// Draws a sharded tensor of any rank: its tiles, the devices that hold each, and the padding to
/// full blocks. The last dim runs to the right and the one before it down, with a plane for each
/// combination of tiles of the other dims; a label above each plane gives the plane's part of
/// these. Each tile has a slot as large as the largest tile, its padded size; the rest of the slot
/// is hatched, and so is all of an empty tile's. On an abstract mesh, positions stand for devices.
/// Throws as Sharding::shard_shape().
///
/// The result is SVG: one XML document in UTF-8 that refers to nothing outside, with colours for
/// light and dark mode.
std::string svg_picture(const Sharding& sharding, const Shape& shape, PictureOptions options = {});

struct TextPictureOptions {
  /// As in PictureOptions.
  std::int64_t max_tiles = 256;

  /// Columns of a line. A wider picture is drawn in several bands of at least one tile.
  std::size_t width = 100;

  /// Colour each tile by ANSI escape sequences.
  bool color = false;
};

/// The same picture as lines of UTF-8 text.
std::string text_picture(const Sharding& sharding, const Shape& shape,
                         TextPictureOptions options = {});

}  // namespace shardwise
