#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// A hyper-rectangle of global indices: begin[d] <= i[d] < end[d]. It is the part of a tensor that
/// a device holds, a file piece covers or a copy moves.
///
/// Invariant: begin and end have the same rank and begin[d] <= end[d]. Rank 0 is the one element
/// of a scalar. A box with an empty dim holds nothing but still has a place.
///
/// Value type, thread-compatible.
///
///   const Box a({0, 0}, {4, 8}), b({2, 4}, {6, 6});
///   intersect(a, b);                  // [2:4, 4:6]
class Box {
 public:
  /// The one element of a scalar.
  Box() {}  // if defaulted, Box{} would zero all values, also those of dims it does not have

  /// Throws invalid_argument if the invariant would not hold.
  Box(const Index& begin, const Index& end);

  /// All of a tensor. Throws invalid_argument for a negative extent.
  static Box whole(const Shape& shape);
  static Box of(const Shape& shape) = delete;  // Box::whole(shape), or Box(begin, end)

  /// "[0:4, 2:8]", as to_string() writes it, or without the brackets; "[]" is a scalar's. Throws
  /// invalid_argument, also for negative indices.
  static Box parse(std::string_view text);

  std::size_t rank() const { return begin_.size(); }
  const Index& begin() const { return begin_; }
  const Index& end() const { return end_; }
  std::int64_t begin(std::size_t dim) const { return begin_[dim]; }
  std::int64_t end(std::size_t dim) const { return end_[dim]; }
  std::int64_t extent(std::size_t dim) const { return end_[dim] - begin_[dim]; }

  /// Adds a dim after the others. Requires begin <= end and rank() < kMaxRank.
  void push_back(std::int64_t begin, std::int64_t end) {
    begin_.push_back(begin);
    end_.push_back(end);
  }

  /// Moves the box's ends along one dim. Requires dim < rank() and begin <= end.
  void set(std::size_t dim, std::int64_t begin, std::int64_t end) {
    begin_[dim] = begin;
    end_[dim] = end;
  }

  /// The extents.
  Shape shape() const;

  /// Product of the extents. Throws invalid_argument beyond 2^63 - 1.
  std::int64_t num_elements() const;
  bool empty() const;

  /// True if every element of `other` is in this box; true for every empty box of the same rank.
  bool contains(const Box& other) const;

  bool operator==(const Box&) const = default;

 private:
  Index begin_, end_;
};

/// The elements in both boxes; an empty box at an unspecified place if they share none. Throws
/// invalid_argument if the ranks differ.
Box intersect(const Box& a, const Box& b);

/// The same box counted from `origin`: begin and end minus origin. Throws invalid_argument if the
/// ranks differ.
Box relative_to(const Box& box, const Index& origin);

/// Calls body(index) for each index in the box, row-major: the last dim varies fastest.
template <class Body>
void for_each_index(const Box& box, Body&& body) {
  if (box.empty()) return;
  Index at = box.begin();
  for (;;) {
    body(std::as_const(at));
    std::size_t dim = box.rank();
    while (dim > 0 && ++at[dim - 1] == box.end(dim - 1)) {
      --dim;
      at[dim] = box.begin(dim);
    }
    if (dim == 0) return;
  }
}

/// Calls body(box) for boxes that split `whole`, in row-major order, each of at most `most_bytes`.
/// Requires room for one element. A box without elements has no calls.
template <class Body>
void for_each_slab(const Box& whole, std::size_t element_bytes, std::size_t most_bytes,
                   Body&& body) {
  if (whole.empty()) return;
  // A slab is whole in the dims after `cut`, a range in that one, and one index in those before.
  std::size_t cut = whole.rank(), inner_bytes = element_bytes;
  while (cut > 0 && inner_bytes * as_size(whole.extent(cut - 1)) <= most_bytes) {
    --cut;
    inner_bytes *= as_size(whole.extent(cut));
  }
  if (cut == 0) {
    body(whole);
    return;
  }
  const std::size_t dim = cut - 1;
  const auto step = static_cast<std::int64_t>(most_bytes / inner_bytes);
  Box outer;
  for (std::size_t d = 0; d < dim; ++d) outer.push_back(whole.begin(d), whole.end(d));
  for_each_index(outer, [&](const Index& at) {
    Box slab = whole;
    for (std::size_t d = 0; d < dim; ++d) slab.set(d, at[d], at[d] + 1);
    for (std::int64_t begin = whole.begin(dim); begin < whole.end(dim); begin += step) {
      slab.set(dim, begin, std::min(begin + step, whole.end(dim)));
      body(std::as_const(slab));
    }
  });
}

/// "[0:4, 2:8]"; "[]" for a scalar.
std::string to_string(const Box& box);
std::ostream& operator<<(std::ostream& out, const Box& box);

}  // namespace shardwise
