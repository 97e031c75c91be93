#include "shardwise/shard/box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Box, AnswersForEachDim) {
  const Box box({1, 4}, {3, 9});
  EXPECT_EQ(box.rank(), 2u);
  EXPECT_EQ(box.begin(1), 4);
  EXPECT_EQ(box.end(0), 3);
  EXPECT_EQ(box.extent(1), 5);
  EXPECT_EQ(box.shape(), Shape({2, 5}));
  EXPECT_EQ(box.num_elements(), 10);
  EXPECT_EQ(to_string(box), "[1:3, 4:9]");
  EXPECT_EQ(Box::whole({2, 5}), Box({0, 0}, {2, 5}));
}

TEST(Box, OfAScalarHoldsOneElement) {
  EXPECT_EQ(Box().num_elements(), 1);
  EXPECT_FALSE(Box().empty());
  EXPECT_EQ(Box::whole({}), Box());
  EXPECT_TRUE(Box().contains(Box()));
  EXPECT_EQ(intersect(Box(), Box()), Box());
  EXPECT_EQ(to_string(Box()), "[]");
}

TEST(Box, WithAnEmptyDimHasAPlace) {
  const Box box({3, 0}, {3, 5});
  EXPECT_TRUE(box.empty());
  EXPECT_EQ(box.num_elements(), 0);
  EXPECT_NE(box, Box({4, 0}, {4, 5}));
  EXPECT_TRUE(Box({8, 8}, {9, 9}).contains(box));
  EXPECT_FALSE(Box({8}, {9}).contains(box));
}

TEST(Box, RefusesEndsThatDoNotFit) {
  const struct {
    const char* name;
    Index begin, end;
    const char* message;
  } cases[] = {
      {"ranks", {0}, {1, 2}, "1 and 2"},
      {"backwards", {0, 5}, {1, 4}, "dim 1 goes from 5 to 4"},
      {"too long", {INT64_MIN}, {INT64_MAX}, "dim 0"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Box(c.begin, c.end); }),
                HasSubstr(c.message));
  }
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] {
                           Box::whole({4, -1});
                         }),
              HasSubstr("dim 1 goes from 0 to -1"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { intersect(Box(), Box({0}, {1})); }),
              AllOf(HasSubstr("intersect"), HasSubstr("0 and 1")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { relative_to(Box(), {0}); }),
              AllOf(HasSubstr("count a box from an index"), HasSubstr("0 and 1")));
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [] { relative_to(Box({-2}, {0}), {INT64_MAX}); }),
      AllOf(HasSubstr("[-2:0]"), HasSubstr("9223372036854775807")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] {
                           Box::whole({INT64_MAX, 2}).num_elements();
                         }),
              HasSubstr("9223372036854775807"));
}

TEST(Box, ItsIndicesComeRowMajor) {
  const auto indices = [](const Box& box) {
    std::vector<std::string> found;
    for_each_index(box, [&](const Index& at) { found.push_back(to_string(at)); });
    return found;
  };
  EXPECT_THAT(indices(Box({1, 0, 5}, {3, 1, 7})),
              ElementsAre("[1, 0, 5]", "[1, 0, 6]", "[2, 0, 5]", "[2, 0, 6]"));
  EXPECT_THAT(indices(Box()), ElementsAre("[]"));
  EXPECT_THAT(indices(Box({1, 4}, {3, 4})), ElementsAre());
}

TEST(Box, IntersectsAsInTheHeader) {
  EXPECT_EQ(intersect(Box({0, 0}, {4, 8}), Box({2, 4}, {6, 6})), Box({2, 4}, {4, 6}));
  EXPECT_EQ(relative_to(Box({2, 4}, {4, 6}), {2, 1}), Box({0, 3}, {2, 5}));
}

bool holds(const Box& box, std::int64_t i, std::int64_t j) {
  return i >= box.begin(0) && i < box.end(0) && j >= box.begin(1) && j < box.end(1);
}

TEST(Box, AgreesWithElementByElementTests) {
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int64_t> at(0, 5);
  const auto draw = [&] {
    Index begin{at(random), at(random)}, end{at(random), at(random)};
    for (std::size_t dim = 0; dim < 2; ++dim) {
      if (begin[dim] > end[dim]) std::swap(begin[dim], end[dim]);
    }
    return Box(begin, end);
  };
  for (int round = 0; round < 3000; ++round) {
    const Box a = draw(), b = draw(), both = intersect(a, b);
    bool contained = true;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < 6; ++i) {
      for (std::int64_t j = 0; j < 6; ++j) {
        EXPECT_EQ(holds(both, i, j), holds(a, i, j) && holds(b, i, j));
        contained &= holds(a, i, j) || !holds(b, i, j);
        count += holds(a, i, j) ? 1 : 0;
      }
    }
    EXPECT_EQ(a.contains(b), contained) << to_string(a) << to_string(b);
    EXPECT_EQ(a.num_elements(), count);
    EXPECT_EQ(a.empty(), count == 0);
  }
}

TEST(Box, SlabsAreAllElementsInOrder) {
  for (const Shape& shape : {Shape{}, Shape{5}, Shape{3, 4}, Shape{2, 3, 5}, Shape{1, 7, 1, 2}}) {
    for (const std::size_t most : {4u, 8u, 12u, 20u, 40u, 1000u}) {
      std::vector<std::int64_t> numbers;
      const Dims strides = row_major_strides(shape);
      for_each_slab(Box::whole(shape), 4, most, [&](const Box& slab) {
        EXPECT_LE(as_size(slab.num_elements()) * 4, most);
        for_each_index(slab, [&](const Index& at) {
          std::int64_t number = 0;
          for (std::size_t d = 0; d < shape.size(); ++d) number += at[d] * strides[d];
          numbers.push_back(number);
        });
      });
      std::vector<std::int64_t> expected(as_size(num_elements(shape)));
      std::iota(expected.begin(), expected.end(), 0);
      EXPECT_EQ(numbers, expected) << to_string(shape) << " by " << most;
    }
  }
  for_each_slab(Box::whole({3, 0}), 4, 4, [](const Box&) { FAIL(); });
}

}  // namespace
}  // namespace shardwise
