#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shardwise/shard/box.h"

namespace shardwise::detail {

/// A plane between two parts of space: below it are indices < at of the dim.
struct Cut {
  std::size_t dim;
  std::int64_t at;
};

/// Numbered boxes for a divide and conquer over space: the boxes that reach into a part are pushed,
/// looked at and dropped again. They lie next to each other, so that going through them is fast.
///
/// Thread-compatible.
class BoxStack {
 public:
  /// The boxes pushed between two moments.
  struct Range {
    std::size_t first, last;

    std::size_t size() const { return last - first; }
  };

  explicit BoxStack(std::size_t rank) : rank_(rank), stride_(1 + 2 * rank) {}

  /// Makes room for more boxes than are there.
  void reserve(std::size_t more);

  /// Requires room. `begin` and `end` are rank values each.
  void push(std::int64_t number, const std::int64_t* begin, const std::int64_t* end);

  /// Pushes once more those boxes of a range that reach below or above the cut.
  Range push_below(Range range, const Cut& cut);
  Range push_above(Range range, const Cut& cut);
  void drop(Range range) { size_ = range.first; }

  std::size_t rank() const { return rank_; }
  Range all() const { return {0, size_}; }
  std::int64_t number(std::size_t i) const { return values_[i * stride_]; }
  const std::int64_t* begin_of(std::size_t i) const { return &values_[i * stride_] + 1; }
  const std::int64_t* end_of(std::size_t i) const { return begin_of(i) + rank_; }

  /// Whether box i has all of the cell.
  bool covers(std::size_t i, const Box& cell) const;

 private:
  void push_again(std::size_t i);

  std::size_t rank_, stride_;
  std::size_t size_ = 0;
  std::vector<std::int64_t> values_;  // per box its number, begin and end; longer than in use
};

/// Boxes share an element. Each pointer is to rank values.
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

/// Where to cut a cell so that few boxes lie on both sides, and about as many on each: along the
/// dim in which they are smallest next to the cell, at the median of their faces. Looks at a few
/// of the boxes only. Absent where those all reach through the cell.
std::optional<Cut> choose_cut(const Box& cell, std::initializer_list<CutSample> samples);

/// The parts of a cell. Requires a cut inside of it.
Box below(const Box& cell, const Cut& cut);
Box above(const Box& cell, const Cut& cut);

}  // namespace shardwise::detail
