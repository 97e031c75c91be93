#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "shardwise/shard/plan/packed_boxes.h"

namespace shardwise::detail {

/// A plane between two parts of space: the indices of the dim below `at` are below it.
struct Cut {
  std::size_t dim;
  std::int64_t at;
};

/// A stack of box numbers for a divide and conquer over space: the numbers of the boxes that reach
/// into a part are pushed, examined and dropped again. Order is kept.
///
/// Thread-compatible.
class BoxStack {
 public:
  /// The numbers pushed between two moments.
  struct Range {
    std::size_t first, last;

    std::size_t size() const { return last - first; }
  };

  /// Pushes the boxes that share an element with the cell. Keeps a reference to `boxes`, which must
  /// outlive it. Requires fewer than 2^32 boxes.
  BoxStack(const PackedBoxes& boxes, const Box& cell);

  Range all() const { return {0, numbers_.size()}; }

  /// Pushes copies of the numbers in a range whose boxes reach below or above the cut.
  Range push_below(Range range, const Cut& cut);
  Range push_above(Range range, const Cut& cut);
  void drop(Range range) { numbers_.resize(range.first); }

  std::uint32_t number(std::size_t i) const { return numbers_[i]; }
  const std::int64_t* begin_of(std::size_t i) const { return boxes_.begin_of(numbers_[i]); }
  const std::int64_t* end_of(std::size_t i) const { return boxes_.end_of(numbers_[i]); }

  /// True if box i contains all of the cell.
  bool covers(std::size_t i, const Box& cell) const;

 private:
  const PackedBoxes& boxes_;
  std::vector<std::uint32_t> numbers_;
};

/// True if two boxes share an element. Each pointer is to `rank` values.
inline bool overlap(std::size_t rank, const std::int64_t* a_begin, const std::int64_t* a_end,
                    const std::int64_t* b_begin, const std::int64_t* b_end) {
  for (std::size_t dim = 0; dim < rank; ++dim) {
    if (a_begin[dim] >= b_end[dim] || b_begin[dim] >= a_end[dim]) return false;
  }
  return true;
}

/// Boxes to choose a cut for.
struct CutSample {
  const BoxStack& stack;
  BoxStack::Range range;
};

/// Chooses a cut of a cell so that few boxes are on both sides, and each side has about as many:
/// along the dim where the boxes are smallest relative to the cell, at the median of their faces.
/// Looks at a few of the boxes only. Absent if half of those or more are on both sides: cutting
/// would then cost more than it saves.
std::optional<Cut> choose_cut(const Box& cell, std::initializer_list<CutSample> samples);

/// The parts of a cell. Requires a cut inside of it.
Box below(const Box& cell, const Cut& cut);
Box above(const Box& cell, const Cut& cut);

}  // namespace shardwise::detail
