#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/shard/detail/divider.h"
#include "shardwise/shard/uneven_policy.h"

namespace shardwise::detail {

/// A mesh axis, or a part of one, read as a digit of the position, and the digit's weight in a
/// number made of such digits.
struct Digit {
  Divider stride, size, weight;

  bool operator==(const Digit&) const = default;

  std::int64_t value_at(std::int64_t position) const {
    return size.remainder(stride.quotient(position));
  }
};

/// A number read from a position: a tile index along one dim, or a replica id. Major first.
struct Digits {
  Divider range;  // 0 <= at(position) < range.divisor()
  std::vector<Digit> list;

  /// Adds a less significant digit. `fused`: if it continues the last one, the two are merged.
  void append(std::int64_t stride, std::int64_t size, bool fused);

  std::int64_t at(std::int64_t position) const {
    std::int64_t number = 0;
    for (const Digit& digit : list) number += digit.value_at(position) * digit.weight.divisor();
    return number;
  }

  /// The distance from the position with number 0 to the one with this number, all else being
  /// equal.
  std::int64_t offset_of(std::int64_t number) const;

  bool operator==(const Digits&) const = default;
};

/// [begin, end) along one dim.
struct Interval {
  std::int64_t begin, end;
};

/// Block number `tile` of a dim that is cut into blocks of one size; [extent, extent) if the blocks
/// before it fill the dim.
inline Interval block_at(std::int64_t tile, std::int64_t block, std::int64_t extent) {
  // The last tiles may begin past the end, even past 2^63 - 1.
  std::int64_t begin = 0;
  if (__builtin_mul_overflow(tile, block, &begin) || begin > extent) begin = extent;
  return {begin, begin + (block < extent - begin ? block : extent - begin)};
}

/// The cut of one dim: the digits of the position that cut it, and the rule.
///
/// Requires extents >= 0 (of the dim) and tiles below num_tiles().
class DimCut {
 public:
  DimCut(Digits digits, UnevenPolicy::Kind kind, std::vector<std::int64_t> sizes);

  const Digits& digits() const { return digits_; }
  std::int64_t num_tiles() const { return digits_.range.divisor(); }
  bool operator==(const DimCut& other) const {
    return digits_ == other.digits_ && same_rule(other);
  }

  /// True if tiles of equal number cover the same indices for every extent.
  bool same_rule(const DimCut& other) const;

  /// False if the policy does not allow the extent: strict and not divisible, or tile sizes that do
  /// not add up to it.
  bool allows(std::int64_t extent) const {
    if (kind_ == UnevenPolicy::Kind::tile_sizes) return ends_.back() == extent;
    return !strict_ || digits_.range.remainder(extent) == 0;
  }

  /// True if every tile is a block of block(extent), cut off at the dim's end.
  bool cuts_by_blocks() const { return kind_ == UnevenPolicy::Kind::ceil; }

  /// The size of the largest tile.
  std::int64_t block(std::int64_t extent) const;

  Interval tile(std::int64_t tile, std::int64_t extent) const {
    if (cuts_by_blocks()) return block_at(tile, digits_.range.ceil(extent), extent);
    return other_tile(tile, extent);
  }

  /// The tile with this element. Requires 0 <= element < extent.
  std::int64_t tile_of(std::int64_t element, std::int64_t extent) const;

 private:
  Interval other_tile(std::int64_t tile, std::int64_t extent) const;
  Interval nested_tile(std::int64_t tile, std::int64_t extent) const;

  Digits digits_;
  UnevenPolicy::Kind kind_;         // strict cuts as ceil
  std::vector<std::int64_t> ends_;  // of each tile, for tile_sizes
  bool strict_ = false;
};

}  // namespace shardwise::detail
