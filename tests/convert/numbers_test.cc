#include "shardwise/convert/detail/numbers.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace shardwise {
namespace {

// The bits of all floats of a byte as ml_dtypes 0.5 reads them.
TEST(Numbers, FloatsOfAByte) {
  const auto number = [](DType dtype, unsigned bits) {
    const auto byte = static_cast<std::byte>(bits);
    return static_cast<double>(detail::numbers_of(dtype).number(&byte));
  };
  EXPECT_EQ(number(DType::f8_e4m3fn, 0x7E), 448);
  EXPECT_EQ(number(DType::f8_e4m3fn, 0x01), 0x1p-9);
  EXPECT_EQ(number(DType::f8_e4m3fn, 0xB8), -1);
  EXPECT_TRUE(std::isnan(number(DType::f8_e4m3fn, 0xFF)));
  EXPECT_EQ(number(DType::f8_e5m2, 0x7B), 57344);
  EXPECT_EQ(number(DType::f8_e5m2, 0x01), 0x1p-16);
  EXPECT_EQ(number(DType::f8_e5m2, 0xFC), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(number(DType::f8_e5m2, 0x7D)));
  EXPECT_EQ(number(DType::f8_e4m3fnuz, 0x7F), 240);
  EXPECT_EQ(number(DType::f8_e4m3fnuz, 0x01), 0x1p-10);
  EXPECT_TRUE(std::isnan(number(DType::f8_e4m3fnuz, 0x80)));
  EXPECT_EQ(number(DType::f8_e5m2fnuz, 0x7F), 57344);
  EXPECT_EQ(number(DType::f8_e5m2fnuz, 0x01), 0x1p-17);
  EXPECT_TRUE(std::isnan(number(DType::f8_e5m2fnuz, 0x80)));
  EXPECT_EQ(number(DType::f8_e8m0fnu, 0), 0x1p-127);
  EXPECT_EQ(number(DType::f8_e8m0fnu, 254), 0x1p127);
  EXPECT_TRUE(std::isnan(number(DType::f8_e8m0fnu, 255)));
}

TEST(Numbers, ReadBackFromTheirText) {
  const auto text = [](DType dtype, const auto& value) {
    return detail::element_text(dtype, reinterpret_cast<const std::byte*>(&value)) + " " +
           detail::element_json(dtype, reinterpret_cast<const std::byte*>(&value));
  };
  EXPECT_EQ(text(DType::f64, 0.1), "0.1 0.1");
  EXPECT_EQ(text(DType::f32, 0.1F), "0.1 0.1");
  EXPECT_EQ(text(DType::f32, -std::numeric_limits<float>::infinity()), "-inf \"-inf\"");
  EXPECT_EQ(text(DType::u64, std::numeric_limits<std::uint64_t>::max()),
            "18446744073709551615 18446744073709551615");
  EXPECT_EQ(text(DType::boolean, std::uint8_t{1}), "True true");
  EXPECT_EQ(text(DType::c64, std::array<float, 2>{1.5F, -2}), "1.5-2i \"1.5-2i\"");
}

TEST(Numbers, AreInTheOrderOfTheirBits) {
  const detail::Numbers numbers = detail::numbers_of(DType::f32);
  const auto place = [&](float value) {
    return numbers.ordered(reinterpret_cast<const std::byte*>(&value));
  };
  EXPECT_EQ(place(std::nextafter(1.0F, 2.0F)) - place(1.0F), 1);
  EXPECT_EQ(place(0x1p-149F) - place(-0x1p-149F), 2);
  EXPECT_EQ(place(0.0F), place(-0.0F));
}

TEST(Numbers, OfABoxAreCountedByRows) {
  EXPECT_EQ(detail::index_at(Box({2, 5}, {4, 8}), 4), (Index{3, 6}));
}

}  // namespace
}  // namespace shardwise
