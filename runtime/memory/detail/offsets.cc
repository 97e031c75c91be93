#include "shardwise/runtime/memory/detail/offsets.h"

#include <algorithm>
#include <numeric>

namespace shardwise {

std::size_t aligned_offset(std::size_t bytes) {
  constexpr std::size_t kStep = 64;
  return (bytes + kStep - 1) / kStep * kStep;
}

namespace {

/// Placed lifetimes, by offset: a treap whose nodes summarise their subtrees, so a search skips
/// those that are needed at other times or leave no gap.
class Placed {
 public:
  explicit Placed(std::size_t count) { nodes_.reserve(count); }

  void add(std::size_t offset, std::size_t bytes, const Lifetime& life) {
    // Any fixed sequence that looks random keeps the tree flat.
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    Node node;
    node.priority = random_ >> 32;
    node.begin = offset;
    node.end = offset + bytes;
    node.first = life.first;
    node.last = life.last;
    nodes_.push_back(node);
    const auto added = static_cast<Index>(nodes_.size()) - 1;
    sum_up(added);
    root_ = insert(root_, added);
  }

  /// The place for these bytes among values that are needed in some of the same steps: the smallest
  /// gap that is large enough, or the place after all of them.
  std::size_t find(std::size_t bytes, const Lifetime& life) {
    search_ = {bytes, life.first, life.last, 0, 0, SIZE_MAX};
    walk(root_);
    return search_.best_gap == SIZE_MAX ? search_.end : search_.best;
  }

  std::size_t visits() const { return visits_; }

 private:
  using Index = std::int32_t;
  static constexpr Index kNone = -1;

  struct Node {
    std::size_t begin = 0, end = 0;
    std::int64_t first = 0, last = 0;
    std::uint64_t priority = 0;
    Index left = kNone, right = kNone;

    // Summary of this node and all below it.
    std::size_t low = 0, high = 0;  ///< the lowest begin, the highest end
    std::size_t largest_gap = 0;    ///< between them, if all were needed at the same time
    std::int64_t least_first = 0, most_first = 0, least_last = 0, most_last = 0;
  };

  struct Search {
    std::size_t bytes;
    std::int64_t first, last;
    std::size_t end;  ///< of the nodes passed so far that count
    std::size_t best, best_gap;
  };

  Node& at(Index i) { return nodes_[static_cast<std::size_t>(i)]; }

  static void append_gap(Node& sum, std::size_t high, std::size_t begin) {
    if (begin > high) sum.largest_gap = std::max(sum.largest_gap, begin - high);
  }

  void sum_up(Index i) {
    Node& node = at(i);
    node.low = node.begin;
    node.high = node.end;
    node.largest_gap = 0;
    node.least_first = node.most_first = node.first;
    node.least_last = node.most_last = node.last;
    if (node.left != kNone) {
      const Node& left = at(node.left);
      node.largest_gap = left.largest_gap;
      append_gap(node, left.high, node.begin);
      node.low = left.low;
      include(node, left);
    }
    if (node.right != kNone) {
      const Node& right = at(node.right);
      node.largest_gap = std::max(node.largest_gap, right.largest_gap);
      append_gap(node, node.high, right.low);
      include(node, right);
    }
  }

  static void include(Node& node, const Node& below) {
    node.high = std::max(node.high, below.high);
    node.least_first = std::min(node.least_first, below.least_first);
    node.most_first = std::max(node.most_first, below.most_first);
    node.least_last = std::min(node.least_last, below.least_last);
    node.most_last = std::max(node.most_last, below.most_last);
  }

  /// Inserts `added` after the nodes that have the same offset.
  Index insert(Index tree, Index added) {
    if (tree == kNone) return added;
    if (at(added).priority > at(tree).priority) {
      split(tree, at(added).begin, at(added).left, at(added).right);
      sum_up(added);
      return added;
    }
    if (at(added).begin < at(tree).begin) {
      const Index left = insert(at(tree).left, added);
      at(tree).left = left;
    } else {
      const Index right = insert(at(tree).right, added);
      at(tree).right = right;
    }
    sum_up(tree);
    return tree;
  }

  /// Splits into nodes that begin at `offset` or before, and the others.
  void split(Index tree, std::size_t offset, Index& before, Index& after) {
    if (tree == kNone) {
      before = after = kNone;
      return;
    }
    Index rest = kNone;
    if (at(tree).begin <= offset) {
      split(at(tree).right, offset, rest, after);
      at(tree).right = rest;
      before = tree;
    } else {
      split(at(tree).left, offset, before, rest);
      at(tree).left = rest;
      after = tree;
    }
    sum_up(tree);
  }

  void walk(Index i) {
    if (i == kNone) return;
    ++visits_;
    const Node& node = at(i);
    if (node.most_last < search_.first || node.least_first > search_.last) return;
    const bool all_count = node.least_last >= search_.first && node.most_first <= search_.last;
    const bool gap_before = node.low >= search_.end + search_.bytes;
    if (all_count && !gap_before && node.largest_gap < search_.bytes) {
      search_.end = std::max(search_.end, node.high);
      return;
    }
    walk(node.left);
    if (node.last >= search_.first && node.first <= search_.last) {
      if (node.begin >= search_.end + search_.bytes &&
          node.begin - search_.end < search_.best_gap) {
        search_.best = search_.end;
        search_.best_gap = node.begin - search_.end;
      }
      search_.end = std::max(search_.end, node.end);
    }
    walk(node.right);
  }

  std::vector<Node> nodes_;
  Index root_ = kNone;
  std::uint64_t random_ = 1;
  std::size_t visits_ = 0;
  Search search_ = {};
};

std::vector<std::size_t> largest_first(std::span<const Lifetime> lifetimes) {
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lifetimes[a].bytes > lifetimes[b].bytes;
  });
  return order;
}

}  // namespace

Offsets plan_offsets(std::span<const Lifetime> lifetimes) {
  const std::vector<std::size_t> order = largest_first(lifetimes);
  Offsets result;
  result.offsets.assign(lifetimes.size(), 0);
  Placed placed(lifetimes.size());
  for (const std::size_t one : order) {
    const std::size_t bytes = aligned_offset(lifetimes[one].bytes);
    if (bytes == 0) continue;
    const std::size_t offset = placed.find(bytes, lifetimes[one]);
    result.offsets[one] = offset;
    result.total_bytes = std::max(result.total_bytes, offset + bytes);
    placed.add(offset, bytes, lifetimes[one]);
  }
  result.visits = placed.visits();
  return result;
}

std::vector<Hosted> plan_hosted(std::span<const Lifetime> hosts,
                                std::span<const Lifetime> lifetimes) {
  std::vector<Placed> placed;
  for (const Lifetime& host : hosts) {
    placed.emplace_back(1);
    placed.back().add(0, host.bytes, host);
  }
  std::vector<Hosted> result(lifetimes.size());
  for (const std::size_t one : largest_first(lifetimes)) {
    const Lifetime& life = lifetimes[one];
    const std::size_t bytes = aligned_offset(life.bytes);
    if (bytes == 0) continue;
    for (std::size_t h = 0; h < hosts.size() && result[one].host < 0; ++h) {
      // A lifetime that overlaps the host's own would only fit after all of it.
      if (life.bytes > hosts[h].bytes || life.last >= hosts[h].first) continue;
      const std::size_t offset = placed[h].find(bytes, life);
      if (offset + life.bytes > hosts[h].bytes) continue;
      result[one] = {static_cast<std::int64_t>(h), offset};
      placed[h].add(offset, bytes, life);
    }
  }
  return result;
}

}  // namespace shardwise
