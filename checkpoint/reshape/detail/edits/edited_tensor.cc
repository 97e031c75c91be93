#include "shardwise/reshape/detail/edits/edited_tensor.h"

#include <algorithm>

namespace shardwise::reshape_detail {

bool EditedPart::keeps_order() const {
  std::size_t next = 0;
  for (const std::size_t dim : order) {
    if (dim == kNewDim) continue;
    if (dim < next) return false;
    next = dim + 1;
  }
  return true;
}

Box EditedTensor::common(const EditedPart& part, Box box) const {
  if (parts.size() == 1) return box;
  const std::int64_t begin = std::clamp(box.begin(dim), part.begin, part.end);
  box.set(dim, begin, std::clamp(box.end(dim), begin, part.end));
  return box;
}

Box EditedTensor::in_source(const EditedPart& part, const Box& box) const {
  Box there(Index::filled(part.source_rank, part.from),
            Index::filled(part.source_rank, part.from + 1));
  for (std::size_t d = 0; d < box.rank(); ++d) {
    const std::size_t stored = part.order.empty() ? d : part.order[d];
    if (stored == kNewDim) continue;
    const std::int64_t shift = d == dim ? part.from - part.begin : 0;
    there.set(stored, box.begin(d) + shift, box.end(d) + shift);
  }
  return there;
}

Box EditedTensor::from_source(const EditedPart& part, const Box& box) const {
  Box here;
  if (part.is_scalar) return here;
  for (std::size_t d = 0; d < (part.order.empty() ? part.source_rank : part.order.size()); ++d) {
    const std::size_t stored = part.order.empty() ? d : part.order[d];
    if (stored == kNewDim) {
      here.push_back(part.begin, part.end);
      continue;
    }
    const std::int64_t shift = d == dim ? part.begin - part.from : 0;
    here.push_back(box.begin(stored) + shift, box.end(stored) + shift);
  }
  return here;
}

}  // namespace shardwise::reshape_detail
