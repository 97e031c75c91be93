#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/shard/plan/packed_boxes.h"

namespace shardwise::detail {

/// The sources that share an element with each target.
///
/// Immutable, thread-safe.
class Overlaps {
 public:
  /// Space is halved until a part holds few sources or few targets, which are then compared with
  /// each other: about O(m log m + overlaps) for m boxes, if few reach over each other's ends.
  /// Requires equal ranks and fewer than 2^32 boxes; empty boxes overlap nothing.
  Overlaps(const PackedBoxes& sources, const PackedBoxes& targets);

  /// The number of overlaps of all targets together.
  std::size_t size() const { return sources_.size(); }

  /// Numbers of sources, in no particular order.
  std::span<const std::uint32_t> of(std::size_t target) const {
    return std::span(sources_).subspan(first_[target], first_[target + 1] - first_[target]);
  }

 private:
  std::vector<std::size_t> first_;  // in sources_, per target, and one past the end
  std::vector<std::uint32_t> sources_;
};

}  // namespace shardwise::detail
