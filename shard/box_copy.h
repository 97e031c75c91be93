#pragma once

#include <cstddef>
#include <cstdint>

#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Row-major memory that holds exactly the elements of `box`. Does not own the memory.
struct ConstBoxView {
  const std::byte* data;
  Box box;
};
struct BoxView {
  std::byte* data;
  Box box;
};

/// Copies the elements of `box` (global indices) from one row-major buffer to another. Runs that
/// are contiguous in both are copied at once, whatever the rank. Throws invalid_argument if `box`
/// is not inside both views. The memory must not overlap.
void copy_box(const Box& box, std::size_t element_bytes, const ConstBoxView& from,
              const BoxView& to);

/// A pointer to the elements of `box` in the view's memory if they are contiguous there, row-major;
/// else null. Requires a non-empty box inside the view's.
const std::byte* find_contiguous(const Box& box, std::size_t element_bytes,
                                 const ConstBoxView& view);

/// The walk that copy_box makes: the maximal runs of `box` that are contiguous in both row-major
/// buffers, as loops over outer dims.
struct RunWalk {
  std::int64_t run_elements = 0;            ///< length of each run; 0: nothing to do
  std::int64_t a_offset = 0, b_offset = 0;  ///< of the first run, in elements
  Dims extents, a_strides, b_strides;       ///< the outer loops, in elements, outermost first
};
RunWalk walk_runs(const Box& box, const Box& a, const Box& b);

/// Calls body(a_offset, b_offset, count), all in elements, for each run in row-major order.
template <class Body>
void for_each_run(const RunWalk& walk, Body&& body) {
  if (walk.run_elements == 0) return;
  const std::size_t rank = walk.extents.size();
  Dims at = Dims::filled(rank, 0);
  std::int64_t a = walk.a_offset, b = walk.b_offset;
  for (;;) {
    body(a, b, walk.run_elements);
    std::size_t dim = rank;
    for (;;) {
      if (dim == 0) return;
      --dim;
      a += walk.a_strides[dim];
      b += walk.b_strides[dim];
      if (++at[dim] < walk.extents[dim]) break;
      a -= walk.a_strides[dim] * at[dim];
      b -= walk.b_strides[dim] * at[dim];
      at[dim] = 0;
    }
  }
}

}  // namespace shardwise
