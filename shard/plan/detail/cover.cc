#include "shardwise/shard/plan/detail/cover.h"

#include <algorithm>
#include <compare>
#include <cstddef>

#include "shardwise/shard/plan/detail/box_stack.h"

namespace shardwise::detail {
namespace {

__extension__ using Wide = __int128;

Wide volume(std::size_t rank, const std::int64_t* begin, const std::int64_t* end) {
  Wide elements = 1;
  for (std::size_t dim = 0; dim < rank; ++dim) elements *= end[dim] - begin[dim];
  return elements;
}

enum class Answer { no, yes, unknown };

/// Examines space part by part: the boxes of a part tile it if they are disjoint and hold as many
/// elements as the part.
class TilingCheck {
 public:
  TilingCheck(const PackedBoxes& boxes, const Box& region)
      : region_(region), stack_(boxes, region) {}

  Answer answer() { return visit(region_, stack_.all()); }

 private:
  Answer visit(const Box& cell, BoxStack::Range boxes) {
    if (boxes.size() <= kFew) return compare(cell, boxes);
    const auto cut = choose_cut(cell, {{stack_, boxes}});
    if (!cut) return compare(cell, boxes);
    const BoxStack::Range low = stack_.push_below(boxes, *cut);
    const Answer found = visit(below(cell, *cut), low);
    stack_.drop(low);
    if (found != Answer::yes) return found;
    const BoxStack::Range high = stack_.push_above(boxes, *cut);
    const Answer more = visit(above(cell, *cut), high);
    stack_.drop(high);
    return more;
  }

  /// Compares every pair of boxes, unless there are too many.
  Answer compare(const Box& cell, BoxStack::Range boxes) const {
    if (boxes.size() > kMany) return Answer::unknown;
    const std::size_t rank = cell.rank();
    Wide held = 0;
    for (std::size_t i = boxes.first; i < boxes.last; ++i) {
      Index begin = cell.begin(), end = cell.end();
      for (std::size_t dim = 0; dim < rank; ++dim) {
        begin[dim] = std::max(begin[dim], stack_.begin_of(i)[dim]);
        end[dim] = std::min(end[dim], stack_.end_of(i)[dim]);
      }
      held += volume(rank, begin.begin(), end.begin());
      for (std::size_t j = boxes.first; j < i; ++j) {
        if (overlap(rank, stack_.begin_of(i), stack_.end_of(i), stack_.begin_of(j),
                    stack_.end_of(j))) {
          return Answer::no;
        }
      }
    }
    return held == volume(rank, cell.begin().begin(), cell.end().begin()) ? Answer::yes
                                                                          : Answer::no;
  }

  static constexpr std::size_t kFew = 12;
  static constexpr std::size_t kMany = 256;

  const Box& region_;
  BoxStack stack_;
};

/// `weight` at every element of a box, 0 elsewhere.
struct Term {
  const std::int64_t* ends;  // begin of each dim, then end of each dim
  std::int64_t weight;
};

/// The change of a sum of terms at one index of a dim; it holds from there on.
struct Face {
  std::int64_t at;
  Term term;
};

std::strong_ordering compare_from(std::size_t dim, std::size_t rank, const Term& a, const Term& b) {
  for (; dim < rank; ++dim) {
    if (const auto order = a.ends[dim] <=> b.ends[dim]; order != 0) return order;
    if (const auto order = a.ends[rank + dim] <=> b.ends[rank + dim]; order != 0) return order;
  }
  return std::strong_ordering::equal;
}

/// Adds up the terms whose boxes agree from `dim` on, and leaves out sums of 0.
void collect(std::vector<Term>& terms, std::size_t dim, std::size_t rank) {
  std::sort(terms.begin(), terms.end(), [dim, rank](const Term& a, const Term& b) {
    return compare_from(dim, rank, a, b) < 0;
  });
  std::size_t kept = 0;
  for (const Term& term : terms) {
    if (kept > 0 && compare_from(dim, rank, terms[kept - 1], term) == 0) {
      terms[kept - 1].weight += term.weight;
      if (terms[kept - 1].weight == 0) --kept;
    } else {
      terms[kept++] = term;
    }
  }
  terms.resize(kept);
}

/// Finds the first index, over the dims from `dim` on, where the terms do not add up to 0. A sum of
/// boxes is 0 everywhere if and only if, at each index of a dim, the boxes that begin there minus
/// those that end there are 0 in the remaining dims. Most boxes cancel with a neighbour at once.
bool find_nonzero(const std::vector<Term>& terms, std::size_t dim, Index& at,
                  std::int64_t& weight) {
  if (dim == at.size()) {
    weight = 0;
    for (const Term& term : terms) weight += term.weight;
    return weight != 0;
  }
  const std::size_t rank = at.size();
  const std::int64_t* front = terms.front().ends;
  const bool uncut = std::all_of(terms.begin(), terms.end(), [&](const Term& term) {
    return term.ends[dim] == front[dim] && term.ends[rank + dim] == front[rank + dim];
  });
  if (uncut) {
    at[dim] = front[dim];
    return find_nonzero(terms, dim + 1, at, weight);
  }
  std::vector<Face> faces;
  faces.reserve(2 * terms.size());
  for (const Term& term : terms) {
    faces.push_back({term.ends[dim], term});
    faces.push_back({term.ends[rank + dim], {term.ends, -term.weight}});
  }
  std::sort(faces.begin(), faces.end(), [](const Face& a, const Face& b) { return a.at < b.at; });
  std::vector<Term> here;
  for (auto face = faces.begin(); face != faces.end();) {
    at[dim] = face->at;
    here.clear();
    for (; face != faces.end() && face->at == at[dim]; ++face) here.push_back(face->term);
    collect(here, dim + 1, rank);
    if (!here.empty() && find_nonzero(here, dim + 1, at, weight)) return true;
  }
  return false;
}

}  // namespace

bool is_tiling(const PackedBoxes& boxes, const Box& region) {
  if (region.empty()) return true;
  switch (TilingCheck(boxes, region).answer()) {
    case Answer::no:
      return false;
    case Answer::yes:
      return true;
    case Answer::unknown:
      break;
  }
  return !find_miscount(boxes, region);
}

std::optional<Miscount> find_miscount(const PackedBoxes& boxes, const Box& region) {
  std::vector<Term> terms;
  terms.reserve(boxes.size() + 1);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (!boxes.empty_at(i)) terms.push_back({boxes.begin_of(i), 1});
  }
  PackedBoxes whole(region.rank());
  whole.push_back(region);
  if (!region.empty()) terms.push_back({whole.begin_of(0), -1});
  Miscount found{region.begin(), 0};
  if (terms.empty() || !find_nonzero(terms, 0, found.element, found.times)) return std::nullopt;
  found.times += 1;
  return found;
}

std::vector<Box> subtract(const Box& box, const Box& hole) {
  const Box inner = intersect(box, hole);
  if (inner.empty()) return {box};
  std::vector<Box> rest;
  Index begin = box.begin(), end = box.end();
  const auto add = [&](std::size_t dim, std::int64_t from, std::int64_t to) {
    if (from == to) return;
    Index part_begin = begin, part_end = end;
    part_begin[dim] = from;
    part_end[dim] = to;
    rest.emplace_back(part_begin, part_end);
  };
  for (std::size_t dim = 0; dim < box.rank(); ++dim) {
    add(dim, begin[dim], inner.begin(dim));
    add(dim, inner.end(dim), end[dim]);
    begin[dim] = inner.begin(dim);
    end[dim] = inner.end(dim);
  }
  return rest;
}

}  // namespace shardwise::detail
