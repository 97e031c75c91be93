#include "shardwise/shard/plan/detail/shares.h"

#include <algorithm>
#include <compare>
#include <utility>

#include "shardwise/shard/plan/detail/box_stack.h"
#include "shardwise/shard/plan/detail/cover.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kFewBoxes = 16;

/// Orders by giver, then by the box's place in all dims but one.
std::strong_ordering compare_but_for(std::size_t dim, const Share& a, const Share& b) {
  if (a.giver != b.giver) return a.giver <=> b.giver;
  for (std::size_t d = 0; d < a.box.rank(); ++d) {
    if (d == dim) continue;
    if (a.box.begin(d) != b.box.begin(d)) return a.box.begin(d) <=> b.box.begin(d);
    if (a.box.end(d) != b.box.end(d)) return a.box.end(d) <=> b.box.end(d);
  }
  return std::strong_ordering::equal;
}

/// Unites shares of a giver that follow each other along a dim.
void unite_along(std::size_t dim, std::vector<Share>& shares) {
  std::sort(shares.begin(), shares.end(), [dim](const Share& a, const Share& b) {
    const auto order = compare_but_for(dim, a, b);
    return order == 0 ? a.box.begin(dim) < b.box.begin(dim) : order < 0;
  });
  std::size_t kept = 0;
  for (std::size_t i = 1; i < shares.size(); ++i) {
    Share &last = shares[kept], &next = shares[i];
    if (compare_but_for(dim, last, next) == 0 && last.box.end(dim) == next.box.begin(dim)) {
      last.box.set(dim, last.box.begin(dim), next.box.end(dim));
    } else {
      shares[++kept] = next;
    }
  }
  if (!shares.empty()) shares.resize(kept + 1);
}

/// Unites shares that were separated by cutting space, or one box out of another.
void unite(std::size_t rank, std::vector<Share>& shares) {
  for (std::size_t before = 0; before != shares.size();) {
    before = shares.size();
    for (std::size_t dim = rank; dim-- > 0;) unite_along(dim, shares);
  }
}

class Sharing {
 public:
  Sharing(const PackedBoxes& boxes, const Box& region) : boxes_(boxes), stack_(boxes, region) {
    visit(region, stack_.all());
  }

  Shares result;

 private:
  /// The boxes are in order of number.
  void visit(const Box& cell, BoxStack::Range boxes) {
    // Boxes after one that contains the whole cell give nothing.
    for (std::size_t i = boxes.first; i < boxes.last; ++i) {
      if (stack_.covers(i, cell)) boxes.last = i + 1;
    }
    const auto cut = boxes.size() <= kFewBoxes ? std::nullopt : choose_cut(cell, {{stack_, boxes}});
    if (!cut) return one_by_one(cell, boxes);
    const BoxStack::Range low = stack_.push_below(boxes, *cut);
    visit(below(cell, *cut), low);
    stack_.drop(low);
    const BoxStack::Range high = stack_.push_above(boxes, *cut);
    visit(above(cell, *cut), high);
    stack_.drop(high);
  }

  void one_by_one(const Box& cell, BoxStack::Range boxes) {
    std::vector<Box> missing{cell}, rest;
    for (std::size_t i = boxes.first; i < boxes.last && !missing.empty(); ++i) {
      const Box box = boxes_[stack_.number(i)];
      rest.clear();
      for (const Box& part : missing) {
        const Box found = intersect(part, box);
        if (!found.empty()) result.shares.push_back({stack_.number(i), found});
        for (const Box& left : subtract(part, box)) rest.push_back(left);
      }
      missing.swap(rest);
    }
    for (const Box& part : missing) {
      if (!result.missing ||
          std::lexicographical_compare(part.begin().begin(), part.begin().end(),
                                       result.missing->begin(), result.missing->end())) {
        result.missing = part.begin();
      }
    }
  }

  const PackedBoxes& boxes_;
  BoxStack stack_;
};

}  // namespace

Shares share_out(const PackedBoxes& boxes, const Box& region) {
  if (region.empty()) return {};
  Shares result = std::move(Sharing(boxes, region).result);
  unite(region.rank(), result.shares);
  return result;
}

}  // namespace shardwise::detail
