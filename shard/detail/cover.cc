#include "shardwise/shard/detail/cover.h"

#include <algorithm>
#include <compare>
#include <cstddef>

namespace shardwise::detail {
namespace {

/// `weight` at every element of the box, 0 elsewhere.
struct Term {
  const Box* box;
  std::int64_t weight;
};

/// What a sum of terms gains, from here on, at one index of a dim.
struct Face {
  std::int64_t at;
  Term term;
};

std::strong_ordering compare_from(std::size_t dim, const Box& a, const Box& b) {
  for (; dim < a.rank(); ++dim) {
    if (const auto order = a.begin(dim) <=> b.begin(dim); order != 0) return order;
    if (const auto order = a.end(dim) <=> b.end(dim); order != 0) return order;
  }
  return std::strong_ordering::equal;
}

/// Adds up the terms whose boxes agree from `dim` on, and leaves out those that come to nothing.
void collect(std::vector<Term>& terms, std::size_t dim) {
  std::sort(terms.begin(), terms.end(),
            [dim](const Term& a, const Term& b) { return compare_from(dim, *a.box, *b.box) < 0; });
  std::size_t kept = 0;
  for (const Term& term : terms) {
    if (kept > 0 && compare_from(dim, *terms[kept - 1].box, *term.box) == 0) {
      terms[kept - 1].weight += term.weight;
      if (terms[kept - 1].weight == 0) --kept;
    } else {
      terms[kept++] = term;
    }
  }
  terms.resize(kept);
}

/// Finds the first index, over the dims from `dim` on, where the terms do not add up to 0. A sum
/// of boxes is 0 everywhere exactly where, at each index of a dim, the boxes that begin less those
/// that end there are 0 in the remaining dims. Between neighbours most of them cancel at once.
bool find_nonzero(const std::vector<Term>& terms, std::size_t dim, Index& at,
                  std::int64_t& weight) {
  if (dim == at.size()) {
    weight = 0;
    for (const Term& term : terms) weight += term.weight;
    return weight != 0;
  }
  const Box& front = *terms.front().box;
  const bool uncut = std::all_of(terms.begin(), terms.end(), [&](const Term& term) {
    return term.box->begin(dim) == front.begin(dim) && term.box->end(dim) == front.end(dim);
  });
  if (uncut) {
    at[dim] = front.begin(dim);
    return find_nonzero(terms, dim + 1, at, weight);
  }
  std::vector<Face> faces;
  faces.reserve(2 * terms.size());
  for (const Term& term : terms) {
    faces.push_back({term.box->begin(dim), term});
    faces.push_back({term.box->end(dim), {term.box, -term.weight}});
  }
  std::sort(faces.begin(), faces.end(), [](const Face& a, const Face& b) { return a.at < b.at; });
  std::vector<Term> here;
  for (auto face = faces.begin(); face != faces.end();) {
    at[dim] = face->at;
    here.clear();
    for (; face != faces.end() && face->at == at[dim]; ++face) here.push_back(face->term);
    collect(here, dim + 1);
    if (!here.empty() && find_nonzero(here, dim + 1, at, weight)) return true;
  }
  return false;
}

}  // namespace

std::optional<Miscount> find_miscount(std::span<const Box> boxes, const Box& region) {
  std::vector<Term> terms;
  terms.reserve(boxes.size() + 1);
  for (const Box& box : boxes) {
    if (!box.empty()) terms.push_back({&box, 1});
  }
  if (!region.empty()) terms.push_back({&region, -1});
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
