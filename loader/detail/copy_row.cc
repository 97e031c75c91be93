#include "shardwise/loader/detail/copy_row.h"

#include <algorithm>
#include <cstring>

namespace shardwise::detail {

void copy_row(const std::byte* row, const Shape& shape, std::int64_t length,
              std::size_t element_bytes, const BoxView& to) {
  const std::size_t bytes = num_bytes(to.box.shape(), element_bytes);
  if (bytes == 0) return;
  Shape there = shape;
  Box part = to.box;
  if (!shape.empty()) {
    there[0] = length;
    const std::int64_t begin = std::min(part.begin(0), length);
    part.set(0, begin, std::clamp(part.end(0), begin, length));
  }
  const std::size_t part_bytes = num_bytes(part.shape(), element_bytes);
  // Rows of dim 0 follow one another, so the rows that the record has come first in the target.
  if (part_bytes > 0) {
    copy_box(part, element_bytes, {row, Box::whole(there)}, {to.data, part});
  }
  if (part_bytes < bytes) std::memset(to.data + part_bytes, 0, bytes - part_bytes);
}

}  // namespace shardwise::detail
