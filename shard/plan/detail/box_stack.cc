#include "shardwise/shard/plan/detail/box_stack.h"

#include <algorithm>
#include <array>

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

BoxStack::BoxStack(const PackedBoxes& boxes, const Box& cell) : boxes_(boxes) {
  numbers_.reserve(boxes.size() + boxes.size() / 4 * 5);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (!boxes.empty_at(i) && overlap(boxes.rank(), boxes.begin_of(i), boxes.end_of(i),
                                      cell.begin().begin(), cell.end().begin())) {
      numbers_.push_back(static_cast<std::uint32_t>(i));
    }
  }
}

BoxStack::Range BoxStack::push_below(Range range, const Cut& cut) {
  const std::size_t first = numbers_.size();
  for (std::size_t i = range.first; i < range.last; ++i) {
    const std::uint32_t number = numbers_[i];
    if (boxes_.begin_of(number)[cut.dim] < cut.at) numbers_.push_back(number);
  }
  return {first, numbers_.size()};
}

BoxStack::Range BoxStack::push_above(Range range, const Cut& cut) {
  const std::size_t first = numbers_.size();
  for (std::size_t i = range.first; i < range.last; ++i) {
    const std::uint32_t number = numbers_[i];
    if (boxes_.end_of(number)[cut.dim] > cut.at) numbers_.push_back(number);
  }
  return {first, numbers_.size()};
}

bool BoxStack::covers(std::size_t i, const Box& cell) const {
  for (std::size_t dim = 0; dim < cell.rank(); ++dim) {
    if (begin_of(i)[dim] > cell.begin(dim) || end_of(i)[dim] < cell.end(dim)) return false;
  }
  return true;
}

std::optional<Cut> choose_cut(const Box& cell, std::initializer_list<CutSample> samples) {
  std::optional<Cut> cut;
  double least = 1;  // smallest share of the cell's extent, on average
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
  if (num_faces == 0) return std::nullopt;  // can only be due to rounding
  const auto median = faces.begin() + num_faces / 2;
  std::nth_element(faces.begin(), median, faces.begin() + num_faces);
  cut->at = *median;
  std::size_t boxes = 0, on_both_sides = 0;
  for_each_sample(samples, [&](const std::int64_t* begin, const std::int64_t* end) {
    ++boxes;
    if (begin[dim] < cut->at && end[dim] > cut->at) ++on_both_sides;
  });
  if (2 * on_both_sides >= boxes) return std::nullopt;
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
