#include "shardwise/shard/dtype.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

struct Description {
  DType dtype;
  std::string_view short_name, long_name;
  std::size_t bytes;
};

// In declaration order.
constexpr std::array kDescriptions = {
    Description{DType::f64, "f64", "float64", 8},
    Description{DType::f32, "f32", "float32", 4},
    Description{DType::f16, "f16", "float16", 2},
    Description{DType::bf16, "bf16", "bfloat16", 2},
    Description{DType::i64, "i64", "int64", 8},
    Description{DType::i32, "i32", "int32", 4},
    Description{DType::i16, "i16", "int16", 2},
    Description{DType::i8, "i8", "int8", 1},
    Description{DType::u64, "u64", "uint64", 8},
    Description{DType::u32, "u32", "uint32", 4},
    Description{DType::u16, "u16", "uint16", 2},
    Description{DType::u8, "u8", "uint8", 1},
    Description{DType::boolean, "bool", "boolean", 1},
    Description{DType::f8_e4m3fn, "f8_e4m3fn", "float8_e4m3fn", 1},
    Description{DType::f8_e5m2, "f8_e5m2", "float8_e5m2", 1},
    Description{DType::f8_e4m3fnuz, "f8_e4m3fnuz", "float8_e4m3fnuz", 1},
    Description{DType::f8_e5m2fnuz, "f8_e5m2fnuz", "float8_e5m2fnuz", 1},
    Description{DType::f8_e8m0fnu, "f8_e8m0fnu", "float8_e8m0fnu", 1},
    Description{DType::c64, "c64", "complex64", 8},
    Description{DType::c128, "c128", "complex128", 16},
};

constexpr auto kDTypes = [] {
  std::array<DType, kDescriptions.size()> dtypes{};
  for (std::size_t i = 0; i < dtypes.size(); ++i) dtypes[i] = kDescriptions[i].dtype;
  return dtypes;
}();

constexpr const Description& described(DType dtype) {
  return kDescriptions[static_cast<std::size_t>(dtype)];
}

/// A 16-bit float: 1 sign bit, then the exponent, then kMantissaBits.
template <int kMantissa>
struct Narrow {
  using Bits = std::uint16_t;
  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kBias = (1 << (14 - kMantissa)) - 1;
  static constexpr int kMostExponent = kBias;
  static constexpr std::uint32_t kInfinity = (1u << 15) - (1u << kMantissa);

  /// A NaN keeps the upper bits of its payload and becomes quiet.
  static std::uint64_t nan(std::uint64_t fraction) {
    return kInfinity | fraction >> (52 - kMantissa) | std::uint64_t{1} << (kMantissa - 1);
  }

  Bits bits;
};
using F16 = Narrow<10>;
using BF16 = Narrow<7>;

/// A float of one byte. A value beyond the largest one becomes kOverflow, as in PyTorch and
/// ml_dtypes: an infinity if the type has one; else NaN, or as in PyTorch the largest number.
template <int kMantissa, int kExponentBias, int kMost, std::uint32_t kOverflow, std::uint32_t kNan>
struct Float8 {
  using Bits = std::uint8_t;
  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kBias = kExponentBias;
  static constexpr int kMostExponent = kMost;
  static constexpr std::uint32_t kInfinity = kOverflow;
  static constexpr std::uint32_t kOnlyNan = kNan;

  static std::uint64_t nan(std::uint64_t) { return kNan; }

  Bits bits;
};
using F8E4M3FN = Float8<3, 7, 8, 0x7e, 0x7f>;  // the largest number, as it has no infinity
using F8E5M2 = Float8<2, 15, 15, 0x7c, 0x7f>;
using F8E4M3FNUZ = Float8<3, 8, 7, 0x80, 0x80>;  // its NaN takes the place of minus zero
using F8E5M2FNUZ = Float8<2, 16, 15, 0x80, 0x80>;

/// A power of two: an exponent alone, without a sign.
struct F8E8M0FNU {
  std::uint8_t bits;
};

/// One byte with a type of its own, so that the rules for uint8 do not apply.
struct Boolean {
  std::uint8_t byte;
};

/// The nearest N, ties to even.
template <class N>
N narrow(double value) {
  constexpr int kBits = N::kMantissaBits;
  constexpr int kSignBit = 8 * sizeof(N) - 1;
  const std::uint64_t pattern = std::bit_cast<std::uint64_t>(value);
  std::uint64_t sign = pattern >> 63 << kSignBit;
  const std::uint64_t fraction = pattern & ((std::uint64_t{1} << 52) - 1);
  const int exponent = static_cast<int>(pattern >> 52 & 0x7ff) - 1023;
  std::uint64_t result = N::kInfinity;
  if (exponent == 1024) {
    if (fraction != 0) result = N::nan(fraction);
  } else if (exponent <= N::kMostExponent) {
    // Below the smallest normal number the last place stays fixed, so more bits are dropped. Beyond
    // 54 all are dropped, and the value is under half of the last place. A double's own subnormals
    // are far below that.
    constexpr int kSmallest = 1 - N::kBias;
    const bool normal = exponent >= kSmallest;
    const int dropped = std::min(52 - kBits + (normal ? 0 : kSmallest - exponent), 54);
    const std::uint64_t significand = fraction | std::uint64_t{1} << 52;
    const std::uint64_t half = std::uint64_t{1} << (dropped - 1);
    const std::uint64_t rest = significand & (2 * half - 1);
    result = significand >> dropped;
    if (rest > half || (rest == half && result % 2 == 1)) ++result;
    // The leading bit of a normal number adds the last 1 of its exponent field, and a carry out of
    // the mantissa runs into the exponent, up to kInfinity: both are intended.
    if (normal) result += static_cast<std::uint64_t>(exponent - kSmallest) << kBits;
    result = std::min<std::uint64_t>(result, N::kInfinity);
  }
  constexpr std::uint64_t kSign = std::uint64_t{1} << kSignBit;
  if constexpr (N::kInfinity == kSign) {
    if (result == 0) sign = 0;  // there is no minus zero
  }
  return N{static_cast<typename N::Bits>(sign | result)};
}

/// Rounds as PyTorch does: the sign is dropped, a tie goes up, and too large a value becomes NaN.
template <>
F8E8M0FNU narrow<F8E8M0FNU>(double value) {
  constexpr int kBias = 127;
  const std::uint64_t pattern = std::bit_cast<std::uint64_t>(value) & ~(std::uint64_t{1} << 63);
  const int exponent = static_cast<int>(pattern >> 52) - 1023;
  const std::uint64_t fraction = pattern & ((std::uint64_t{1} << 52) - 1);
  if (exponent > kBias) return {0xff};
  // Under 2^-126 a float is subnormal, whose tie goes down to the even zero.
  if (exponent < -kBias) return {0};
  if (exponent == -kBias) return {static_cast<std::uint8_t>(fraction != 0 ? 1 : 0)};
  const bool goes_up = fraction >> 51 != 0;
  return {static_cast<std::uint8_t>(exponent + kBias + (goes_up ? 1 : 0))};
}

/// Exact.
template <class N>
float widen(N number) {
  constexpr int kBits = N::kMantissaBits;
  const std::uint32_t sign = std::uint32_t{number.bits} >> 15 << 31;
  const std::uint32_t magnitude = number.bits & 0x7fffu;
  if (magnitude >= N::kInfinity) {
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude - N::kInfinity) << (23 - kBits));
  }
  // Read as a float with the same fields, the number is off by a power of two, subnormal or not.
  const float scaled = std::bit_cast<float>(magnitude << (23 - kBits));
  const float scale = std::bit_cast<float>(static_cast<std::uint32_t>(254 - N::kBias) << 23);
  const float value = N::kBias == 127 ? scaled : scaled * scale;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

/// The type that an element is computed with: exact for every element of its type.
template <class T>
T value_of(T element) {
  return element;
}
template <int kMantissa>
float value_of(Narrow<kMantissa> element) {
  return widen(element);
}
bool value_of(Boolean element) { return element.byte != 0; }

/// Exact, but for NaN, which is quiet.
template <class N>
float decoded(std::uint8_t bits) {
  const float sign = bits >> 7 != 0 ? -1.0f : 1.0f;
  const unsigned magnitude = bits & 0x7fu;
  const float nan = std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
  if constexpr (N::kInfinity == 0x80) {
    if (bits == N::kOnlyNan) return nan;
  } else if constexpr (N::kInfinity + 1 == N::kOnlyNan) {
    if (magnitude == N::kOnlyNan) return nan;
  } else if (magnitude >= N::kInfinity) {
    return magnitude == N::kInfinity ? sign * std::numeric_limits<float>::infinity() : nan;
  }
  const int exponent = static_cast<int>(magnitude >> N::kMantissaBits);
  const unsigned one = 1u << N::kMantissaBits;
  const unsigned fraction = magnitude & (one - 1);
  const int place = std::max(exponent, 1) - N::kBias - N::kMantissaBits;
  return sign * std::ldexp(static_cast<float>(exponent == 0 ? fraction : fraction | one), place);
}
template <>
float decoded<F8E8M0FNU>(std::uint8_t bits) {
  return bits == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, bits - 127);
}

template <class N>
float from_table(N element) {
  static const std::array<float, 256> kTable = [] {
    std::array<float, 256> table{};
    for (std::size_t bits = 0; bits < table.size(); ++bits) {
      table[bits] = decoded<N>(static_cast<std::uint8_t>(bits));
    }
    return table;
  }();
  return kTable[element.bits];
}
template <int kMantissa, int kBias, int kMost, std::uint32_t kOverflow, std::uint32_t kNan>
float value_of(Float8<kMantissa, kBias, kMost, kOverflow, kNan> element) {
  return from_table(element);
}
float value_of(F8E8M0FNU element) { return from_table(element); }

/// A double for which narrow() gives the same result as for the integer itself. Bits that do not
/// fit into a double set its last place, so that no tie arises that the integer does not have.
template <class Int>
double to_odd_double(Int value) {
  const bool negative = std::cmp_less(value, 0);
  std::uint64_t magnitude = static_cast<std::uint64_t>(value);
  if (negative) magnitude = 0 - magnitude;
  if (magnitude >> 53 != 0) {
    const bool lost = (magnitude & 0x7ff) != 0;
    magnitude = (magnitude >> 11 | (lost ? 1 : 0)) << 11;
  }
  const double result = static_cast<double>(magnitude);
  return negative ? -result : result;
}

/// Truncates toward zero and saturates.
template <class Int, class Float>
Int float_to_int(Float value) {
  using Limits = std::numeric_limits<Int>;
  const Float past_max = std::ldexp(Float{1}, Limits::digits);
  if (std::isnan(value)) return 0;
  if (value >= past_max) return Limits::max();
  if (value <= static_cast<Float>(Limits::min())) return Limits::min();
  return static_cast<Int>(value);
}

template <class To, class Value>
To from_value(Value value) {
  if constexpr (std::is_same_v<To, Boolean>) {
    return Boolean{static_cast<std::uint8_t>(value != Value{0})};
  } else if constexpr (std::is_same_v<Value, bool>) {
    return from_value<To>(std::uint8_t{value});
  } else if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_integral_v<To>) {
    if constexpr (std::is_floating_point_v<Value>) {
      return float_to_int<To>(value);
    } else {
      return static_cast<To>(value);  // the low bits
    }
  } else if constexpr (std::is_floating_point_v<Value>) {
    return narrow<To>(double{value});
  } else {
    return narrow<To>(to_odd_double(value));
  }
}

/// Calls body with a zero element of the type. Requires one that is not complex.
template <class Body>
void with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f64:
      return body(double{});
    case DType::f32:
      return body(float{});
    case DType::f16:
      return body(F16{});
    case DType::bf16:
      return body(BF16{});
    case DType::i64:
      return body(std::int64_t{});
    case DType::i32:
      return body(std::int32_t{});
    case DType::i16:
      return body(std::int16_t{});
    case DType::i8:
      return body(std::int8_t{});
    case DType::u64:
      return body(std::uint64_t{});
    case DType::u32:
      return body(std::uint32_t{});
    case DType::u16:
      return body(std::uint16_t{});
    case DType::u8:
      return body(std::uint8_t{});
    case DType::boolean:
      return body(Boolean{});
    case DType::f8_e4m3fn:
      return body(F8E4M3FN{});
    case DType::f8_e5m2:
      return body(F8E5M2{});
    case DType::f8_e4m3fnuz:
      return body(F8E4M3FNUZ{});
    case DType::f8_e5m2fnuz:
      return body(F8E5M2FNUZ{});
    case DType::f8_e8m0fnu:
      return body(F8E8M0FNU{});
    case DType::c64:
    case DType::c128:
      assert(false && "complex");
  }
}

bool is_complex(DType dtype) { return dtype == DType::c64 || dtype == DType::c128; }

}  // namespace

std::span<const DType> all_dtypes() { return kDTypes; }

std::span<const DType> compute_dtypes() {
  return std::span(kDTypes).first(static_cast<std::size_t>(DType::boolean) + 1);
}

bool is_computed(DType dtype) { return dtype <= DType::boolean; }

bool is_floating(DType dtype) { return dtype <= DType::bf16; }

bool is_signed_integer(DType dtype) { return dtype >= DType::i64 && dtype <= DType::i8; }

std::size_t size_bytes(DType dtype) { return described(dtype).bytes; }

std::string_view name(DType dtype) { return described(dtype).short_name; }

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name(dtype); }

void check_dtype(std::string_view what, DType found, DType needed) {
  if (found == needed) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: found {}, needed {}", what, name(found), name(needed)));
}

DType parse_dtype(std::string_view text) {
  // Names in PyTorch, Hugging Face and safetensors.
  static constexpr std::pair<std::string_view, std::string_view> kOther[] = {
      {"half", "f16"}, {"fp16", "f16"},          {"fp32", "f32"},          {"double", "f64"},
      {"fp64", "f64"}, {"f8_e4m3", "f8_e4m3fn"}, {"f8_e8m0", "f8_e8m0fnu"}};
  std::string plain(text);
  for (char& c : plain) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (plain.starts_with("torch.")) plain.erase(0, 6);
  for (const auto& [other, ours] : kOther) {
    if (plain == other) plain = ours;
  }
  std::string known;
  for (const Description& one : kDescriptions) {
    if (plain == one.short_name || plain == one.long_name) return one.dtype;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", one.short_name);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("dtype \"{}\": it is not known; needed is one of {}", text, known));
}

float f16_to_f32(std::uint16_t bits) { return widen(F16{bits}); }

std::uint16_t f32_to_f16(float value) { return narrow<F16>(double{value}).bits; }

float bf16_to_f32(std::uint16_t bits) { return widen(BF16{bits}); }

std::uint16_t f32_to_bf16(float value) { return narrow<BF16>(double{value}).bits; }

void convert(DType from, const std::byte* source, DType to, std::byte* target, std::size_t count) {
  if (is_complex(from) != is_complex(to)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("convert {} to {}: a complex number becomes only another complex one",
                            name(from), name(to)));
  }
  if (count == 0) return;
  if (from == to) {
    std::memmove(target, source, count * size_bytes(from));
    return;
  }
  if (is_complex(from)) {
    const auto part_of = [](DType dtype) { return dtype == DType::c64 ? DType::f32 : DType::f64; };
    return convert(part_of(from), source, part_of(to), target, 2 * count);
  }
  with_type(from, [&](auto from_element) {
    with_type(to, [&](auto to_element) {
      // Neither range need be aligned.
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(&from_element, source + i * sizeof(from_element), sizeof(from_element));
        to_element = from_value<decltype(to_element)>(value_of(from_element));
        std::memcpy(target + i * sizeof(to_element), &to_element, sizeof(to_element));
      }
    });
  });
}

}  // namespace shardwise
