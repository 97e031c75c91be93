#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shardwise {

/// A set of the numbers 0 .. size-1, one bit each, and an index of 1/32 of the bits' size that
/// finds the j-th of them (Jacobson, "Space-efficient static trees and graphs", 1989: counts per
/// block of 2,048 bits).
///
/// Immutable, thread-safe.
///
///   const RankedBits even(6, {0b010101});
///   even.count();         // 3
///   even.select(2);       // 4
///   even.rank(4);         // 2
class RankedBits {
 public:
  RankedBits() = default;

  /// Number i is in the set if bit i % 64 of word i / 64 is 1. Throws invalid_argument if size is
  /// negative, the number of words is not (size + 63) / 64, or a bit past `size` is 1.
  RankedBits(std::int64_t size, std::vector<std::uint64_t> words);

  std::int64_t size() const { return size_; }

  /// The number of members of the set.
  std::int64_t count() const { return before_.back(); }

  /// Requires 0 <= i < size().
  bool at(std::int64_t i) const;

  /// The number of members of the set below i. Requires 0 <= i <= size().
  std::int64_t rank(std::int64_t i) const;

  /// The member of the set with rank j. O(log size). Requires 0 <= j < count().
  std::int64_t select(std::int64_t j) const;

  std::span<const std::uint64_t> words() const { return words_; }

  /// Bytes of bits and index.
  std::size_t memory_bytes() const;

 private:
  std::int64_t size_ = 0;
  std::vector<std::uint64_t> words_;
  std::vector<std::int64_t> before_{
      0};  // per block, the count in all blocks before it; at the end, the total
};

}  // namespace shardwise
