#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(NearestNames, AreThoseFewLettersAway) {
  const std::vector<std::string_view> names{
      "bias", "layers/0/weight", "layers/1/weight", "layers/10/weight", "w", "weight", "weights"};
  EXPECT_THAT(nearest_names(names, "wieght"), ElementsAre("weight", "weights"));
  EXPECT_THAT(nearest_names(names, "layers/2/weight"),
              ElementsAre("layers/0/weight", "layers/1/weight", "layers/10/weight"));
  EXPECT_THAT(nearest_names(names, "bais"), ElementsAre("bias"));
  EXPECT_THAT(nearest_names(names, "v"), ElementsAre("w"));
  EXPECT_THAT(nearest_names(names, "optimizer"), IsEmpty());
  EXPECT_THAT(nearest_names(names, ""), ElementsAre("w"));
  EXPECT_THAT(nearest_names({}, "w"), IsEmpty());
}

TEST(EditDistance, CountsLettersChangedAddedDroppedAndSwapped) {
  EXPECT_EQ(edit_distance("weight", "weight"), 0u);
  EXPECT_EQ(edit_distance("wieght", "weight"), 1u);
  EXPECT_EQ(edit_distance("w", "weight"), 5u);
  EXPECT_EQ(edit_distance("", "bias"), 4u);
  EXPECT_EQ(edit_distance("bias", "base"), 2u);
}

TEST(NearestNames, AreAtMostThree) {
  const std::vector<std::string_view> names{"a1", "a2", "a3", "a4", "a5"};
  EXPECT_THAT(nearest_names(names, "a"), ElementsAre("a1", "a2", "a3"));
}

}  // namespace
}  // namespace shardwise
