#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "shardwise/shard/sharding.h"

namespace shardwise {

/// The box at every mesh position, in position order. From one to the next only the dims that
/// change are worked out, by additions: a few ns a device, where asking one by one divides per dim.
///
/// A range of `const Box&`; a reference is valid until the iterator moves. Iterators of one range
/// are independent of each other.
///
/// Immutable, thread-safe; its iterators are thread-compatible.
///
///   for (const Box& box : ShardBoxes(sharding, shape)) ...
class ShardBoxes {
 public:
  /// Throws as Sharding::box_at().
  ShardBoxes(const Sharding& sharding, const Shape& shape);

  class iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Box;
    using difference_type = std::ptrdiff_t;
    using pointer = const Box*;
    using reference = const Box&;

    const Box& operator*() const { return box_; }
    const Box* operator->() const { return &box_; }
    std::int64_t position() const { return position_; }

    iterator& operator++();
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return position_ == boxes_->size_; }

   private:
    friend class ShardBoxes;
    explicit iterator(const ShardBoxes& boxes);

    const ShardBoxes* boxes_;
    std::int64_t position_ = 0;
    Box box_;
    Index tile_;                         // per dim
    std::vector<std::int64_t> counter_;  // per digit
  };

  /// Valid as long as this range.
  iterator begin() const { return iterator(*this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  /// A digit of the position; together they spell it, the least significant first.
  struct Digit {
    std::int64_t stride, size;
    std::int64_t weight;  // of the tile number of `dim`
    std::size_t dim;      // the rank where the digit counts replicas
  };

  TileRange range_of(std::size_t dim, std::int64_t tile) const;

  Sharding sharding_;
  Shape shape_;
  std::int64_t size_;
  Dims block_;  // per dim, where tiles are blocks of one size; else -1
  std::vector<Digit> digits_;
};

}  // namespace shardwise
