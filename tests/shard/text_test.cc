#include "shardwise/shard/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardwise {
namespace {

using ::testing::ElementsAre;

TEST(Text, TrimsBlanksAtBothEnds) {
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
  EXPECT_EQ(trim(""), "");
}

TEST(Text, SplitsIntoOnePartMoreThanSeparators) {
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_THAT(split("a", ','), ElementsAre("a"));
  EXPECT_THAT(split(",a,,b ", ','), ElementsAre("", "a", "", "b "));
}

TEST(Text, ParsesCountsAndNothingElse) {
  EXPECT_EQ(parse_count("0"), 0);
  EXPECT_EQ(parse_count("0042"), 42);
  EXPECT_EQ(parse_count("9223372036854775807"), 9223372036854775807);
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "1x", "0x1", "1.0", "9223372036854775808"}) {
    EXPECT_EQ(parse_count(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace shardwise
