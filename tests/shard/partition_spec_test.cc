#include "shardwise/shard/partition_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PartitionSpec, AnswersAsInTheHeader) {
  const PartitionSpec spec{{"data"}, {}, {"a", "b"}};
  EXPECT_EQ(spec.to_string(), "data,-,a+b");
  EXPECT_EQ(PartitionSpec::parse("data,-,a+b"), spec);
  EXPECT_EQ(spec.rank(), 3u);
  EXPECT_THAT(spec[1], IsEmpty());
  EXPECT_THAT(spec[2], ElementsAre("a", "b"));
  EXPECT_EQ(PartitionSpec(spec.entries()), spec);
}

TEST(PartitionSpec, TextGoesBothWays) {
  for (const char* text : {"", "-", "a", "-,-", "0+1,-,data", "a,b,c,d"}) {
    EXPECT_EQ(PartitionSpec::parse(text).to_string(), text);
  }
  EXPECT_EQ(PartitionSpec::parse("").rank(), 0u);
  EXPECT_EQ(PartitionSpec::parse(" \t").rank(), 0u);
  EXPECT_EQ(PartitionSpec::parse(" data , - ,a + b ").to_string(), "data,-,a+b");
  EXPECT_EQ(PartitionSpec::replicated(2).to_string(), "-,-");
  EXPECT_EQ(PartitionSpec::replicated(0), PartitionSpec());
}

TEST(PartitionSpec, OrderOfAxesMatters) {
  EXPECT_NE(PartitionSpec::parse("a+b"), PartitionSpec::parse("b+a"));
  EXPECT_NE(PartitionSpec::parse("a"), PartitionSpec::parse("a,-"));
}

TEST(PartitionSpec, ParseSaysAtWhichCharacter) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {",", "no axis at character 0"},     {"a,", "no axis at character 2"},
      {"a,,b", "no axis at character 2"},  {"a+", "no axis at character 2"},
      {"a,+b", "no axis at character 2"},  {"a+-", "'-' at character 2"},
      {"a,(b)", "'(' at character 2"},     {"--", "'-' at character 0"},
      {"a, b c", "' ' at character 4"},    {"x=1", "'=' at character 1"},
      {"Q('data')", "'(' at character 1"}, {"a@3", "'@' at character 1"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { PartitionSpec::parse(c.text); }),
                AllOf(HasSubstr(c.message), HasSubstr(quoted(c.text))));
  }
}

}  // namespace
}  // namespace shardwise
