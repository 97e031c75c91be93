#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// A tile that overlaps a region. Sharding::position_of(tile, r) is the position of its replica r.
struct OwnedTile {
  Index tile;  ///< its number along each dim
  Box box;     ///< the box that it covers
  Box part;    ///< the part of it inside the region; never empty
};

/// The tiles of a sharded tensor that overlap a region: a range in row-major order of tiles, each
/// found on demand. Takes memory for one tile only, and no time for tiles that do not overlap the
/// region or are empty.
///
/// A range of `const OwnedTile&`; a reference is valid until the iterator moves. Iterators of one
/// range are independent of each other.
///
/// Immutable, thread-safe; its iterators are thread-compatible.
///
///   for (const OwnedTile& owned : OwnedTiles(sharding, shape, region)) ...
class OwnedTiles {
 public:
  /// All of the tensor: its distinct pieces. Throws as Sharding::shard_shape().
  OwnedTiles(const Sharding& sharding, const Shape& shape);

  /// Throws as above; invalid_argument if the region's rank is not the shape's, or it is not inside
  /// the tensor.
  OwnedTiles(const Sharding& sharding, const Shape& shape, const Box& region);

  /// Rows [begin, end), all of each. Throws as above, also for a scalar, which has no rows.
  static OwnedTiles of_rows(const Sharding& sharding, const Shape& shape, std::int64_t begin,
                            std::int64_t end);

  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = OwnedTile;
    using difference_type = std::ptrdiff_t;
    using pointer = const OwnedTile*;
    using reference = const OwnedTile&;

    const OwnedTile& operator*() const { return at_; }
    const OwnedTile* operator->() const { return &at_; }
    iterator& operator++();
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return done_; }

   private:
    friend class OwnedTiles;
    explicit iterator(const OwnedTiles& tiles);
    void move_to(std::size_t dim, std::int64_t element);

    const OwnedTiles* tiles_;
    OwnedTile at_;
    bool done_;
  };

  /// Valid as long as this range.
  iterator begin() const { return iterator(*this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  Sharding sharding_;
  Shape shape_;
  Box region_;
};

/// The mesh positions that hold a tile, ascending. Requires one tile number per dim, in range.
std::vector<std::int64_t> positions_of(const Sharding& sharding, const Index& tile);

}  // namespace shardwise
