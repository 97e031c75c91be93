#include "shardwise/shard/detail/overlaps.h"

#include <algorithm>
#include <optional>

#include "shardwise/shard/detail/box_stack.h"

namespace shardwise::detail {
namespace {

/// Up to so many boxes of one side are compared with all of the other side.
constexpr std::size_t kFew = 8;

struct Pair {
  std::uint32_t source, target;
};

/// What holds all boxes that are not empty; absent where all are.
std::optional<Box> bounding_box(const PackedBoxes& boxes) {
  std::optional<Box> bounds;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (boxes.empty_at(i)) continue;
    if (!bounds) bounds = boxes[i];
    for (std::size_t dim = 0; dim < boxes.rank(); ++dim) {
      bounds->set(dim, std::min(bounds->begin(dim), boxes.begin_of(i)[dim]),
                  std::max(bounds->end(dim), boxes.end_of(i)[dim]));
    }
  }
  return bounds;
}

class Join {
 public:
  Join(const PackedBoxes& sources, const PackedBoxes& targets)
      : rank_(targets.rank()), sources_(rank_), targets_(rank_) {
    const std::optional<Box> space = bounding_box(targets);
    if (!space) return;
    fill(sources_, sources, *space);
    fill(targets_, targets, *space);
    visit(*space, sources_.all(), targets_.all());
  }

  std::vector<Pair> pairs;

 private:
  void fill(BoxStack& stack, const PackedBoxes& boxes, const Box& space) {
    stack.reserve(2 * boxes.size());
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      const std::int64_t *begin = boxes.begin_of(i), *end = boxes.end_of(i);
      if (!boxes.empty_at(i) &&
          overlap(rank_, begin, end, space.begin().begin(), space.end().begin())) {
        stack.push(static_cast<std::int64_t>(i), begin, end);
      }
    }
  }

  void visit(const Box& cell, BoxStack::Range sources, BoxStack::Range targets) {
    if (sources.size() == 0 || targets.size() == 0) return;
    const auto cut = std::min(sources.size(), targets.size()) <= kFew
                         ? std::nullopt
                         : choose_cut(cell, {{sources_, sources}, {targets_, targets}});
    if (!cut) return compare(cell, sources, targets);
    const BoxStack::Range low_sources = sources_.push_below(sources, *cut);
    const BoxStack::Range low_targets = targets_.push_below(targets, *cut);
    const BoxStack::Range high_sources = sources_.push_above(sources, *cut);
    const BoxStack::Range high_targets = targets_.push_above(targets, *cut);
    const std::size_t before = sources.size() + targets.size();
    const std::size_t after =
        low_sources.size() + low_targets.size() + high_sources.size() + high_targets.size();
    if (2 * after > 3 * before) {
      // Most boxes lie on both sides: cutting on would make work, not save it.
      compare(cell, sources, targets);
    } else {
      // What is pushed last is dropped first.
      visit(above(cell, *cut), high_sources, high_targets);
      sources_.drop(high_sources);
      targets_.drop(high_targets);
      visit(below(cell, *cut), low_sources, low_targets);
    }
    sources_.drop(low_sources);
    targets_.drop(low_targets);
  }

  /// Adds the pairs whose common part begins in the cell: so each is found once.
  void compare(const Box& cell, BoxStack::Range sources, BoxStack::Range targets) {
    for (std::size_t t = targets.first; t < targets.last; ++t) {
      for (std::size_t s = sources.first; s < sources.last; ++s) {
        if (meet_in(cell, s, t)) {
          pairs.push_back({static_cast<std::uint32_t>(sources_.number(s)),
                           static_cast<std::uint32_t>(targets_.number(t))});
        }
      }
    }
  }

  bool meet_in(const Box& cell, std::size_t source, std::size_t target) const {
    const std::int64_t *a = sources_.begin_of(source), *a_end = sources_.end_of(source);
    const std::int64_t *b = targets_.begin_of(target), *b_end = targets_.end_of(target);
    bool meet = true;
    for (std::size_t dim = 0; dim < rank_; ++dim) {
      const std::int64_t begin = std::max(a[dim], b[dim]);
      meet &= begin < std::min(a_end[dim], b_end[dim]);
      meet &= begin >= cell.begin(dim);
      meet &= begin < cell.end(dim);
    }
    return meet;
  }

  std::size_t rank_;
  BoxStack sources_, targets_;
};

}  // namespace

Overlaps::Overlaps(const PackedBoxes& sources, const PackedBoxes& targets)
    : first_(targets.size() + 1, 0) {
  const Join join(sources, targets);
  for (const Pair& pair : join.pairs) ++first_[pair.target + 1];
  for (std::size_t t = 0; t < targets.size(); ++t) first_[t + 1] += first_[t];
  sources_.resize(join.pairs.size());
  std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
  for (const Pair& pair : join.pairs) sources_[next[pair.target]++] = pair.source;
}

}  // namespace shardwise::detail
