#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/reshape/reshard.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

std::string find(const SpecRules& rules, std::string_view name, std::size_t rank) {
  const auto spec = rules.find(name, rank);
  return spec ? spec->to_string() : "none";
}

TEST(SpecRules, TakeTheFirstPatternThatMatches) {
  const SpecRules rules = SpecRules::parse("w1=-,model; layers/*/bias=model ;*=-");
  EXPECT_EQ(find(rules, "w1", 2), "-,model");
  EXPECT_EQ(find(rules, "layers/0/bias", 1), "model");
  EXPECT_EQ(find(rules, "layers/0/x/bias", 1), "model");
  EXPECT_EQ(find(rules, "layers/0/weight", 2), "-,-");
  EXPECT_EQ(find(rules, "anything", 0), "");
  EXPECT_EQ(find(rules, "anything", 3), "-,-,-");
}

TEST(SpecRules, AreReadFromLinesWithComments) {
  const SpecRules rules = SpecRules::parse(
      "# how the new mesh cuts it\r\n"
      "  w = data , model   # rows and columns\n"
      "\n"
      "a=b=data+model;;;\n"
      "scalar=");
  EXPECT_EQ(find(rules, "w", 2), "data,model");
  EXPECT_EQ(find(rules, "a=b", 1), "data+model");
  EXPECT_EQ(find(rules, "scalar", 0), "");
  EXPECT_EQ(find(rules, "a", 1), "none");
}

TEST(SpecRules, OfNothingMatchNothing) {
  EXPECT_EQ(find(SpecRules(), "w", 1), "none");
  for (const char* text : {"", " ; \n;", "# only a comment"}) {
    EXPECT_EQ(find(SpecRules::parse(text), "w", 1), "none") << text;
  }
}

TEST(SpecRules, MatchTheWholeName) {
  const struct {
    const char *pattern, *name;
    bool matches;
  } cases[] = {
      {"w", "w", true},         {"w", "w1", false},         {"w", "", false},
      {"*", "", true},          {"*", "a/b", true},         {"w?", "w1", true},
      {"w?", "w", false},       {"w?", "w12", false},       {"*w", "w", true},
      {"*w", "bw", true},       {"*w", "wb", false},        {"w*", "wb/c", true},
      {"a*b*c", "abc", true},   {"a*b*c", "aXbYbZc", true}, {"a*b*c", "aXcXb", false},
      {"*a*a*", "aa", true},    {"*a*a*", "a", false},      {"**", "x", true},
      {"?*", "", false},        {"*ab", "aab", true},       {"*?b", "b", false},
      {"l/*/w", "l/1/w", true}, {"l/*/w", "l/w", false},    {"[a]", "a", false},
  };
  for (const auto& c : cases) {
    const SpecRules rules = SpecRules::parse(std::string(c.pattern) + "=-");
    EXPECT_EQ(rules.find(c.name, 1).has_value(), c.matches) << c.pattern << " " << c.name;
  }
}

TEST(SpecRules, MatchLongNamesInReasonableTime) {
  const SpecRules rules = SpecRules::parse("*a*a*a*a*a*a*a*a*a*a*a*b=-");
  EXPECT_FALSE(rules.find(std::string(1024, 'a'), 1).has_value());
}

TEST(SpecRules, NameTheRuleAtFault) {
  const struct {
    const char *text, *message;
  } cases[] = {
      {"w=-; bias", "rule \"bias\" has no \"=\""},
      {"=data", "rule \"=data\" has no pattern"},
      {"w=-\nv=data,,x", "rule \"v=data,,x\": "},
      {"w=data model", "rule \"w=data model\": "},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { SpecRules::parse(c.text); }),
                HasSubstr(c.message));
  }
  const SpecRules rules = SpecRules::parse("w*=data,model");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { rules.find("w1", 1); }),
              HasSubstr("rule \"w*=data,model\" has 2 dims, tensor \"w1\" has 1"));
}

}  // namespace
}  // namespace shardwise
