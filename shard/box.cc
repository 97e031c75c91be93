#include "shardwise/shard/box.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <string_view>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

void check_same_rank(const char* operation, std::size_t a, std::size_t b) {
  if (a == b) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: the ranks are {} and {}; needed are equal ranks", operation, a, b));
}

}  // namespace

Box::Box(const Index& begin, const Index& end) : begin_(begin), end_(end) {
  check_same_rank("make a box", begin.size(), end.size());
  for (std::size_t dim = 0; dim < rank(); ++dim) {
    std::int64_t extent = 0;
    if (__builtin_sub_overflow(end[dim], begin[dim], &extent) || extent < 0) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("make a box: dim {} goes from {} to {}; needed is begin <= end, at most "
                      "2^63 - 1 apart",
                      dim, begin[dim], end[dim]));
    }
  }
}

Box Box::whole(const Shape& shape) {
  // Built in place: copying values that were just written would wait for the writes.
  Box box;
  for (const std::int64_t extent : shape) {
    if (extent < 0) Box(Index::filled(shape.size(), 0), shape);  // throws
    box.push_back(0, extent);
  }
  return box;
}

Shape Box::shape() const {
  Shape shape = end_;
  for (std::size_t dim = 0; dim < rank(); ++dim) shape[dim] -= begin_[dim];
  return shape;
}

Box Box::parse(std::string_view text) {
  const auto refuse = [text](std::string_view problem) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("box \"{}\": {}; needed is begin:end of each dim, as in \"[0:4, 2:8]\"",
                            text, problem));
  };
  std::string_view inner = trim(text);
  if (inner.starts_with('[') != inner.ends_with(']')) refuse("a bracket has no other one");
  if (inner.starts_with('[')) inner = trim(inner.substr(1, inner.size() - 2));
  Box box;
  if (inner.empty()) return box;
  for (const std::string_view part : split(inner, ',')) {
    const std::size_t colon = std::min(part.find(':'), part.size());
    const std::optional<std::int64_t> begin = parse_count(trim(part.substr(0, colon)));
    const std::optional<std::int64_t> end =
        parse_count(trim(part.substr(std::min(colon + 1, part.size()))));
    if (!begin || !end || *end < *begin) refuse(fmt::format("found \"{}\"", trim(part)));
    if (box.rank() == kMaxRank) refuse(fmt::format("it has more than {} dims", kMaxRank));
    box.push_back(*begin, *end);
  }
  return box;
}

std::int64_t Box::num_elements() const {
  std::int64_t product = 1;
  bool overflow = false;
  for (std::size_t dim = 0; dim < rank(); ++dim) {
    overflow |= __builtin_mul_overflow(product, extent(dim), &product);
  }
  return overflow ? shardwise::num_elements(shape()) : product;  // 0 if a dim is empty
}

bool Box::empty() const {
  for (std::size_t dim = 0; dim < rank(); ++dim) {
    if (begin_[dim] == end_[dim]) return true;
  }
  return false;
}

bool Box::contains(const Box& other) const {
  if (other.rank() != rank()) return false;
  if (other.empty()) return true;
  for (std::size_t dim = 0; dim < rank(); ++dim) {
    if (other.begin_[dim] < begin_[dim] || other.end_[dim] > end_[dim]) return false;
  }
  return true;
}

Box intersect(const Box& a, const Box& b) {
  check_same_rank("intersect two boxes", a.rank(), b.rank());
  Box both = a;
  for (std::size_t dim = 0; dim < a.rank(); ++dim) {
    const std::int64_t begin = std::max(a.begin(dim), b.begin(dim));
    both.set(dim, begin, std::max(begin, std::min(a.end(dim), b.end(dim))));
  }
  return both;
}

Box relative_to(const Box& box, const Index& origin) {
  check_same_rank("count a box from an index", box.rank(), origin.size());
  Index begin = box.begin(), end = box.end();
  for (std::size_t dim = 0; dim < box.rank(); ++dim) {
    if (__builtin_sub_overflow(begin[dim], origin[dim], &begin[dim]) ||
        __builtin_sub_overflow(end[dim], origin[dim], &end[dim])) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("count a box from an index: {} from {}; needed is a result of 64 bits",
                      to_string(box), to_string(origin)));
    }
  }
  return Box(begin, end);
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t dim = 0; dim < box.rank(); ++dim) {
    text += fmt::format("{}{}:{}", dim == 0 ? "" : ", ", box.begin(dim), box.end(dim));
  }
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Box& box) { return out << to_string(box); }

}  // namespace shardwise
