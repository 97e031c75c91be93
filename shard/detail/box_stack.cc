#include "shardwise/shard/detail/box_stack.h"

#include <algorithm>
#include <array>
#include <initializer_list>

namespace shardwise::detail {
namespace {

constexpr std::size_t kSample = 16;

/// Calls body(begin, end) for up to kSample boxes of each range, evenly spread.
template <class Body>
void for_each_sample(std::initializer_list<CutSample> samples, Body&& body) {
  for (const auto& [stack, range] : samples) {
    const std::size_t count = std::min(kSample, range.size());
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t i = range.first + k * range.size() / count;
      body(stack.begin_of(i), stack.end_of(i));
    }
  }
}

}  // namespace

void BoxStack::reserve(std::size_t more) {
  const std::size_t needed = (size_ + more) * stride_;
  if (needed > values_.size()) values_.resize(std::max(needed, 2 * values_.size()));
}

void BoxStack::push(std::int64_t number, const std::int64_t* begin, const std::int64_t* end) {
  std::int64_t* value = &values_[size_ * stride_];
  *value = number;
  for (std::size_t dim = 0; dim < rank_; ++dim) {
    value[1 + dim] = begin[dim];
    value[1 + rank_ + dim] = end[dim];
  }
  ++size_;
}

void BoxStack::push_again(std::size_t i) {
  const std::int64_t* from = &values_[i * stride_];
  std::int64_t* to = &values_[size_ * stride_];
  for (std::size_t k = 0; k < stride_; ++k) to[k] = from[k];
  ++size_;
}

BoxStack::Range BoxStack::push_below(Range range, const Cut& cut) {
  reserve(range.size());
  const std::size_t first = size_;
  for (std::size_t i = range.first; i < range.last; ++i) {
    if (begin_of(i)[cut.dim] < cut.at) push_again(i);
  }
  return {first, size_};
}

BoxStack::Range BoxStack::push_above(Range range, const Cut& cut) {
  reserve(range.size());
  const std::size_t first = size_;
  for (std::size_t i = range.first; i < range.last; ++i) {
    if (end_of(i)[cut.dim] > cut.at) push_again(i);
  }
  return {first, size_};
}

bool BoxStack::covers(std::size_t i, const Box& cell) const {
  for (std::size_t dim = 0; dim < rank_; ++dim) {
    if (begin_of(i)[dim] > cell.begin(dim) || end_of(i)[dim] < cell.end(dim)) return false;
  }
  return true;
}

std::optional<Cut> choose_cut(const Box& cell, std::initializer_list<CutSample> samples) {
  std::optional<Cut> cut;
  double least = 1;  // of the cell's extent, on average
  for (std::size_t dim = 0; dim < cell.rank(); ++dim) {
    double extents = 0, count = 0;
    for_each_sample(samples, [&](const std::int64_t* begin, const std::int64_t* end) {
      extents += static_cast<double>(std::min(end[dim], cell.end(dim)) -
                                     std::max(begin[dim], cell.begin(dim)));
      count += 1;
    });
    const double part = extents / (count * static_cast<double>(cell.extent(dim)));
    if (part >= least) continue;
    least = part;
    cut = Cut{dim, 0};
  }
  if (!cut) return cut;
  const std::size_t dim = cut->dim;
  std::array<std::int64_t, 4 * kSample> faces;
  std::size_t num_faces = 0;
  for_each_sample(samples, [&](const std::int64_t* begin, const std::int64_t* end) {
    for (const std::int64_t face : {begin[dim], end[dim]}) {
      if (face > cell.begin(dim) && face < cell.end(dim)) faces[num_faces++] = face;
    }
  });
  if (num_faces == 0) return std::nullopt;  // by rounding only
  const auto median = faces.begin() + num_faces / 2;
  std::nth_element(faces.begin(), median, faces.begin() + num_faces);
  cut->at = *median;
  return cut;
}

Box below(const Box& cell, const Cut& cut) {
  Box part = cell;
  part.set(cut.dim, cell.begin(cut.dim), cut.at);
  return part;
}

Box above(const Box& cell, const Cut& cut) {
  Box part = cell;
  part.set(cut.dim, cut.at, cell.end(cut.dim));
  return part;
}

}  // namespace shardwise::detail
