#include "shardwise/shard/dims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kHuge = std::int64_t{1} << 62;

TEST(Dims, HoldsWhatItIsGiven) {
  Shape shape{8, 3};
  EXPECT_EQ(shape.size(), 2u);
  EXPECT_EQ(num_elements(shape), 24);
  shape.push_back(5);
  shape[0] = 7;
  EXPECT_THAT(shape, ElementsAre(7, 3, 5));
  EXPECT_THAT(Dims::filled(3, -1), ElementsAre(-1, -1, -1));
  EXPECT_TRUE(Dims().empty());
}

TEST(Dims, ComparesValuesAndRank) {
  EXPECT_EQ(Dims({1, 2}), Dims({1, 2}));
  EXPECT_NE(Dims({1, 2}), Dims({1, 3}));
  EXPECT_NE(Dims({1, 2}), Dims({1, 2, 0}));
  EXPECT_NE(Dims({0}), Dims({0, 0}));
}

TEST(Dims, RefusesMoreThanTheGreatestRank) {
  Dims dims = Dims::filled(kMaxRank, 1);
  EXPECT_EQ(dims.size(), kMaxRank);
  const std::vector<std::int64_t> values(kMaxRank + 1, 1);
  const auto refused = AllOf(HasSubstr("17"), HasSubstr("16"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { dims.push_back(1); }), refused);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Dims{std::span(values)}; }), refused);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Dims::filled(kMaxRank + 1, 0); }),
              refused);
}

TEST(Dims, CountsElementsAndBytes) {
  EXPECT_EQ(num_elements({}), 1);
  EXPECT_EQ(num_elements({5, 0, 3}), 0);
  EXPECT_EQ(num_elements({kHuge, kHuge, 0}), 0);
  EXPECT_EQ(num_elements({kHuge, 1}), kHuge);
  EXPECT_EQ(num_elements({INT64_MAX}), INT64_MAX);
  EXPECT_EQ(num_bytes({8, 3}, 4), 96u);
  EXPECT_EQ(num_bytes({kHuge}, 2), std::size_t{1} << 63);
}

TEST(Dims, RefusesCountsThatOverflow) {
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] {
                           num_elements({3, -2});
                         }),
              AllOf(HasSubstr("-2"), HasSubstr("[3, -2]")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] {
                           num_elements({0, -2});
                         }),
              HasSubstr("-2"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] {
                           num_elements({kHuge, 2});
                         }),
              HasSubstr("[4611686018427387904, 2]"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { num_bytes({kHuge}, 4); }),
              AllOf(HasSubstr("[4611686018427387904]"), HasSubstr("4 bytes")));
}

TEST(Dims, CutToBytesCutsTheOutermostDimsFirst) {
  EXPECT_EQ(cut_to_bytes({8, 3}, 4, 96), Shape({8, 3}));
  EXPECT_EQ(cut_to_bytes({8, 3}, 4, 95), Shape({7, 3}));
  EXPECT_EQ(cut_to_bytes({8, 3}, 4, 12), Shape({1, 3}));
  EXPECT_EQ(cut_to_bytes({8, 3}, 4, 11), Shape({1, 2}));
  EXPECT_EQ(cut_to_bytes({8, 3}, 4, 1), Shape({1, 1}));
  EXPECT_EQ(cut_to_bytes({8, 0}, 4, 1), Shape({8, 0}));
  EXPECT_EQ(cut_to_bytes({}, 4, 1), Shape());
}

TEST(Dims, StridesCountElementsToTheNextIndex) {
  EXPECT_THAT(row_major_strides({2, 3, 5}), ElementsAre(15, 5, 1));
  EXPECT_THAT(row_major_strides({7}), ElementsAre(1));
  EXPECT_TRUE(row_major_strides({}).empty());
  EXPECT_THAT(row_major_strides({kHuge, 0, kHuge}), ElementsAre(0, 0, 0));
}

TEST(Dims, TextGoesBothWays) {
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{8, 3}, Shape{1, 0, INT64_MAX}}) {
    EXPECT_EQ(parse_shape(to_string(shape)), shape);
  }
  EXPECT_EQ(to_string(Shape{8, 3}), "[8, 3]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(parse_shape(" 8 ,3"), Shape({8, 3}));
  EXPECT_EQ(parse_shape("[8,3]"), Shape({8, 3}));
  EXPECT_EQ(parse_shape(""), Shape{});
  EXPECT_EQ(parse_shape("[ ]"), Shape{});
}

TEST(Dims, ParseRefusesWhatIsNotAShape) {
  const struct {
    const char* text;
    const char* culprit;
  } cases[] = {
      {"8,-3", "\"-3\""}, {"8,,3", "\"\""},   {"8,", "\"\""},
      {"[8", "\"[8\""},   {"8]", "\"8]\""},   {"8.0", "\"8.0\""},
      {"8x3", "\"8x3\""}, {"[[8]]", "[8]\""}, {"9223372036854775808", "\"9223372036854775808\""},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { parse_shape(c.text); }),
                AllOf(HasSubstr(c.culprit), HasSubstr(c.text)));
  }
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] { parse_shape("1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"); }),
              HasSubstr("17"));
}

}  // namespace
}  // namespace shardwise
