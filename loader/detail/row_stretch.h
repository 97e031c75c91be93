#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "shardwise/shard/box.h"

namespace shardwise::detail {

/// Consecutive elements of a row-major row.
struct RowStretch {
  std::size_t begin, count;
};

/// The elements of a box in a row of this shape, if they are one stretch. That saves a walk over
/// runs, which takes as long as copying some kilobytes. Requires a box within the row.
inline std::optional<RowStretch> one_stretch(const Shape& row, const Box& box) {
  if (box.empty()) return RowStretch{0, 0};     // the other extents may have no product
  std::int64_t begin = 0, count = 1, step = 1;  // step: elements from one index to the next
  bool whole = true;                            // of the dims so far, from the last on
  for (std::size_t dim = row.size(); dim > 0; --dim) {
    const std::int64_t extent = box.extent(dim - 1);
    if (!whole && extent != 1) return std::nullopt;
    begin += box.begin(dim - 1) * step;
    count *= extent;
    whole = whole && extent == row[dim - 1];
    step *= row[dim - 1];
  }
  return RowStretch{static_cast<std::size_t>(begin), static_cast<std::size_t>(count)};
}

}  // namespace shardwise::detail
