#include "shardwise/convert/detail/safetensors/safetensors_dtypes.h"

#include <gtest/gtest.h>

namespace shardwise::detail {
namespace {

TEST(SafetensorsDTypes, HaveANameAndARank) {
  for (const DType dtype : all_dtypes()) {
    const auto known = safetensors_dtype(dtype);
    if (!known) continue;
    EXPECT_EQ(parse_safetensors_dtype(known->name), dtype);
  }
  EXPECT_EQ(safetensors_dtype(DType::boolean)->name, "BOOL");
  EXPECT_GT(safetensors_dtype(DType::u64)->rank, safetensors_dtype(DType::f64)->rank);
  EXPECT_GT(safetensors_dtype(DType::f32)->rank, safetensors_dtype(DType::bf16)->rank);
  EXPECT_GT(safetensors_dtype(DType::bf16)->rank, safetensors_dtype(DType::f16)->rank);
  EXPECT_FALSE(parse_safetensors_dtype("F4"));
}

TEST(SafetensorsDTypes, OfLessThanAByteAreBytes) {
  EXPECT_EQ(packed_safetensors_bits("F4"), 4);
  EXPECT_EQ(packed_safetensors_bits("F6_E3M2"), 6);
  EXPECT_EQ(packed_safetensors_bits("F32"), 0);
  EXPECT_EQ(packed_safetensors_bits("f4"), 0);
}

}  // namespace
}  // namespace shardwise::detail
