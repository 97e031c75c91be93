#include "shardwise/checkpoint/detail/format/step_name.h"

#include <gtest/gtest.h>

namespace shardwise::detail {
namespace {

TEST(StepName, GoesBothWays) {
  const struct {
    StepName name;
    const char* text;
  } cases[] = {
      {{0, 1}, "step-00000000"},
      {{100, 1}, "step-00000100"},
      {{100, 2}, "step-00000100.g2"},
      {{99'999'999, 12}, "step-99999999.g12"},
      {{100'000'000, 1}, "step-100000000"},
      {{1, 1, 1}, "step-1"},
      {{0, 1, 1}, "step-0"},
      {{100, 3, 7}, "step-0000100.g3"},
      {{100, 1, 9}, "step-000000100"},
      {{INT64_MAX, INT64_MAX}, "step-9223372036854775807.g9223372036854775807"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_EQ(to_string(c.name), c.text);
    const auto name = parse_step_name(c.text);
    ASSERT_TRUE(name.has_value());
    EXPECT_EQ(name->step, c.name.step);
    EXPECT_EQ(name->generation, c.name.generation);
    EXPECT_EQ(to_string(*name), c.text);
  }
}

TEST(StepName, IsNothingElse) {
  for (const char* text : {"", "step-", "step-00000100.g1", "step-00000100.g0", "step-00000100.g-2",
                           "step-00000100.g02", "step-00000100.g", "step-00000100.g2x",
                           "step-00000100 ", "step--0000001", "step-+0000001", "Step-00000100",
                           ".step-00000100.0123456789abcdef0123456789abcdef.tmp",
                           "step-00000100.tmp", "step-9223372036854775808",
                           "step-00000100.g9223372036854775808", ".trash-step-00000100.0"}) {
    EXPECT_FALSE(parse_step_name(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace shardwise::detail
