#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/packed_boxes.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// A box of a tensor and the place where it is or is wanted. `place` is a DeviceId in memory plans;
/// a plan between files and devices uses it for file numbers, too.
struct Piece {
  DeviceId place;
  Box box;

  bool operator==(const Piece&) const = default;
};

/// Pieces of one rank, packed.
///
/// Immutable, thread-safe.
class PieceList {
 public:
  PieceList() = default;

  /// Requires equal ranks.
  PieceList(std::span<const Piece> pieces, std::size_t rank);

  /// The box at each mesh position, in position order; the place of a position of an abstract mesh
  /// is its number. Throws invalid_argument as Sharding::box_at().
  PieceList(const Sharding& sharding, const Shape& shape);

  std::size_t size() const { return places_.size(); }
  bool empty() const { return places_.empty(); }

  /// Requires i < size().
  Piece operator[](std::size_t i) const { return {places_[i], boxes_[i]}; }
  DeviceId place(std::size_t i) const { return places_[i]; }
  Box box(std::size_t i) const { return boxes_[i]; }
  std::span<const DeviceId> places() const { return places_; }
  const PackedBoxes& boxes() const { return boxes_; }

  class iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Piece;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = Piece;

    iterator() = default;
    Piece operator*() const { return (*list_)[index_]; }
    iterator& operator++() {
      ++index_;
      return *this;
    }
    iterator operator++(int) {
      iterator before = *this;
      ++index_;
      return before;
    }
    bool operator==(const iterator& other) const { return index_ == other.index_; }

   private:
    friend class PieceList;
    iterator(const PieceList* list, std::size_t index) : list_(list), index_(index) {}

    const PieceList* list_ = nullptr;
    std::size_t index_ = 0;
  };
  using value_type = Piece;
  using const_iterator = iterator;

  iterator begin() const { return iterator(this, 0); }
  iterator end() const { return iterator(this, size()); }

 private:
  std::vector<DeviceId> places_;
  PackedBoxes boxes_;
};

}  // namespace shardwise
