#include "shardwise/shard/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The oracle computes with numbers that hold every element of every type exactly.
using Exact = long double;
static_assert(std::numeric_limits<Exact>::digits >= 64);
static_assert(std::numeric_limits<Exact>::max_exponent > 1024);

/// A floating format by its definition.
struct Format {
  int mantissa_bits, exponent_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint64_t infinity() const {
    return ((std::uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  }
  std::uint64_t sign_bit() const { return std::uint64_t{1} << (mantissa_bits + exponent_bits); }
  bool is_nan(std::uint64_t bits) const { return (bits & (sign_bit() - 1)) > infinity(); }

  /// Value of a magnitude; infinity has the value after the greatest finite number.
  Exact value(std::uint64_t bits) const {
    const std::uint64_t one = std::uint64_t{1} << mantissa_bits;
    const int exponent = static_cast<int>(bits >> mantissa_bits);
    const Exact fraction = static_cast<Exact>(bits & (one - 1)) / static_cast<Exact>(one);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias())
                         : std::ldexp(1 + fraction, exponent - bias());
  }

  Exact element(std::uint64_t bits) const {
    const std::uint64_t magnitude = bits & (sign_bit() - 1);
    if (is_nan(bits)) return std::numeric_limits<Exact>::quiet_NaN();
    const Exact size =
        magnitude == infinity() ? std::numeric_limits<Exact>::infinity() : value(magnitude);
    return (bits & sign_bit()) != 0 ? -size : size;
  }

  /// The bits of the nearest number, ties to even, by bisection over all of them.
  std::uint64_t nearest(Exact number) const {
    const std::uint64_t sign = std::signbit(number) ? sign_bit() : 0;
    const Exact size = std::fabs(number);
    std::uint64_t low = 0, high = infinity();
    if (size >= value(high)) return sign | high;
    while (high - low > 1) {
      const std::uint64_t middle = low + (high - low) / 2;
      (value(middle) <= size ? low : high) = middle;
    }
    const Exact tie = (value(low) + value(high)) / 2;
    const bool up = size > tie || (size == tie && low % 2 == 1);
    return sign | (up ? high : low);
  }
};

constexpr Format kF64{52, 11}, kF32{23, 8}, kF16{10, 5}, kBF16{7, 8};

const Format* format_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return &kF64;
    case DType::f32:
      return &kF32;
    case DType::f16:
      return &kF16;
    case DType::bf16:
      return &kBF16;
    default:
      return nullptr;
  }
}

bool is_signed(DType dtype) { return name(dtype)[0] == 'i'; }

/// An element's value from its bits.
Exact exact_value(DType dtype, std::uint64_t bits) {
  if (const Format* format = format_of(dtype)) return format->element(bits);
  if (dtype == DType::boolean) return bits != 0 ? 1 : 0;
  const int unused = 64 - 8 * static_cast<int>(size_bytes(dtype));
  if (!is_signed(dtype)) return static_cast<Exact>(bits);
  return static_cast<Exact>(static_cast<std::int64_t>(bits << unused) >> unused);
}

/// The bits that a conversion must give: an integer keeps its low bits.
std::uint64_t expected_bits(DType from, DType to, Exact value) {
  if (const Format* format = format_of(to)) return format->nearest(value);
  if (to == DType::boolean) return value != 0 ? 1 : 0;
  if (std::isnan(value)) return 0;
  const int bits = 8 * static_cast<int>(size_bytes(to));
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - bits);
  if (format_of(from) == nullptr) {
    const bool negative = value < 0;
    const std::uint64_t low = static_cast<std::uint64_t>(negative ? -value : value);
    return (negative ? 0 - low : low) & mask;
  }
  const Exact past_max = std::ldexp(Exact{1}, is_signed(to) ? bits - 1 : bits);
  const Exact least = is_signed(to) ? -past_max : 0;
  value = std::fmin(std::fmax(std::trunc(value), least), past_max - 1);
  const std::uint64_t all = is_signed(to) && value < 0
                                ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value))
                                : static_cast<std::uint64_t>(value);
  return all & mask;
}

std::vector<std::byte> pack(DType dtype, const std::vector<std::uint64_t>& elements) {
  static_assert(std::endian::native == std::endian::little);
  const std::size_t bytes = size_bytes(dtype);
  std::vector<std::byte> memory(elements.size() * bytes);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    std::memcpy(&memory[i * bytes], &elements[i], bytes);
  }
  return memory;
}

std::uint64_t unpack(DType dtype, const std::vector<std::byte>& memory, std::size_t i) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &memory[i * size_bytes(dtype)], size_bytes(dtype));
  return bits;
}

/// Converts and compares with the oracle, element by element.
void expect_converts(DType from, DType to, const std::vector<std::uint64_t>& elements) {
  const std::vector<std::byte> source = pack(from, elements);
  std::vector<std::byte> target(elements.size() * size_bytes(to));
  convert(from, source.data(), to, target.data(), elements.size());
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const Exact value = exact_value(from, elements[i]);
    const std::uint64_t found = unpack(to, target, i);
    const Format* format = format_of(to);
    if (format != nullptr && std::isnan(value)) {
      ASSERT_TRUE(format->is_nan(found)) << name(from) << " to " << name(to) << " of NaN";
      continue;
    }
    ASSERT_EQ(found, expected_bits(from, to, value))
        << name(from) << " to " << name(to) << " of " << value << ", bits " << elements[i];
  }
}

/// All of a byte type, a third of a 16-bit type; of others the ends, and many of every size.
std::vector<std::uint64_t> samples(DType dtype) {
  const int bits = 8 * static_cast<int>(size_bytes(dtype));
  std::vector<std::uint64_t> all;
  if (dtype == DType::boolean) return {0, 1};
  if (bits <= 16) {
    const std::uint64_t step = bits == 16 ? 3 : 1;
    for (std::uint64_t i = 0; i < std::uint64_t{1} << bits; i += step) all.push_back(i);
    return all;
  }
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - bits);
  std::mt19937_64 random(14);
  for (int i = 0; i < bits; ++i) {
    for (int j = -1; j <= i; ++j) {
      const std::uint64_t two_bits = (std::uint64_t{1} << i) | (j < 0 ? 0 : std::uint64_t{1} << j);
      for (const std::uint64_t nearby : {two_bits - 1, two_bits, two_bits + 1}) {
        all.push_back(nearby & mask);
        all.push_back(~nearby & mask);
      }
    }
    for (int j = 0; j < 300; ++j) all.push_back((random() & mask) >> i);
  }
  return all;
}

/// Numbers of `from` on every tie of `to` and next to it, of both signs.
std::vector<std::uint64_t> ties(const Format& from, const Format& to) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t bits = 0; bits < to.infinity(); ++bits) {
    const std::uint64_t tie = from.nearest((to.value(bits) + to.value(bits + 1)) / 2);
    for (const std::uint64_t nearby : {tie - 1, tie, tie + 1}) {
      all.push_back(nearby);
      all.push_back(nearby | from.sign_bit());
    }
  }
  return all;
}

TEST(DType, HasNamesAndSizes) {
  std::string names;
  std::size_t bytes = 0;
  for (const DType dtype : all_dtypes()) {
    names += std::string(name(dtype)) + " ";
    bytes += size_bytes(dtype);
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
  }
  EXPECT_EQ(names,
            "f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool f8_e4m3fn f8_e5m2 f8_e4m3fnuz "
            "f8_e5m2fnuz f8_e8m0fnu c64 c128 ");
  EXPECT_EQ(bytes, 8u + 4 + 2 + 2 + 2 * (8 + 4 + 2 + 1) + 1 + 5 + 8 + 16);
  EXPECT_EQ(size_bytes(DType::bf16), 2u);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("float64"), DType::f64);
  EXPECT_EQ(parse_dtype("uint8"), DType::u8);
  EXPECT_EQ(parse_dtype("int32"), DType::i32);
  EXPECT_EQ(parse_dtype("float8_e4m3fn"), DType::f8_e4m3fn);
  EXPECT_EQ(parse_dtype("float8_e5m2"), DType::f8_e5m2);
  EXPECT_EQ(parse_dtype("float8_e4m3fnuz"), DType::f8_e4m3fnuz);
  EXPECT_EQ(parse_dtype("float8_e5m2fnuz"), DType::f8_e5m2fnuz);
  EXPECT_EQ(parse_dtype("float8_e8m0fnu"), DType::f8_e8m0fnu);
  EXPECT_EQ(parse_dtype("complex64"), DType::c64);
  EXPECT_EQ(parse_dtype("complex128"), DType::c128);
  EXPECT_EQ(parse_dtype("torch.bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("BF16"), DType::bf16);
  EXPECT_EQ(parse_dtype("half"), DType::f16);
  EXPECT_EQ(parse_dtype("F8_E4M3"), DType::f8_e4m3fn);
  for (const char* text : {"", "f31", "torch.", "float", "f32 "}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { parse_dtype(text); }),
                AllOf(HasSubstr(quoted(text)), HasSubstr("f64, f32, f16, bf16"),
                      HasSubstr("u8, bool, f8_e4m3fn")));
  }
}

TEST(DType, KnowsTheValueOfEveryNarrowFloat) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float f16 = f16_to_f32(bits), bf16 = bf16_to_f32(bits);
    if (kF16.is_nan(bits)) {
      ASSERT_TRUE(std::isnan(f16));
      ASSERT_TRUE(kF16.is_nan(f32_to_f16(f16)));
    } else {
      ASSERT_EQ(static_cast<Exact>(f16), kF16.element(bits));
      ASSERT_EQ(f32_to_f16(f16), bits);
    }
    if (kBF16.is_nan(bits)) {
      ASSERT_TRUE(std::isnan(bf16));
      ASSERT_TRUE(kBF16.is_nan(f32_to_bf16(bf16)));
    } else {
      ASSERT_EQ(static_cast<Exact>(bf16), kBF16.element(bits));
      ASSERT_EQ(f32_to_bf16(bf16), bits);
    }
    ASSERT_EQ(std::signbit(f16), std::signbit(bf16));
  }
}

TEST(DType, NarrowsKnownNumbers) {
  EXPECT_EQ(f32_to_f16(1.0f), 0x3c00);
  EXPECT_EQ(f32_to_f16(-2.5f), 0xc100);
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(std::ldexp(1.0f, -24)), 0x0001);
  EXPECT_EQ(f32_to_f16(std::ldexp(1.0f, -25)), 0x0000);
  EXPECT_EQ(f32_to_f16(-std::ldexp(1.0f, -26)), 0x8000);
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(3.14159274f), 0x4049);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_EQ(f32_to_bf16(-0.0f), 0x8000);
}

TEST(DType, RoundsEveryTieToEven) {
  for (const DType to : {DType::f16, DType::bf16}) {
    for (const DType from : {DType::f64, DType::f32}) {
      ASSERT_NO_FATAL_FAILURE(expect_converts(from, to, ties(*format_of(from), *format_of(to))));
    }
  }
}

TEST(DType, DoesNotRoundTwice) {
  // A bit too far down for a float, next to a tie: a float in between would end on the tie.
  const double above_tie = 1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40);
  std::uint16_t bits = 0;
  convert(DType::f64, reinterpret_cast<const std::byte*>(&above_tie), DType::bf16,
          reinterpret_cast<std::byte*>(&bits), 1);
  EXPECT_EQ(bits, 0x3f81);
  EXPECT_EQ(f32_to_bf16(static_cast<float>(above_tie)), 0x3f80);
  // The same for an integer with more digits than a double has.
  const std::int64_t integer = (std::int64_t{1} << 62) + (std::int64_t{1} << 54) + 1;
  convert(DType::i64, reinterpret_cast<const std::byte*>(&integer), DType::bf16,
          reinterpret_cast<std::byte*>(&bits), 1);
  EXPECT_EQ(bits, 0x5e81);
}

TEST(DType, ConvertsAnyTypeToAny) {
  for (const DType from : compute_dtypes()) {
    const std::vector<std::uint64_t> elements = samples(from);
    for (const DType to : compute_dtypes()) {
      if (from == to) continue;
      ASSERT_NO_FATAL_FAILURE(expect_converts(from, to, elements));
    }
  }
}

TEST(DType, ConvertsDoublesOfEverySizeThatMatters) {
  std::mt19937_64 random(15);
  std::vector<std::uint64_t> elements;
  for (int exponent = -160; exponent <= 140; ++exponent) {
    for (int i = 0; i < 200; ++i) {
      // From no digits to all, so that ties of each format occur.
      const std::uint64_t mantissa = random() >> 12 >> (i % 52) << (i % 52);
      const double number =
          std::ldexp(1 + std::ldexp(static_cast<double>(mantissa), -52), exponent);
      elements.push_back(std::bit_cast<std::uint64_t>(i % 2 == 0 ? number : -number));
    }
  }
  for (const DType to : compute_dtypes()) {
    if (to == DType::f64) continue;
    ASSERT_NO_FATAL_FAILURE(expect_converts(DType::f64, to, elements));
  }
}

TEST(DType, CopiesEqualTypesBitByBit) {
  for (const DType dtype : all_dtypes()) {
    std::vector<std::byte> memory(4 * size_bytes(dtype));
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(200 + i);
    std::vector<std::byte> expected = memory;
    std::memmove(&expected[size_bytes(dtype)], memory.data(), 3 * size_bytes(dtype));
    convert(dtype, memory.data(), dtype, &memory[size_bytes(dtype)], 3);
    EXPECT_EQ(memory, expected) << name(dtype);
  }
}

TEST(DType, OnlyComplexNumbersBecomeComplex) {
  EXPECT_EQ(compute_dtypes().size(), 13u);
  std::byte source[16]{}, target[16]{};
  for (const DType dtype : all_dtypes()) {
    EXPECT_EQ(is_computed(dtype), dtype <= DType::boolean) << name(dtype);
    for (const DType other : {DType::c64, DType::c128}) {
      if (dtype == DType::c64 || dtype == DType::c128) continue;
      EXPECT_THAT(
          message_of(ErrorCode::unsupported, [&] { convert(dtype, source, other, target, 1); }),
          HasSubstr("only another complex one"));
      EXPECT_THAT(
          message_of(ErrorCode::unsupported, [&] { convert(other, source, dtype, target, 0); }),
          AllOf(HasSubstr(std::string(name(dtype))), HasSubstr(std::string(name(other)))));
    }
  }
}

/// What PyTorch 2 makes of these floats; python/tests/test_casts.py compares all of them.
TEST(DType, FloatsOfOneByteAreThoseOfPyTorch) {
  struct Case {
    DType dtype;
    std::vector<std::uint8_t> bits;
  };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float values[] = {0.0f,   -0.0f,   1.0f,     1.0625f, 1.1875f, 448.0f,   464.0f,
                          465.0f, -240.0f, 61440.0f, kInf,    -kInf,   0x1p-10f, 0x1.8p-10f};
  const Case cases[] = {
      {DType::f8_e4m3fn,
       {0x00, 0x80, 0x38, 0x38, 0x3a, 0x7e, 0x7e, 0x7e, 0xf7, 0x7e, 0x7e, 0xfe, 0x00, 0x01}},
      {DType::f8_e5m2,
       {0x00, 0x80, 0x3c, 0x3c, 0x3d, 0x5f, 0x5f, 0x5f, 0xdc, 0x7c, 0x7c, 0xfc, 0x14, 0x16}},
      {DType::f8_e4m3fnuz,
       {0x00, 0x00, 0x40, 0x40, 0x42, 0x80, 0x80, 0x80, 0xff, 0x80, 0x80, 0x80, 0x01, 0x02}},
      {DType::f8_e8m0fnu,
       {0x00, 0x00, 0x7f, 0x7f, 0x7f, 0x88, 0x88, 0x88, 0x87, 0x8f, 0xff, 0xff, 0x75, 0x76}}};
  for (const Case& c : cases) {
    std::vector<std::uint8_t> bits(std::size(values));
    convert(DType::f32, std::as_bytes(std::span(values)).data(), c.dtype,
            std::as_writable_bytes(std::span(bits)).data(), bits.size());
    EXPECT_EQ(bits, c.bits) << name(c.dtype);
    std::vector<float> back(bits.size());
    convert(c.dtype, std::as_bytes(std::span(bits)).data(), DType::f32,
            std::as_writable_bytes(std::span(back)).data(), bits.size());
    std::vector<std::uint8_t> again(bits.size());
    convert(DType::f32, std::as_bytes(std::span(back)).data(), c.dtype,
            std::as_writable_bytes(std::span(again)).data(), bits.size());
    EXPECT_EQ(again, c.bits) << name(c.dtype);
  }
}

TEST(DType, TakesMemoryAtAnyAddress) {
  std::vector<std::byte> source(17), target(9);
  const double values[] = {1.5, -3.0};
  std::memcpy(&source[1], values, 16);
  convert(DType::f64, &source[1], DType::f32, &target[1], 2);
  float found[2];
  std::memcpy(found, &target[1], 8);
  EXPECT_THAT(found, ElementsAre(1.5f, -3.0f));
  convert(DType::f64, nullptr, DType::f32, nullptr, 0);
}

TEST(DType, IsFoundForCppTypes) {
  static_assert(dtype_of<float>() == DType::f32 && dtype_of<const double>() == DType::f64);
  static_assert(dtype_of<long long>() == DType::i64 && dtype_of<unsigned long>() == DType::u64);
  static_assert(dtype_of<std::complex<float>>() == DType::c64);
  static_assert(dtype_of<std::complex<double>>() == DType::c128);
  static_assert(dtype_of<bool>() == DType::boolean && dtype_of<std::uint8_t>() == DType::u8);
  static_assert(dtype_of<signed char>() == DType::i8 && dtype_of<std::int16_t>() == DType::i16);
  static_assert(dtype_of<std::uint16_t>() == DType::u16 && dtype_of<std::int32_t>() == DType::i32);
  static_assert(dtype_of<std::uint32_t>() == DType::u32);
  static_assert(!TensorElement<std::byte> && !TensorElement<char> && !TensorElement<long double>);
  static_assert(!TensorElement<std::complex<long double>> && !TensorElement<std::string> &&
                !TensorElement<float*>);
  static_assert(dtype_of_elements<const std::vector<float>&>() == DType::f32);
  static_assert(dtype_of_elements<int(&)[3]>() == DType::i32);
  // A temporary's elements are gone after the expression; a view's are not.
  static_assert(!ElementRange<std::vector<float>> && ElementRange<std::vector<float>&>);
  static_assert(ElementRange<std::span<const float>> && ElementValues<std::vector<float>>);
  static_assert(!ElementRange<std::vector<bool>&> && !ElementRange<std::vector<std::byte>&>);
  static_assert(!ElementRange<float&>);
}

TEST(DType, OfAnotherTypeIsNamed) {
  check_dtype("read", DType::f32, DType::f32);
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [] { check_dtype("read tensor \"w\"", DType::f32, DType::i32); }),
            "read tensor \"w\": found f32, needed i32");
}

TEST(DType, VectorsAreFilledThroughTheirBytes) {
  const auto ones = [](std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{1}); };
  EXPECT_THAT(filled_vector<std::int16_t>(2, ones), ElementsAre(0x101, 0x101));
  EXPECT_THAT(filled_vector<bool>(3, ones), ElementsAre(true, true, true));
  EXPECT_TRUE(filled_vector<float>(0, ones).empty());
}

}  // namespace
}  // namespace shardwise
