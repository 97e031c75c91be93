#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/plan/packed_boxes.h"
#include "testing/random_shardings.h"

namespace shardwise {

inline PackedBoxes packed(const std::vector<Box>& boxes, std::size_t rank) {
  PackedBoxes result(rank);
  for (const Box& box : boxes) result.push_back(box);
  return result;
}

/// Any box inside the region, an empty one now and then.
inline Box random_box(const Box& region, RandomShardings& random) {
  Index begin = region.begin(), end = region.end();
  for (std::size_t dim = 0; dim < region.rank(); ++dim) {
    begin[dim] = random.draw(region.begin(dim), region.end(dim));
    end[dim] = random.draw(region.begin(dim), region.end(dim));
    if (begin[dim] > end[dim]) std::swap(begin[dim], end[dim]);
  }
  return Box(begin, end);
}

/// Boxes that hold each element of the region once: it is cut in two at random, `cuts` times, and
/// the parts are shuffled.
inline std::vector<Box> random_tiling(const Box& region, std::int64_t cuts,
                                      RandomShardings& random) {
  std::vector<Box> boxes{region};
  for (std::int64_t i = 0; i < cuts && region.rank() > 0; ++i) {
    Box& box = boxes[static_cast<std::size_t>(
        random.draw(0, static_cast<std::int64_t>(boxes.size()) - 1))];
    const std::size_t dim =
        static_cast<std::size_t>(random.draw(0, static_cast<std::int64_t>(region.rank()) - 1));
    Index end = box.end(), begin = box.begin();
    end[dim] = begin[dim] = random.draw(box.begin(dim), box.end(dim));
    const Box upper(begin, box.end());
    box = Box(box.begin(), end);
    boxes.push_back(upper);
  }
  std::shuffle(boxes.begin(), boxes.end(), random.engine());
  return boxes;
}

/// Drops, repeats or replaces some boxes.
inline void damage(std::vector<Box>& boxes, const Box& region, std::int64_t times,
                   RandomShardings& random) {
  for (std::int64_t i = 0; i < times && !boxes.empty(); ++i) {
    const std::size_t at =
        static_cast<std::size_t>(random.draw(0, static_cast<std::int64_t>(boxes.size()) - 1));
    switch (random.draw(0, 3)) {
      case 0:
        boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 1:
        boxes.push_back(Box(boxes[at]));
        break;
      case 2:
        boxes[at] = random_box(region, random);
        break;
      default:
        boxes.push_back(random_box(region, random));
    }
  }
}

}  // namespace shardwise
