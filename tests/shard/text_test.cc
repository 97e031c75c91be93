#include "shardwise/shard/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

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

TEST(Text, PatternsMatchAsRegularExpressionsOfTheSameMeaning) {
  const auto texts = [](std::string_view letters, std::size_t most) {
    std::vector<std::string> all{""};
    for (std::size_t at = 0; at < all.size() && all[at].size() < most; ++at) {
      for (const char letter : letters) all.push_back(all[at] + letter);
    }
    return all;
  };
  const std::vector<std::string> names = texts("ab", 5);
  for (const std::string& pattern : texts("ab*?", 5)) {
    std::string expression;
    for (const char c : pattern) {
      expression += c == '*' ? "(.*?)" : c == '?' ? "(.)" : std::string(1, c);
    }
    const std::regex regex(expression);
    for (const std::string& name : names) {
      std::smatch expected;
      const auto parts = match_pattern(pattern, name);
      ASSERT_EQ(parts.has_value(), std::regex_match(name, expected, regex))
          << pattern << " " << name;
      if (!parts) continue;
      ASSERT_EQ(parts->size() + 1, expected.size()) << pattern << " " << name;
      for (std::size_t i = 0; i < parts->size(); ++i) {
        ASSERT_EQ((*parts)[i], expected[i + 1].str()) << pattern << " " << name;
      }
    }
  }
}

TEST(HumanBytes, HasTheLargestUnitBelow) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(std::size_t{1} << 50), "1.00 PiB");
}

TEST(TextTable, PutsNumbersToTheRightAndWordsToTheLeft) {
  TextTable table({"bytes", "name", "cut"});
  table.add({"12.00 KiB", "w", "data,-"});
  table.add({"1 B", "\xc3\xa9t\xc3\xa9", ""});
  EXPECT_EQ(table.to_string(),
            "    bytes  name  cut\n"
            "12.00 KiB  w     data,-\n"
            "      1 B  \xc3\xa9t\xc3\xa9\n");
}

TEST(TextTable, ACellOfMoreThan120CharactersWidensItsOwnRowAlone) {
  TextTable table({"name", "bytes"});
  table.add({std::string(120, 'a'), "1 B"});
  table.add({std::string(121, 'b'), "10 B"});
  table.add({"w", std::string(130, '9')});
  EXPECT_EQ(table.to_string(), "name" + std::string(116, ' ') + "  bytes\n" +  //
                                   std::string(120, 'a') + "    1 B\n" +       //
                                   std::string(121, 'b') + "   10 B\n" +       //
                                   "w" + std::string(119, ' ') + "  " + std::string(130, '9') +
                                   "\n");
}

}  // namespace
}  // namespace shardwise
