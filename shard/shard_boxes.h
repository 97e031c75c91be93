#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// The box at every mesh position, in position order. Each step computes only the dims that change,
/// by additions: a few ns per device. Computing each box by itself costs a division per dim.
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

    iterator& operator++() {
      ++position_;
      if (--steps_left_ == 0) {
        carry();
      } else if (stepped_dim_ < box_.rank()) {
        // The next block begins where this one ends.
        const std::int64_t begin = box_.end(stepped_dim_), rest = stepped_extent_ - begin;
        box_.set(stepped_dim_, begin, begin + (stepped_block_ < rest ? stepped_block_ : rest));
      }
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return position_ == boxes_->size_; }

   private:
    friend class ShardBoxes;
    explicit iterator(const ShardBoxes& boxes);
    void carry();
    void begin_steps();

    const ShardBoxes* boxes_;
    std::int64_t position_ = 0;
    Box box_;
    Index tile_;                         // per dim
    std::vector<std::int64_t> counter_;  // per wheel

    // The number of steps until the first wheel carries, and the dim that each step moves to its
    // next block; the rank if the wheel counts replicas.
    std::int64_t steps_left_ = 0;
    std::size_t stepped_dim_ = 0;
    std::int64_t stepped_block_ = 0, stepped_extent_ = 0;
  };

  /// Valid as long as this range.
  iterator begin() const { return iterator(*this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  /// A counter over a digit of the position; together the wheels count all positions, the first
  /// fastest.
  struct Wheel {
    std::int64_t stride, size;
    std::int64_t weight;  // of the tile number of `dim`
    std::size_t dim;      // the rank if it counts replicas
  };

  TileRange range_of(std::size_t dim, std::int64_t tile) const;

  Sharding sharding_;
  Shape shape_;
  std::int64_t size_;
  Dims block_;  // per dim, if tiles are blocks of one size; else -1
  std::vector<Wheel> wheels_;
};

}  // namespace shardwise
