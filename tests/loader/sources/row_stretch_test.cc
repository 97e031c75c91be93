#include "shardwise/loader/detail/row_stretch.h"

#include <gtest/gtest.h>

#include <vector>

namespace shardwise {
namespace {

// The numbers that the box's elements have within the row, in order.
std::vector<std::size_t> elements(const Shape& row, const Box& box) {
  std::vector<std::size_t> numbers;
  for_each_index(box, [&](const Index& at) {
    std::int64_t number = 0;
    for (std::size_t dim = 0; dim < row.size(); ++dim) number = number * row[dim] + at[dim];
    numbers.push_back(static_cast<std::size_t>(number));
  });
  return numbers;
}

void check(const Shape& row, const Box& box) {
  const std::vector<std::size_t> numbers = elements(row, box);
  const bool one = numbers.empty() || numbers.back() - numbers.front() + 1 == numbers.size();
  const auto stretch = detail::one_stretch(row, box);
  if (!stretch) {
    EXPECT_TRUE(!one || numbers.empty()) << to_string(box);
    return;
  }
  EXPECT_TRUE(one) << to_string(box);
  EXPECT_EQ(stretch->count, numbers.size()) << to_string(box);
  if (!numbers.empty()) {
    EXPECT_EQ(stretch->begin, numbers.front()) << to_string(box);
  }
}

// Adds one more dim to the box, in all ways that fit the row.
void check_all(const Shape& row, const Box& box) {
  if (box.rank() == row.size()) return check(row, box);
  const std::int64_t extent = row[box.rank()];
  for (std::int64_t begin = 0; begin <= extent; ++begin) {
    for (std::int64_t end = begin; end <= extent; ++end) {
      Box longer = box;
      longer.push_back(begin, end);
      check_all(row, longer);
    }
  }
}

TEST(RowStretch, IsFoundForExactlyTheBoxesThatAreOne) {
  for (const Shape& row : {Shape{}, Shape{5}, Shape{3, 4}, Shape{1, 3}, Shape{3, 1}, Shape{2, 3, 4},
                           Shape{4, 1, 2}, Shape{2, 1, 3, 2}, Shape{0, 3}, Shape{3, 0}}) {
    check_all(row, Box());
  }
}

}  // namespace
}  // namespace shardwise
