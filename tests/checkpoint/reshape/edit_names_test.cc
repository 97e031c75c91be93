#include "shardwise/reshape/detail/edits/edit_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace shardwise {
namespace {

using namespace reshape_detail;

TEST(EditNames, WildcardsKeepTheirOrder) {
  EXPECT_TRUE(is_wild("a?"));
  EXPECT_FALSE(is_wild("a#"));
  const std::vector<std::string_view> parts{"3", "q"};
  EXPECT_EQ(edited_name("h.*.?", "?.x.*", parts), "q.x.3");
}

TEST(EditNames, ANumberIsWrittenInOneWay) {
  const auto number = [](std::string_view name) {
    const auto match = match_edited("h.#.*", name);
    return match ? static_cast<int>(match->number) : -1;
  };
  EXPECT_EQ(number("h.12.w"), 12);
  EXPECT_EQ(number("h.0.w"), 0);
  for (const char* other : {"h.012.w", "h.-1.w", "h.x.w", "h..w", "g.1.w"}) {
    EXPECT_EQ(number(other), -1) << other;
  }
  const auto match = match_edited("?.#.*", "h.7.a.b");
  ASSERT_TRUE(match);
  EXPECT_THAT(match->wildcards, testing::ElementsAre("h", "a.b"));
  EXPECT_EQ(numbered_name("h.#.w", 7), "h.7.w");
}

}  // namespace
}  // namespace shardwise
