#include "shardwise/shard/detail/dim_cut.h"

#include <algorithm>
#include <utility>

namespace shardwise::detail {

using Kind = UnevenPolicy::Kind;

void Digits::append(std::int64_t stride, std::int64_t size, bool fused) {
  if (size == 1) return;
  range = Divider(range.divisor() * size);
  for (Digit& digit : list) digit.weight = Divider(digit.weight.divisor() * size);
  if (fused && !list.empty() && list.back().stride.divisor() == stride * size) {
    list.back() = {Divider(stride), Divider(list.back().size.divisor() * size), Divider(1)};
  } else {
    list.push_back({Divider(stride), Divider(size), Divider(1)});
  }
}

std::int64_t Digits::offset_of(std::int64_t number) const {
  std::int64_t offset = 0;
  for (const Digit& digit : list) {
    offset += digit.size.remainder(digit.weight.quotient(number)) * digit.stride.divisor();
  }
  return offset;
}

DimCut::DimCut(Digits digits, Kind kind, std::vector<std::int64_t> sizes)
    : digits_(std::move(digits)), kind_(kind), ends_(std::move(sizes)) {
  strict_ = kind == Kind::strict;
  // Kinds that cut this dim in the same way are stored as one, so that they compare equal.
  if (strict_ || num_tiles() == 1 || (kind == Kind::nested_chunk && digits_.list.size() == 1)) {
    kind_ = Kind::ceil;
  }
  if (num_tiles() == 1) strict_ = false;
  if (kind_ != Kind::tile_sizes) ends_.clear();
  std::int64_t end = 0;
  for (std::int64_t& size : ends_) size = end += size;
}

bool DimCut::same_rule(const DimCut& other) const {
  if (num_tiles() != other.num_tiles() || kind_ != other.kind_ || strict_ != other.strict_ ||
      ends_ != other.ends_) {
    return false;
  }
  const auto& a = digits_.list;
  const auto& b = other.digits_.list;
  return kind_ != Kind::nested_chunk ||
         std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Digit& i, const Digit& j) { return i.size == j.size; });
}

std::int64_t DimCut::block(std::int64_t extent) const {
  if (kind_ == Kind::tile_sizes) {
    std::int64_t largest = ends_.front();
    for (std::size_t i = 1; i < ends_.size(); ++i) {
      largest = std::max(largest, ends_[i] - ends_[i - 1]);
    }
    return largest;
  }
  if (kind_ != Kind::nested_chunk) return digits_.range.ceil(extent);
  for (const Digit& digit : digits_.list) extent = digit.size.ceil(extent);
  return extent;
}

Interval DimCut::nested_tile(std::int64_t tile, std::int64_t extent) const {
  std::int64_t begin = 0, length = extent;
  for (const Digit& digit : digits_.list) {
    const std::int64_t part = digit.size.remainder(digit.weight.quotient(tile));
    const std::int64_t block = digit.size.ceil(length);
    std::int64_t first = 0;
    if (__builtin_mul_overflow(part, block, &first)) first = length;
    first = std::min(first, length);
    begin += first;
    length = std::min(block, length - first);
  }
  return length == 0 ? Interval{extent, extent} : Interval{begin, begin + length};
}

Interval DimCut::other_tile(std::int64_t tile, std::int64_t extent) const {
  if (kind_ == Kind::nested_chunk) return nested_tile(tile, extent);
  if (kind_ == Kind::balanced) {
    const std::int64_t small = digits_.range.quotient(extent);
    const std::int64_t larger = extent - small * num_tiles();  // this many tiles have one more
    const std::int64_t begin = tile * small + std::min(tile, larger);
    return {begin, begin + small + (tile < larger ? 1 : 0)};
  }
  const auto end = ends_.begin() + tile;
  return {tile == 0 ? 0 : *(end - 1), *end};
}

std::int64_t DimCut::tile_of(std::int64_t element, std::int64_t extent) const {
  if (kind_ == Kind::ceil) return element / digits_.range.ceil(extent);
  if (kind_ == Kind::balanced) {
    const std::int64_t small = digits_.range.quotient(extent);
    const std::int64_t larger = extent - small * num_tiles();
    const std::int64_t in_larger = larger * (small + 1);
    return element < in_larger ? element / (small + 1) : larger + (element - in_larger) / small;
  }
  if (kind_ == Kind::tile_sizes) {
    return std::upper_bound(ends_.begin(), ends_.end(), element) - ends_.begin();
  }
  std::int64_t tile = 0, length = extent;
  for (const Digit& digit : digits_.list) {
    const std::int64_t block = digit.size.ceil(length);
    const std::int64_t part = element / block;
    tile += part * digit.weight.divisor();
    element -= part * block;
    length = std::min(block, length - part * block);
  }
  return tile;
}

}  // namespace shardwise::detail
