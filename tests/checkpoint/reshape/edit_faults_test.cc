#include "shardwise/reshape/detail/edits/edit_faults.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string_view>

#include "testing/errors.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

TEST(EditFaults, AreOneErrorOfABoundedLength) {
  constexpr std::array<std::string_view, 2> kNames{"layers.0.weight", "layers.0.bias"};
  reshape_detail::EditFaults faults(kNames);
  EXPECT_NO_THROW(faults.throw_if_any("test"));
  EXPECT_TRUE(faults.has_wildcards_of("rename", "a*=b*", "a*", "b*"));
  EXPECT_TRUE(faults.has_wildcards_of("rename", "a*=b", "a*", "b"));
  EXPECT_TRUE(faults.empty());
  EXPECT_FALSE(faults.has_wildcards_of("split", "a*=b", "a*", "b", true));
  faults.check_used("cast", "layers.0.wieght=f32", "layers.0.wieght", {});
  faults.check_used("cast", "a", "a", {.used = true});
  faults.check_used("cast", "b", "b", {.shadowed = true});
  faults.check_used("cast", "c", "c", {.passed_over = true}, "takes floats alone");
  const auto text = [&] {
    return message_of(ErrorCode::invalid_argument, [&] { faults.throw_if_any("test"); });
  };
  EXPECT_THAT(text(),
              testing::AllOf(HasSubstr("test: 4 edits do not fit"),
                             HasSubstr("found 0 \"*\" in the new name, needed 1"),
                             HasSubstr("matches none of 2 tensors, nearest: \"layers.0.weight\""),
                             HasSubstr("earlier rules take all"), HasSubstr("takes floats alone")));
  for (int i = 0; i < 100; ++i) faults.add("fault");
  EXPECT_THAT(text(), HasSubstr("; and 84 more"));
}

}  // namespace
}  // namespace shardwise
