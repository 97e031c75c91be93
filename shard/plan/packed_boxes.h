#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shardwise/shard/box.h"

namespace shardwise {

/// Many boxes of one rank in 16 bytes per box and dim; a Box takes the room of kMaxRank dims.
///
/// Thread-compatible.
class PackedBoxes {
 public:
  explicit PackedBoxes(std::size_t rank = 0) : rank_(rank) {}

  std::size_t rank() const { return rank_; }
  std::size_t size() const { return size_; }
  void reserve(std::size_t boxes) { ends_.reserve(2 * rank_ * boxes); }
  void clear();

  /// Requires the rank of these boxes.
  void push_back(const Box& box) { push_back(box.begin().begin(), box.end().begin()); }

  /// `begin` and `end` point to rank() values each, not into this object.
  void push_back(const std::int64_t* begin, const std::int64_t* end);

  /// Requires i < size().
  Box operator[](std::size_t i) const;
  bool empty_at(std::size_t i) const;

  /// rank() values each; valid until the next change.
  const std::int64_t* begin_of(std::size_t i) const { return ends_.data() + 2 * rank_ * i; }
  const std::int64_t* end_of(std::size_t i) const { return begin_of(i) + rank_; }

 private:
  std::size_t rank_;
  std::size_t size_ = 0;
  std::vector<std::int64_t> ends_;  // per box its begin, then its end
};

}  // namespace shardwise
