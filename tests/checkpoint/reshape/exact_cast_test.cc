#include "shardwise/reshape/detail/edits/exact_cast.h"

#include <gtest/gtest.h>

namespace shardwise {
namespace {

using reshape_detail::can_cast;

TEST(ExactCast, IntegersBecomeWhatHoldsEachOfTheirValues) {
  EXPECT_TRUE(can_cast(DType::i8, DType::i16));
  EXPECT_TRUE(can_cast(DType::u8, DType::i16));
  EXPECT_TRUE(can_cast(DType::i8, DType::bf16));
  EXPECT_TRUE(can_cast(DType::u16, DType::f32));
  EXPECT_FALSE(can_cast(DType::u8, DType::i8));
  EXPECT_FALSE(can_cast(DType::i8, DType::u16));
  EXPECT_FALSE(can_cast(DType::i16, DType::bf16));
  EXPECT_FALSE(can_cast(DType::i64, DType::f64));
  EXPECT_FALSE(can_cast(DType::u8, DType::boolean));
  EXPECT_TRUE(can_cast(DType::boolean, DType::u8));
}

TEST(ExactCast, FloatsBecomeFloatsAndComplexNumbersComplexOnes) {
  for (const DType from : all_dtypes()) {
    EXPECT_TRUE(can_cast(from, from));
    EXPECT_EQ(can_cast(from, DType::c64), reshape_detail::is_complex(from)) << name(from);
    if (reshape_detail::is_float(from)) {
      EXPECT_TRUE(can_cast(from, DType::f8_e4m3fn)) << name(from);
      EXPECT_FALSE(can_cast(from, DType::i64)) << name(from);
    }
  }
}

}  // namespace
}  // namespace shardwise
