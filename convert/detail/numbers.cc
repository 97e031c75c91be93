#include "shardwise/convert/detail/numbers.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace shardwise::detail {
namespace {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
long double plain(const std::byte* at) {
  return static_cast<long double>(load<T>(at));
}

long double half(const std::byte* at) { return f16_to_f32(load<std::uint16_t>(at)); }
long double brain(const std::byte* at) { return bf16_to_f32(load<std::uint16_t>(at)); }

/// Reads a format that is the upper byte of f16.
long double upper_half(const std::byte* at) {
  return f16_to_f32(static_cast<std::uint16_t>(load<std::uint8_t>(at) << 8));
}

/// A one-byte format without infinities, as ml_dtypes and ONNX define it: a sign, `exponent` bits,
/// and the mantissa in the rest.
struct Small {
  int exponent, bias;
  unsigned nan_mask, nan;  ///< NaN if the bits under nan_mask equal nan
};

template <Small kSmall>
long double small(const std::byte* at) {
  const auto bits = load<std::uint8_t>(at);
  if ((bits & kSmall.nan_mask) == kSmall.nan) return std::numeric_limits<long double>::quiet_NaN();
  const int mantissa_bits = 7 - kSmall.exponent;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits >> mantissa_bits) & ((1 << kSmall.exponent) - 1);
  const long double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa * 1.0L, 1 - kSmall.bias - mantissa_bits);
  return sign * std::ldexp((mantissa + (1 << mantissa_bits)) * 1.0L,
                           exponent - kSmall.bias - mantissa_bits);
}

long double power_of_two(const std::byte* at) {
  const auto bits = load<std::uint8_t>(at);
  return bits == 0xFF ? std::numeric_limits<long double>::quiet_NaN()
                      : std::ldexp(1.0L, bits - 127);
}

constexpr Small kE4m3fn{4, 7, 0x7F, 0x7F}, kE4m3fnuz{4, 8, 0xFF, 0x80},
    kE5m2fnuz{5, 16, 0xFF, 0x80};

}  // namespace

Numbers numbers_of(DType dtype) {
  const auto one = [dtype](bool is_floating, long double (*number)(const std::byte*)) {
    return Numbers{dtype, size_bytes(dtype), 1, is_floating, number};
  };
  switch (dtype) {
    case DType::f64:
      return one(true, plain<double>);
    case DType::f32:
      return one(true, plain<float>);
    case DType::f16:
      return one(true, half);
    case DType::bf16:
      return one(true, brain);
    case DType::i64:
      return one(false, plain<std::int64_t>);
    case DType::i32:
      return one(false, plain<std::int32_t>);
    case DType::i16:
      return one(false, plain<std::int16_t>);
    case DType::i8:
      return one(false, plain<std::int8_t>);
    case DType::u64:
      return one(false, plain<std::uint64_t>);
    case DType::u32:
      return one(false, plain<std::uint32_t>);
    case DType::u16:
      return one(false, plain<std::uint16_t>);
    case DType::u8:
    case DType::boolean:
      return one(false, plain<std::uint8_t>);
    case DType::f8_e4m3fn:
      return one(true, small<kE4m3fn>);
    case DType::f8_e5m2:
      return one(true, upper_half);
    case DType::f8_e4m3fnuz:
      return one(true, small<kE4m3fnuz>);
    case DType::f8_e5m2fnuz:
      return one(true, small<kE5m2fnuz>);
    case DType::f8_e8m0fnu:
      return one(true, power_of_two);
    case DType::c64:
      return {DType::f32, 4, 2, true, plain<float>};
    case DType::c128:
      return {DType::f64, 8, 2, true, plain<double>};
  }
  return one(false, plain<std::uint8_t>);
}

std::string element_text(DType dtype, const std::byte* element) {
  if (dtype == DType::boolean) return load<std::uint8_t>(element) != 0 ? "True" : "False";
  const Numbers numbers = numbers_of(dtype);
  const auto number = [&](std::size_t part) {
    const long double value = numbers.number(element + part * numbers.bytes);
    if (!numbers.is_floating) return fmt::format("{:.0f}", value);
    return numbers.bytes == 8 ? fmt::format("{}", static_cast<double>(value))
                              : fmt::format("{}", static_cast<float>(value));
  };
  if (numbers.each == 1) return number(0);
  const std::string imaginary = number(1);
  return fmt::format("{}{}{}i", number(0), imaginary.front() == '-' ? "" : "+", imaginary);
}

std::string element_json(DType dtype, const std::byte* element) {
  if (dtype == DType::boolean) return load<std::uint8_t>(element) != 0 ? "true" : "false";
  const Numbers numbers = numbers_of(dtype);
  const std::string text = element_text(dtype, element);
  const bool is_number = numbers.each == 1 && std::isfinite(numbers.number(element));
  return is_number ? text : '"' + text + '"';
}

std::int64_t Numbers::ordered(const std::byte* at) const {
  std::uint64_t bits = 0;
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&bits, at, bytes);
  if (dtype == DType::f8_e8m0fnu) return static_cast<std::int64_t>(bits);
  const std::uint64_t sign = std::uint64_t{1} << (bytes * 8 - 1);
  const auto size = static_cast<std::int64_t>(bits & (sign - 1));
  return (bits & sign) != 0 ? -size : size;
}

Index index_at(const Box& box, std::int64_t number) {
  Index at = box.begin();
  for (std::size_t d = box.rank(); d-- > 0; number /= box.extent(d)) {
    at[d] = box.begin(d) + number % box.extent(d);
  }
  return at;
}

}  // namespace shardwise::detail
