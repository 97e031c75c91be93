#include "shardwise/shard/plan/detail/overlaps.h"

#include <algorithm>
#include <optional>

#include "shardwise/shard/plan/detail/box_stack.h"

namespace shardwise::detail {
namespace {

/// Up to this number of boxes of one side are compared with all of the other side.
constexpr std::size_t kFewPieces = 8;

struct Pair {
  std::uint32_t source, target;
};

/// The smallest box around all non-empty boxes; absent if all are empty.
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
  /// `space` holds all targets.
  Join(const PackedBoxes& sources, const PackedBoxes& targets, const Box& space)
      : sources_(sources, space), targets_(targets, space) {
    visit(space, sources_.all(), targets_.all());
  }

  std::vector<Pair> pairs;

 private:
  void visit(const Box& cell, BoxStack::Range sources, BoxStack::Range targets) {
    if (sources.size() == 0 || targets.size() == 0) return;
    const auto cut = std::min(sources.size(), targets.size()) <= kFewPieces
                         ? std::nullopt
                         : choose_cut(cell, {{sources_, sources}, {targets_, targets}});
    if (!cut) return compare(cell, sources, targets);
    visit_part(below(cell, *cut), sources_.push_below(sources, *cut),
               targets_.push_below(targets, *cut));
    visit_part(above(cell, *cut), sources_.push_above(sources, *cut),
               targets_.push_above(targets, *cut));
  }

  void visit_part(const Box& cell, BoxStack::Range sources, BoxStack::Range targets) {
    visit(cell, sources, targets);
    sources_.drop(sources);
    targets_.drop(targets);
  }

  /// Adds the pairs whose common part begins in the cell, so that each is found once.
  void compare(const Box& cell, BoxStack::Range sources, BoxStack::Range targets) {
    for (std::size_t t = targets.first; t < targets.last; ++t) {
      for (std::size_t s = sources.first; s < sources.last; ++s) {
        if (meet_in(cell, s, t)) {
          pairs.push_back({sources_.number(s), targets_.number(t)});
        }
      }
    }
  }

  bool meet_in(const Box& cell, std::size_t source, std::size_t target) const {
    const std::int64_t *a = sources_.begin_of(source), *a_end = sources_.end_of(source);
    const std::int64_t *b = targets_.begin_of(target), *b_end = targets_.end_of(target);
    bool meet = true;
    for (std::size_t dim = 0; dim < cell.rank(); ++dim) {
      const std::int64_t begin = std::max(a[dim], b[dim]);
      meet &= begin < std::min(a_end[dim], b_end[dim]);
      meet &= begin >= cell.begin(dim);
      meet &= begin < cell.end(dim);
    }
    return meet;
  }

  BoxStack sources_, targets_;
};

}  // namespace

Overlaps::Overlaps(const PackedBoxes& sources, const PackedBoxes& targets)
    : first_(targets.size() + 1, 0) {
  const std::optional<Box> space = bounding_box(targets);
  if (!space) return;
  const Join join(sources, targets, *space);
  for (const Pair& pair : join.pairs) ++first_[pair.target + 1];
  for (std::size_t t = 0; t < targets.size(); ++t) first_[t + 1] += first_[t];
  sources_.resize(join.pairs.size());
  // While they are filled in, first_[t] counts up to where the next target begins.
  for (const Pair& pair : join.pairs) sources_[first_[pair.target]++] = pair.source;
  for (std::size_t t = targets.size(); t > 0; --t) first_[t] = first_[t - 1];
  first_[0] = 0;
}

}  // namespace shardwise::detail
