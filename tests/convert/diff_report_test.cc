#include <gtest/gtest.h>

#include "shardwise/convert/diff.h"

namespace shardwise {
namespace {

TEST(DiffReport, SaysInALineHowATensorDiffers) {
  TensorDiff diff;
  diff.name = "w";
  diff.first_dtype = diff.second_dtype = DType::f32;
  diff.first_shape = diff.second_shape = {3};
  diff.compared = true;
  diff.elements = 3;
  EXPECT_EQ(to_string(diff), "w  f32 [3]: equal");
  diff.differing = 1;
  diff.max_abs = 0.5;
  diff.max_rel = 0.25;
  diff.max_ulp = 7;
  diff.at = Index{2};
  diff.first_value = "2";
  diff.second_value = "2.5";
  EXPECT_EQ(to_string(diff),
            "w  f32 [3]: 1 of 3 differ\n"
            "    first at [2]: 2 | 2.5; at most 0.5 apart, relative 0.25, ulp 7; NaN 0 | 0");
  TensorDiff alone;
  alone.name = "a\nb";
  alone.first_dtype = DType::u8;
  EXPECT_EQ(to_string(alone), "\"a\\nb\"  u8 []: only in the first");
  DiffReport report;
  report.tensors = {diff};
  EXPECT_NE(to_string(report).find("0 of 1 tensors are equal"), std::string::npos);
}

}  // namespace
}  // namespace shardwise
