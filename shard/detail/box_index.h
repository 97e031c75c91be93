#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/shard/box.h"

namespace shardwise::detail {

/// Finds the boxes that overlap a box: a tree of bounding boxes, halved along the dim in which the
/// boxes lie most apart. O(m log m) to build; a query on boxes that hardly overlap each other
/// takes about O(log m + hits).
///
/// Immutable, thread-safe.
class BoxIndex {
 public:
  /// Requires equal ranks. Keeps the span: valid as long as the boxes.
  explicit BoxIndex(std::span<const Box> boxes);

  /// The numbers of all boxes that share an element with `query`, ascending.
  std::vector<std::int64_t> overlapping(const Box& query) const;

 private:
  struct Node {
    Box bounds;
    std::size_t begin, end;  // in order_
    std::size_t right;       // of the second child, the first follows its parent; 0 for a leaf
  };

  void build(std::size_t begin, std::size_t end);
  std::size_t widest_dim(const Node& node) const;
  const Box& box(std::size_t i) const { return boxes_[static_cast<std::size_t>(order_[i])]; }

  std::span<const Box> boxes_;
  std::vector<std::int64_t> order_;
  std::vector<Node> nodes_;
};

}  // namespace shardwise::detail
