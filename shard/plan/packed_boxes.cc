#include "shardwise/shard/plan/packed_boxes.h"

#include <span>

namespace shardwise {

void PackedBoxes::clear() {
  size_ = 0;
  ends_.clear();
}

void PackedBoxes::push_back(const std::int64_t* begin, const std::int64_t* end) {
  const std::size_t at = ends_.size();
  ends_.resize(at + 2 * rank_);
  std::int64_t* to = ends_.data() + at;
  for (std::size_t dim = 0; dim < rank_; ++dim) {
    to[dim] = begin[dim];
    to[rank_ + dim] = end[dim];
  }
  ++size_;
}

Box PackedBoxes::operator[](std::size_t i) const {
  Box box;
  for (std::size_t dim = 0; dim < rank_; ++dim) box.push_back(begin_of(i)[dim], end_of(i)[dim]);
  return box;
}

bool PackedBoxes::empty_at(std::size_t i) const {
  for (std::size_t dim = 0; dim < rank_; ++dim) {
    if (begin_of(i)[dim] == end_of(i)[dim]) return true;
  }
  return false;
}

}  // namespace shardwise
