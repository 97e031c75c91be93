#include "shardwise/shard/box_copy.h"

#include <fmt/format.h>

#include <cstring>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

std::int64_t offset_in(const Box& view, const Dims& strides, const Index& at) {
  std::int64_t offset = 0;
  for (std::size_t dim = 0; dim < at.size(); ++dim) {
    offset += (at[dim] - view.begin(dim)) * strides[dim];
  }
  return offset;
}

/// A constant length lets the compiler turn memcpy into one move, as short runs need.
template <std::size_t kRunBytes>
void copy_short_runs(const RunWalk& walk, std::size_t element_bytes, const std::byte* from,
                     std::byte* to) {
  for_each_run(walk, [=](std::int64_t a, std::int64_t b, std::int64_t) {
    std::memcpy(to + static_cast<std::size_t>(b) * element_bytes,
                from + static_cast<std::size_t>(a) * element_bytes, kRunBytes);
  });
}

}  // namespace

RunWalk walk_runs(const Box& box, const Box& a, const Box& b) {
  if (!a.contains(box) || !b.contains(box)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("copy a box: {} is not inside both {} and {}; needed is a part of both",
                            to_string(box), to_string(a), to_string(b)));
  }
  RunWalk walk;
  if (box.empty()) return walk;
  const Dims a_strides = row_major_strides(a.shape());
  const Dims b_strides = row_major_strides(b.shape());
  walk.a_offset = offset_in(a, a_strides, box.begin());
  walk.b_offset = offset_in(b, b_strides, box.begin());

  // From the inside out, a dim whose step is just past the end of the loop inside it joins that
  // loop. The first loop is the run itself: one element, with the strides of one element.
  Dims extents{1}, a_steps{1}, b_steps{1};
  for (std::size_t dim = box.rank(); dim-- > 0;) {
    const std::int64_t extent = box.extent(dim);
    const std::size_t last = extents.size() - 1;
    if (extent == 1) continue;
    if (a_strides[dim] == a_steps[last] * extents[last] &&
        b_strides[dim] == b_steps[last] * extents[last]) {
      extents[last] *= extent;
      continue;
    }
    extents.push_back(extent);
    a_steps.push_back(a_strides[dim]);
    b_steps.push_back(b_strides[dim]);
  }
  walk.run_elements = extents[0];
  for (std::size_t loop = extents.size(); loop-- > 1;) {
    walk.extents.push_back(extents[loop]);
    walk.a_strides.push_back(a_steps[loop]);
    walk.b_strides.push_back(b_steps[loop]);
  }
  return walk;
}

const std::byte* find_contiguous(const Box& box, std::size_t element_bytes,
                                 const ConstBoxView& view) {
  const RunWalk walk = walk_runs(box, view.box, box);
  if (walk.run_elements != box.num_elements()) return nullptr;
  return view.data + static_cast<std::size_t>(walk.a_offset) * element_bytes;
}

void copy_box(const Box& box, std::size_t element_bytes, const ConstBoxView& from,
              const BoxView& to) {
  const RunWalk walk = walk_runs(box, from.box, to.box);
  const std::size_t run_bytes = static_cast<std::size_t>(walk.run_elements) * element_bytes;
  switch (run_bytes) {
    case 1:
      return copy_short_runs<1>(walk, element_bytes, from.data, to.data);
    case 2:
      return copy_short_runs<2>(walk, element_bytes, from.data, to.data);
    case 4:
      return copy_short_runs<4>(walk, element_bytes, from.data, to.data);
    case 8:
      return copy_short_runs<8>(walk, element_bytes, from.data, to.data);
    case 16:
      return copy_short_runs<16>(walk, element_bytes, from.data, to.data);
    default:
      for_each_run(walk, [&](std::int64_t a, std::int64_t b, std::int64_t) {
        std::memcpy(to.data + static_cast<std::size_t>(b) * element_bytes,
                    from.data + static_cast<std::size_t>(a) * element_bytes, run_bytes);
      });
  }
}

}  // namespace shardwise
