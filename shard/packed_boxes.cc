#include "shardwise/shard/packed_boxes.h"

#include <span>

namespace shardwise {

void PackedBoxes::clear() {
  size_ = 0;
  ends_.clear();
}

void PackedBoxes::push_back(const std::int64_t* begin, const std::int64_t* end) {
  ends_.insert(ends_.end(), begin, begin + rank_);
  ends_.insert(ends_.end(), end, end + rank_);
  ++size_;
}

Box PackedBoxes::operator[](std::size_t i) const {
  Box box = Box::whole(Shape::filled(rank_, 0));
  for (std::size_t dim = 0; dim < rank_; ++dim) box.set(dim, begin_of(i)[dim], end_of(i)[dim]);
  return box;
}

bool PackedBoxes::empty_at(std::size_t i) const {
  for (std::size_t dim = 0; dim < rank_; ++dim) {
    if (begin_of(i)[dim] == end_of(i)[dim]) return true;
  }
  return false;
}

}  // namespace shardwise
