#include "shardwise/runtime/program/detail/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/values.h"

namespace shardwise {
namespace {

using detail::reduce;

std::int64_t combined(Reduction reduction, DType dtype, std::int64_t a, std::int64_t b) {
  if (reduction == Reduction::max) return std::max(a, b);
  if (reduction == Reduction::min) return std::min(a, b);
  return dtype == DType::boolean ? std::max(a, b) : a + b;
}

bool is_signed(DType dtype) {
  const std::byte minus_one = std::byte{0xff};
  std::vector<std::byte> bytes(8, minus_one);
  put(dtype, bytes.data(), 0, -1);
  return dtype != DType::u64 && get(dtype, bytes.data(), 0) == -1;  // of u64 it is 2^64 - 1
}

TEST(Reduce, MayWriteOverOneOfItsSources) {
  for (const DType dtype : compute_dtypes()) {
    for (std::size_t over = 0; over < 3; ++over) {
      constexpr std::size_t kCount = 4099;
      std::vector<std::vector<std::byte>> data(3);
      std::vector<const std::byte*> pointers;
      for (std::size_t s = 0; s < 3; ++s) {
        data[s].resize(kCount * size_bytes(dtype));
        for (std::size_t i = 0; i < kCount; ++i) {
          put(dtype, data[s].data(), i, static_cast<std::int64_t>((i * (s + 1)) % 7));
        }
        pointers.push_back(data[s].data());
      }
      std::vector<std::byte> expected(kCount * size_bytes(dtype));
      reduce(Reduction::sum, dtype, pointers, expected.data(), kCount);
      reduce(Reduction::sum, dtype, pointers, data[over].data(), kCount);
      EXPECT_EQ(data[over], expected) << name(dtype) << " over source " << over;
    }
  }
}

// Lengths on both sides of the internal block, and odd counts of sources.
TEST(Reduce, IntegersOfEveryTypeEqualTheElementwiseResult) {
  std::mt19937 random(5);
  for (const DType dtype : compute_dtypes()) {
    for (const Reduction reduction : kReductions) {
      for (const std::size_t count : {0u, 1u, 7u, 2048u, 4099u}) {
        const std::size_t sources = 1 + random() % 9;
        SCOPED_TRACE(std::string(name(dtype)) + " " + std::to_string(static_cast<int>(reduction)));
        std::vector<std::vector<std::byte>> data;
        std::vector<const std::byte*> pointers;
        for (std::size_t s = 0; s < sources; ++s) {
          data.emplace_back(count * size_bytes(dtype));
          for (std::size_t i = 0; i < count; ++i) {
            put(dtype, data[s].data(), i,
                static_cast<std::int64_t>(random() % 9) - (is_signed(dtype) ? 4 : 0));
          }
        }
        for (const auto& source : data) pointers.push_back(source.data());
        std::vector<std::byte> out(count * size_bytes(dtype), std::byte{0xee});
        reduce(reduction, dtype, pointers, out.data(), count);
        for (std::size_t i = 0; i < count; ++i) {
          std::int64_t expected = get(dtype, data[0].data(), i);
          for (std::size_t s = 1; s < sources; ++s) {
            expected = combined(reduction, dtype, expected, get(dtype, data[s].data(), i));
          }
          ASSERT_EQ(get(dtype, out.data(), i), expected) << i;
        }
      }
    }
  }
}

template <class T>
T reduce_values(Reduction reduction, DType dtype, const std::vector<T>& values) {
  std::vector<const std::byte*> pointers;
  for (const T& value : values) pointers.push_back(reinterpret_cast<const std::byte*>(&value));
  T out{};
  reduce(reduction, dtype, pointers, reinterpret_cast<std::byte*>(&out), 1);
  return out;
}

TEST(Reduce, SumsFromFirstToLast) {
  EXPECT_EQ(reduce_values<float>(Reduction::sum, DType::f32, {1e8f, -1e8f, 1.0f}), 1.0f);
  EXPECT_EQ(reduce_values<float>(Reduction::sum, DType::f32, {1e8f, 1.0f, -1e8f}), 0.0f);
}

TEST(Reduce, HalvesAreRoundedOnceAtTheEnd) {
  // 2048 + 1 is not an f16, so rounding at every step would stay at 2048.
  const std::uint16_t big = f32_to_f16(2048), one = f32_to_f16(1);
  EXPECT_EQ(f16_to_f32(reduce_values<std::uint16_t>(Reduction::sum, DType::f16,
                                                    {big, one, one, one, one})),
            2052);
  const std::uint16_t large = f32_to_bf16(256), unit = f32_to_bf16(1);
  EXPECT_EQ(
      bf16_to_f32(reduce_values<std::uint16_t>(Reduction::sum, DType::bf16, {large, unit, unit})),
      258);
}

TEST(Reduce, IntegerSumsWrapAround) {
  EXPECT_EQ(reduce_values<std::int32_t>(Reduction::sum, DType::i32, {INT32_MAX, 2}), INT32_MIN + 1);
  EXPECT_EQ(reduce_values<std::int64_t>(Reduction::sum, DType::i64, {INT64_MIN, -1}), INT64_MAX);
  EXPECT_EQ(reduce_values<std::int8_t>(Reduction::sum, DType::i8, {100, 100}), -56);
  EXPECT_EQ(reduce_values<std::uint8_t>(Reduction::sum, DType::u8, {200, 100}), 44);
}

TEST(Reduce, ANanAnywhereGivesNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Reduction reduction : kReductions) {
    for (std::size_t at = 0; at < 3; ++at) {
      std::vector<double> values{1, 2, 3};
      values[at] = nan;
      EXPECT_TRUE(std::isnan(reduce_values<double>(reduction, DType::f64, values))) << at;
    }
  }
  EXPECT_EQ(reduce_values<double>(Reduction::sum, DType::f64, {-0.0, -0.0}), 0.0);
  EXPECT_TRUE(std::signbit(reduce_values<double>(Reduction::sum, DType::f64, {-0.0, -0.0})));
}

}  // namespace
}  // namespace shardwise
