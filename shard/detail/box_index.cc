#include "shardwise/shard/detail/box_index.h"

#include <algorithm>

namespace shardwise::detail {
namespace {

constexpr std::size_t kLeafSize = 4;

bool overlap(const Box& a, const Box& b) {
  for (std::size_t dim = 0; dim < a.rank(); ++dim) {
    if (a.begin(dim) >= b.end(dim) || b.begin(dim) >= a.end(dim)) return false;
  }
  return true;
}

Box bounding_box(const Box& a, const Box& b) {
  Index begin = a.begin(), end = a.end();
  for (std::size_t dim = 0; dim < a.rank(); ++dim) {
    begin[dim] = std::min(begin[dim], b.begin(dim));
    end[dim] = std::max(end[dim], b.end(dim));
  }
  return Box(begin, end);
}

}  // namespace

BoxIndex::BoxIndex(std::span<const Box> boxes) : boxes_(boxes) {
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (!boxes[i].empty()) order_.push_back(static_cast<std::int64_t>(i));
  }
  if (!order_.empty()) build(0, order_.size());
}

void BoxIndex::build(std::size_t begin, std::size_t end) {
  Node node{box(begin), begin, end, 0};
  for (std::size_t i = begin + 1; i < end; ++i) node.bounds = bounding_box(node.bounds, box(i));
  const std::size_t self = nodes_.size();
  nodes_.push_back(node);
  if (end - begin <= kLeafSize) return;

  // Ties go by the other dims, so that the halves lie apart there.
  const std::size_t dim = widest_dim(node);
  const auto at = [this](std::size_t i) { return order_.begin() + static_cast<std::ptrdiff_t>(i); };
  const std::size_t middle = begin + (end - begin) / 2;
  std::nth_element(at(begin), at(middle), at(end), [&](std::int64_t i, std::int64_t j) {
    const Box& a = boxes_[static_cast<std::size_t>(i)];
    const Box& b = boxes_[static_cast<std::size_t>(j)];
    if (a.begin(dim) != b.begin(dim)) return a.begin(dim) < b.begin(dim);
    return std::lexicographical_compare(a.begin().begin(), a.begin().end(), b.begin().begin(),
                                        b.begin().end());
  });
  build(begin, middle);
  nodes_[self].right = nodes_.size();
  build(middle, end);
}

std::size_t BoxIndex::widest_dim(const Node& node) const {
  std::size_t widest = 0;
  double most = -1;
  for (std::size_t dim = 0; dim < node.bounds.rank(); ++dim) {
    double extents = 0;
    for (std::size_t i = node.begin; i < node.end; ++i) {
      extents += static_cast<double>(box(i).extent(dim));
    }
    const double ways = static_cast<double>(node.bounds.extent(dim)) / extents;
    if (ways > most) {
      most = ways;
      widest = dim;
    }
  }
  return widest;
}

std::vector<std::int64_t> BoxIndex::overlapping(const Box& query) const {
  std::vector<std::int64_t> hits;
  if (nodes_.empty() || query.empty()) return hits;
  std::vector<std::size_t> open{0};
  while (!open.empty()) {
    const std::size_t at = open.back();
    const Node& node = nodes_[at];
    open.pop_back();
    if (!overlap(node.bounds, query)) continue;
    if (node.right != 0) {
      open.push_back(node.right);
      open.push_back(at + 1);
      continue;
    }
    for (std::size_t i = node.begin; i < node.end; ++i) {
      if (overlap(box(i), query)) hits.push_back(order_[i]);
    }
  }
  std::sort(hits.begin(), hits.end());
  return hits;
}

}  // namespace shardwise::detail
