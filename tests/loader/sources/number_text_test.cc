#include "shardwise/loader/sources/detail/number_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "loader/idx_files.h"
#include "loader/sources/source_reads.h"
#include "shardwise/loader/open_source.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Limit {
  DType dtype;
  std::string text;
  std::uint64_t bits;  // of the number as numpy rounds it; kRefused if it would be infinite
};
constexpr std::uint64_t kRefused = ~std::uint64_t{0};

const Limit kLimits[] = {
    {DType::f16, "65504", 0x7bff},
    {DType::f16, "65519.99", 0x7bff},
    {DType::f16, "65520", kRefused},
    {DType::f16, "70000", kRefused},
    {DType::f16, "-7e4", kRefused},
    {DType::f16, "1e400", kRefused},
    {DType::f16, "1e-8", 0},
    {DType::f16, "3e-8", 1},
    {DType::f16, "-1e-30", 0x8000},
    {DType::f16, "-1e-400", 0x8000},
    {DType::f16, "inf", 0x7c00},
    {DType::bf16, "3.38e38", 0x7f7e},
    {DType::bf16, "3.4e38", kRefused},
    {DType::bf16, "1e-40", 1},
    {DType::bf16, "1e-41", 0},
    {DType::f32, "3.4028235677973e38", 0x7f7fffff},
    {DType::f32, "3.40282357e38", kRefused},
    {DType::f32, "-1e39", kRefused},
    {DType::f32, "1e99999999999999999999", kRefused},
    {DType::f32, "1e-45", 1},
    {DType::f32, "7.1e-46", 1},
    {DType::f32, "7e-46", 0},
    {DType::f32, "-1e-46", 0x80000000},
    {DType::f32, "1e-99999999999999999999", 0},
    {DType::f32, std::string("0.") + std::string(60, '0') + "1", 0},
    {DType::f32, std::string("0.") + std::string(60, '0') + "1e61", 0x3f800000},
    {DType::f32, std::string(60, '9'), kRefused},
    {DType::f32, std::string(60, '9') + "e-200", 0},
    {DType::f64, "1.7976931348623158e308", 0x7fefffffffffffff},
    {DType::f64, "1.7976931348623159e308", kRefused},
    {DType::f64, "1e309", kRefused},
    {DType::f64, "3e-324", 1},
    {DType::f64, "2e-324", 0},
    {DType::f64, "-2e-324", 0x8000000000000000},
};

TEST(NumberText, RoundsTheSmallestAndRefusesWhatWouldBeInfinite) {
  for (const Limit& limit : kLimits) {
    std::uint64_t bits = 0;
    const bool fits =
        detail::read_number(limit.text, limit.dtype, reinterpret_cast<std::byte*>(&bits));
    EXPECT_EQ(fits, limit.bits != kRefused) << name(limit.dtype) << ' ' << limit.text;
    if (fits) {
      EXPECT_EQ(bits, limit.bits) << name(limit.dtype) << ' ' << limit.text;
    }
  }
}

TEST(NumberText, LimitsHoldInTablesAndInLinesOfJson) {
  const TempDir dir;
  for (const Limit& limit : kLimits) {
    if (limit.text == "inf") continue;
    write_file(dir / "d.csv", "x\n" + limit.text + "\n");
    write_file(dir / "d.jsonl", "{\"x\": " + limit.text + "}\n");
    for (const std::string format : {"csv", "jsonl"}) {
      const auto read = [&] {
        const auto source = open_source(format + ":" + (dir / ("d." + format)).string() +
                                        "?x=" + std::string(name(limit.dtype)));
        std::uint64_t bits = 0;
        source->read_box(0, 0, {reinterpret_cast<std::byte*>(&bits), Box()});
        return bits;
      };
      SCOPED_TRACE(format + " " + std::string(name(limit.dtype)) + " " + limit.text);
      if (limit.bits == kRefused) {
        message_of(ErrorCode::corrupt, read);
      } else {
        EXPECT_EQ(read(), limit.bits);
      }
    }
  }
}

TEST(NumberText, FindsATypeThatHoldsAllNumbersOrNone) {
  const auto type = [](std::initializer_list<const char*> numbers) {
    detail::NumberTypes types;
    for (const char* number : numbers) EXPECT_TRUE(types.add(number)) << number;
    return types.type();
  };
  EXPECT_EQ(type({"1", "-9223372036854775808"}), DType::i64);
  EXPECT_EQ(type({"1", "18446744073709551615"}), DType::u64);
  EXPECT_EQ(type({"1", "1.5", "9007199254740992", "-0009007199254740992"}), DType::f64);
  EXPECT_EQ(type({"1.5", "9007199254740993"}), std::nullopt);
  EXPECT_EQ(type({"-9007199254740993", "nan"}), std::nullopt);
  EXPECT_EQ(type({"-1", "18446744073709551615"}), std::nullopt);
  EXPECT_EQ(type({"18446744073709551616"}), std::nullopt);
  EXPECT_EQ(type({"1e300", "12345678901234567.5"}), DType::f64);
  detail::NumberTypes types;
  for (const char* word : {"", "-", "x", "1x", "12345678901234567x", "--1"}) {
    EXPECT_FALSE(types.add(word)) << word;
  }
  EXPECT_EQ(types.type(), DType::i64);
}

}  // namespace
}  // namespace shardwise
