#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "shardwise/shard/sharding.h"

namespace shardwise {

struct PictureOptions {
  /// Tiles that are drawn at most, over all planes; a note says how many are not.
  std::int64_t max_tiles = 256;
};

/// A sharded tensor of any rank: its tiles, the devices that hold each, and what is missing to full
/// blocks. The last dim runs to the right and the one before it down, with a plane for each
/// combination of tiles of the others. Each tile fills a slot as large as the largest tile, which
/// is what it would be padded to; the rest of the slot is hatched, and so is all of an empty
/// tile's; what a plane covers of the dims before stands above it. On an abstract mesh, positions
/// stand for devices. Throws as Sharding::shard_shape().
///
/// This one is SVG: one XML document in UTF-8 that refers to nothing outside, with colours for
/// light and for dark.
std::string svg_picture(const Sharding& sharding, const Shape& shape, PictureOptions options = {});

struct TextPictureOptions {
  /// As of PictureOptions.
  std::int64_t max_tiles = 256;

  /// Columns of a line. What is wider is drawn in several bands; one tile is drawn at least.
  std::size_t width = 100;

  /// Colours each tile by ANSI escape sequences.
  bool color = false;
};

/// The same as lines of UTF-8 text.
std::string text_picture(const Sharding& sharding, const Shape& shape,
                         TextPictureOptions options = {});

}  // namespace shardwise
