#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "shardwise/shard/dims.h"

namespace shardwise::detail {

/// Nested loops that walk through N tensors in memory at once. A loop of extent 1 is left out, and
/// a loop whose steps are just past the end of the next loop inside it joins that loop, so that
/// parts that are contiguous in all N tensors are one loop.
///
/// Value type, thread-compatible.
///
///   Loops<2> loops;             // [8, 3] from a matrix whose rows are 5 apart to one without gaps
///   loops.add(8, {5, 3});
///   loops.add(3, {1, 1});
///   loops.for_each({}, [](auto at) { .. });  // at: {0, 0}, {1, 1}, {2, 2}, {5, 3}, ..
template <std::size_t N>
class Loops {
 public:
  using Offsets = std::array<std::int64_t, N>;  ///< in elements, one for each tensor

  struct Loop {
    std::int64_t extent = 1;
    Offsets steps{};
  };

  /// Adds a loop inside the others. At most 2 * kMaxRank of them are not of extent 1.
  void add(std::int64_t extent, const Offsets& steps) {
    if (extent == 0) nothing_ = true;
    if (extent <= 1) return;
    if (size_ > 0) {
      Loop& last = loops_[size_ - 1];
      bool joins = true;
      for (std::size_t n = 0; n < N; ++n) joins &= last.steps[n] == extent * steps[n];
      if (joins) {
        last = {last.extent * extent, steps};
        return;
      }
    }
    loops_[size_++] = {extent, steps};
  }
  void add(const Loop& loop) { add(loop.extent, loop.steps); }

  /// True if a loop of extent 0 was added: there is nothing to walk through.
  bool nothing() const { return nothing_; }

  std::size_t size() const { return size_; }
  const Loop& operator[](std::size_t i) const { return loops_[i]; }

  /// Takes a loop out. Those on its two sides do not join.
  Loop take(std::size_t i) {
    const Loop taken = loops_[i];
    std::copy(loops_.begin() + i + 1, loops_.begin() + size_, loops_.begin() + i);
    --size_;
    return taken;
  }

  /// Takes the innermost loop out; without loops, gives one of extent 1.
  Loop take_innermost() { return size_ == 0 ? Loop{} : take(size_ - 1); }

  /// Calls body(offsets) for each element, beginning at `at`.
  template <class Body>
  void for_each(Offsets at, Body&& body) const {
    if (nothing_) return;
    std::array<std::int64_t, 2 * kMaxRank> index;
    std::fill_n(index.begin(), size_, 0);
    for (;;) {
      body(at);
      std::size_t i = size_;
      for (;;) {
        if (i == 0) return;
        --i;
        const Loop& loop = loops_[i];
        for (std::size_t n = 0; n < N; ++n) at[n] += loop.steps[n];
        if (++index[i] < loop.extent) break;
        for (std::size_t n = 0; n < N; ++n) at[n] -= loop.steps[n] * loop.extent;
        index[i] = 0;
      }
    }
  }

 private:
  std::size_t size_ = 0;
  bool nothing_ = false;
  std::array<Loop, 2 * kMaxRank> loops_;
};

}  // namespace shardwise::detail
