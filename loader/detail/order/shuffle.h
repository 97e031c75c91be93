#pragma once

#include <array>
#include <cstdint>

namespace shardwise {

/// A random order of 0 .. size-1 that is computed, not stored: a keyed cipher over the indices.
///
/// An unbalanced Feistel network on the fewest bits that hold size, applied again while the result
/// is out of range (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains",
/// 2002).
///
/// Immutable, thread-safe.
///
///   const Shuffle order(60000, seed, epoch);
///   order.at(order.position_of(7));     // 7
class Shuffle {
 public:
  /// Throws invalid_argument if size < 0.
  Shuffle(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);

  std::int64_t size() const { return size_; }

  /// The record at place `number` of the order, counted from 0. Requires 0 <= number < size().
  std::int64_t at(std::int64_t number) const;

  /// Inverse of at().
  std::int64_t position_of(std::int64_t index) const;

 private:
  static constexpr int kRounds = 6;
  std::int64_t size_;
  int left_bits_, right_bits_;
  std::array<std::uint64_t, kRounds> keys_;
};

}  // namespace shardwise
