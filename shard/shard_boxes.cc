#include "shardwise/shard/shard_boxes.h"

#include <algorithm>

#include "shardwise/shard/detail/sharding_data.h"

namespace shardwise {

ShardBoxes::ShardBoxes(const Sharding& sharding, const Shape& shape)
    : sharding_(sharding), shape_(shape), size_(sharding.mesh().size()), block_(shape) {
  const Sharding::Data& data = *sharding_.data_;
  data.check(shape);
  const auto add = [this](const detail::Digits& digits, std::size_t dim) {
    for (const detail::Digit& digit : digits.list) {
      wheels_.push_back(
          {digit.stride.divisor(), digit.size.divisor(), digit.weight.divisor(), dim});
    }
  };
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    add(data.cuts[dim].digits(), dim);
    block_[dim] = data.cuts[dim].cuts_by_blocks() ? data.cuts[dim].block(shape[dim]) : -1;
  }
  add(data.replicas, shape.size());
  std::sort(wheels_.begin(), wheels_.end(),
            [](const Wheel& a, const Wheel& b) { return a.stride < b.stride; });
}

TileRange ShardBoxes::range_of(std::size_t dim, std::int64_t tile) const {
  const std::int64_t block = block_[dim];
  if (block < 0) return sharding_.tile_range(dim, tile, shape_[dim]);
  const detail::Interval interval = detail::block_at(tile, block, shape_[dim]);
  return {tile, interval.begin, interval.end};
}

ShardBoxes::iterator::iterator(const ShardBoxes& boxes)
    : boxes_(&boxes),
      box_(Box::whole(boxes.shape_)),
      tile_(Index::filled(boxes.shape_.size(), 0)),
      counter_(boxes.wheels_.size(), 0) {
  for (std::size_t dim = 0; dim < tile_.size(); ++dim) {
    const TileRange range = boxes.range_of(dim, 0);
    box_.set(dim, range.begin, range.end);
  }
  begin_steps();
}

void ShardBoxes::iterator::begin_steps() {
  steps_left_ = 1;
  if (boxes_->wheels_.empty()) return;
  const Wheel& wheel = boxes_->wheels_.front();
  stepped_dim_ = wheel.dim;
  if (wheel.dim < tile_.size()) {
    stepped_block_ = boxes_->block_[wheel.dim];
    stepped_extent_ = boxes_->shape_[wheel.dim];
    if (stepped_block_ < 0 || wheel.weight != 1) return;  // each step is computed by itself
  }
  // All of the wheel's steps but the one that carries are taken at once.
  steps_left_ = wheel.size;
  counter_.front() = wheel.size - 1;
  if (wheel.dim < tile_.size()) tile_[wheel.dim] += wheel.size - 1;
}

void ShardBoxes::iterator::carry() {
  for (std::size_t i = 0; i < counter_.size(); ++i) {
    const Wheel& wheel = boxes_->wheels_[i];
    const bool carried = ++counter_[i] == wheel.size;
    if (carried) counter_[i] = 0;
    if (wheel.dim < tile_.size()) {
      tile_[wheel.dim] += carried ? wheel.weight * (1 - wheel.size) : wheel.weight;
      const TileRange range = boxes_->range_of(wheel.dim, tile_[wheel.dim]);
      box_.set(wheel.dim, range.begin, range.end);
    }
    if (!carried) break;
  }
  begin_steps();
}

}  // namespace shardwise
