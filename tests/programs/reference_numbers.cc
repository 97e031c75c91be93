#include "reference_numbers.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace shardwise {

bool is_floating_type(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

std::uint64_t bits(Number value) {
  return value < 0 ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value))
                   : static_cast<std::uint64_t>(value);
}

Number wrapped(DType dtype, std::uint64_t value) {
  return with_type(
      dtype, [&](auto zero) { return static_cast<Number>(static_cast<decltype(zero)>(value)); });
}

Number rounded(DType dtype, Number value) {
  switch (dtype) {
    case DType::f64:
      return static_cast<double>(value);
    case DType::f32:
      return static_cast<float>(value);
    case DType::f16:
      return f16_to_f32(f32_to_f16(static_cast<float>(value)));
    case DType::bf16:
      return bf16_to_f32(f32_to_bf16(static_cast<float>(value)));
    case DType::boolean:
      return value != 0 ? 1 : 0;
    default:
      return value == 0 ? 0 : value;  // without a sign
  }
}

Number converted(DType from, DType to, Number value) {
  if (is_floating_type(to) || to == DType::boolean) return rounded(to, value);
  if (!is_floating_type(from)) return wrapped(to, bits(value));
  if (std::isnan(value)) return 0;
  return with_type(to, [&](auto zero) {
    using Limits = std::numeric_limits<decltype(zero)>;
    return std::clamp(std::trunc(value), static_cast<Number>(Limits::min()),
                      static_cast<Number>(Limits::max()));
  });
}

namespace {

/// By halving.
Number erf_inverse(Number x) {
  if (!(std::abs(x) <= 1)) return std::numeric_limits<Number>::quiet_NaN();
  if (std::abs(x) == 1) return x * std::numeric_limits<Number>::infinity();
  Number low = -10, high = 10;
  for (int i = 0; i < 80; ++i) {
    const Number middle = (low + high) / 2;
    (std::erf(middle) < x ? low : high) = middle;
  }
  return low;
}

Number float_unary(Op op, Number x) {
  switch (op) {
    case Op::neg:
      return -x;
    case Op::abs:
      return std::abs(x);
    case Op::sign:
      return x > 0 ? 1 : x < 0 ? -1 : x;
    case Op::exp:
      return std::exp(x);
    case Op::exp2:
      return std::exp2(x);
    case Op::expm1:
      return std::expm1(x);
    case Op::log:
      return std::log(x);
    case Op::log1p:
      return std::log1p(x);
    case Op::erf_inv:
      return erf_inverse(x);
    case Op::cbrt:
      return std::cbrt(x);
    case Op::tanh:
      return std::tanh(x);
    case Op::logistic:
      return 1 / (1 + std::exp(-x));
    case Op::erf:
      return std::erf(x);
    case Op::sqrt:
      return std::sqrt(x);
    case Op::rsqrt:
      return 1 / std::sqrt(x);
    case Op::sin:
      return std::sin(x);
    case Op::cos:
      return std::cos(x);
    case Op::floor:
      return std::floor(x);
    case Op::ceil:
      return std::ceil(x);
    case Op::round:
      return std::nearbyint(x);
    default:
      throw std::logic_error("not unary");
  }
}

/// As many as the dtype has.
std::uint64_t low_bits(DType dtype) { return ~std::uint64_t{0} >> (64 - 8 * size_bytes(dtype)); }

Number integer_unary(Op op, DType dtype, Number x) {
  switch (op) {
    case Op::neg:
      return wrapped(dtype, 0 - bits(x));
    case Op::abs:
      return x < 0 ? wrapped(dtype, 0 - bits(x)) : x;
    case Op::sign:
      return x > 0 ? 1 : x < 0 ? -1 : 0;
    case Op::logical_not:
      return dtype == DType::boolean ? (x == 0 ? 1 : 0) : wrapped(dtype, ~bits(x));
    case Op::population_count:
      return std::popcount(bits(x) & low_bits(dtype));
    default:
      throw std::logic_error("not unary");
  }
}

Number extreme(Op op, Number a, Number b) {
  if (std::isnan(a)) return a;
  if (std::isnan(b)) return b;
  if (a == b) return std::signbit(a) == (op == Op::max) ? b : a;  // -0 is less than 0
  return op == Op::max ? std::max(a, b) : std::min(a, b);
}

Number float_binary(Op op, Number a, Number b) {
  switch (op) {
    case Op::add:
      return a + b;
    case Op::sub:
      return a - b;
    case Op::mul:
      return a * b;
    case Op::div:
      return a / b;
    case Op::rem:
      return std::fmod(a, b);
    case Op::pow:
      return std::pow(a, b);
    case Op::atan2:
      return std::atan2(a, b);
    default:
      throw std::logic_error("not binary");
  }
}

Number integer_power(DType dtype, Number base, Number exponent) {
  if (exponent < 0) {
    if (base == 1) return 1;
    if (base == -1) return std::fmod(exponent, 2) == 0 ? 1 : -1;
    return 0;
  }
  std::uint64_t product = 1;
  for (Number i = 0; i < exponent; ++i) product *= bits(base);
  return wrapped(dtype, product);
}

Number integer_binary(Op op, DType dtype, Number a, Number b) {
  const std::uint64_t width = 8 * size_bytes(dtype);
  const bool is_out = b < 0 || b >= static_cast<Number>(width);  // of a shift
  switch (op) {
    case Op::add:
      return wrapped(dtype, bits(a) + bits(b));
    case Op::sub:
      return wrapped(dtype, bits(a) - bits(b));
    case Op::mul:
      return wrapped(dtype, bits(a) * bits(b));
    case Op::div:
      if (b == 0) return wrapped(dtype, ~std::uint64_t{0});
      return b == -1 ? wrapped(dtype, 0 - bits(a)) : std::trunc(a / b);
    case Op::rem:
      return b == 0 ? a : std::fmod(a, b);
    case Op::pow:
      return integer_power(dtype, a, b);
    case Op::logical_and:
      return wrapped(dtype, bits(a) & bits(b));
    case Op::logical_or:
      return wrapped(dtype, bits(a) | bits(b));
    case Op::logical_xor:
      return wrapped(dtype, bits(a) ^ bits(b));
    case Op::shift_left:
      return is_out ? 0 : wrapped(dtype, bits(a) << bits(b));
    case Op::shift_right_logical:
      return is_out ? 0 : wrapped(dtype, (bits(a) & low_bits(dtype)) >> bits(b));
    case Op::shift_right_arithmetic: {
      const std::uint64_t by = is_out ? width - 1 : bits(b);
      // Signed, whatever the dtype.
      std::uint64_t signs = bits(a) & low_bits(dtype);
      if ((signs >> (width - 1)) != 0) signs |= ~low_bits(dtype);
      return wrapped(dtype, static_cast<std::uint64_t>(static_cast<std::int64_t>(signs) >> by));
    }
    default:
      throw std::logic_error("not binary");
  }
}

Number comparison(Op op, Number a, Number b) {
  switch (op) {
    case Op::eq:
      return a == b;
    case Op::ne:
      return a != b;
    case Op::lt:
      return a < b;
    case Op::le:
      return a <= b;
    case Op::gt:
      return a > b;
    case Op::ge:
      return a >= b;
    default:
      throw std::logic_error("not a comparison");
  }
}

}  // namespace

Number apply(Op op, DType dtype, Number x) {
  if (op == Op::is_finite) return std::isfinite(x) ? 1 : 0;
  return is_floating_type(dtype) ? float_unary(op, x) : integer_unary(op, dtype, x);
}

Number apply(Op op, DType dtype, Number a, Number b) {
  switch (op) {
    case Op::max:
    case Op::min:
      return extreme(op, a, b);
    case Op::eq:
    case Op::ne:
    case Op::lt:
    case Op::le:
    case Op::gt:
    case Op::ge:
      return comparison(op, a, b);
    default:
      return is_floating_type(dtype) ? float_binary(op, a, b) : integer_binary(op, dtype, a, b);
  }
}

Number least_of(DType dtype) {
  if (is_floating_type(dtype)) return -std::numeric_limits<Number>::infinity();
  if (dtype == DType::boolean) return 0;
  return with_type(dtype, [](auto zero) -> Number {
    return static_cast<Number>(std::numeric_limits<decltype(zero)>::min());
  });
}
Number largest_of(DType dtype) {
  if (is_floating_type(dtype)) return std::numeric_limits<Number>::infinity();
  if (dtype == DType::boolean) return 1;
  return with_type(dtype, [](auto zero) -> Number {
    return static_cast<Number>(std::numeric_limits<decltype(zero)>::max());
  });
}

std::uint32_t random_word(std::uint64_t key, std::uint64_t element) {
  const std::uint64_t block = element / 4;
  std::array<std::uint64_t, 4> c{block & 0xffffffff, block >> 32, 0, 0};
  std::uint64_t k0 = key & 0xffffffff, k1 = key >> 32;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53 * c[0], b = 0xCD9E8D57 * c[2];
    c = {(b >> 32) ^ c[1] ^ k0, b & 0xffffffff, (a >> 32) ^ c[3] ^ k1, a & 0xffffffff};
    k0 = (k0 + 0x9E3779B9) & 0xffffffff;
    k1 = (k1 + 0xBB67AE85) & 0xffffffff;
  }
  return static_cast<std::uint32_t>(c[element % 4]);
}

std::vector<Number> decode(DType dtype, std::span<const std::byte> bytes) {
  return with_type(dtype, [&](auto element) {
    std::vector<Number> elements;
    for (std::size_t at = 0; at < bytes.size(); at += sizeof element) {
      std::memcpy(&element, bytes.data() + at, sizeof element);
      if (dtype == DType::f16) {
        elements.push_back(f16_to_f32(static_cast<std::uint16_t>(element)));
      } else if (dtype == DType::bf16) {
        elements.push_back(bf16_to_f32(static_cast<std::uint16_t>(element)));
      } else {
        elements.push_back(static_cast<Number>(element));
      }
    }
    return elements;
  });
}

std::vector<std::byte> encode(DType dtype, std::span<const Number> elements) {
  return with_type(dtype, [&](auto element) {
    std::vector<std::byte> bytes(elements.size() * sizeof element);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (dtype == DType::f16) {
        element = static_cast<decltype(element)>(f32_to_f16(static_cast<float>(elements[i])));
      } else if (dtype == DType::bf16) {
        element = static_cast<decltype(element)>(f32_to_bf16(static_cast<float>(elements[i])));
      } else if (is_floating_type(dtype)) {
        element = static_cast<decltype(element)>(elements[i]);
      } else {
        element = static_cast<decltype(element)>(bits(elements[i]));
      }
      std::memcpy(bytes.data() + i * sizeof element, &element, sizeof element);
    }
    return bytes;
  });
}

std::string difference(std::span<const Number> found, std::span<const Number> expected,
                       Number tolerance, ZeroSign zero_sign) {
  if (found.size() != expected.size()) {
    return "found " + std::to_string(found.size()) + " elements, expected " +
           std::to_string(expected.size());
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(found[i]) && std::isnan(expected[i])) continue;
    const bool same_sign = std::signbit(found[i]) == std::signbit(expected[i]);
    if (found[i] == expected[i] && (same_sign || zero_sign == ZeroSign::ignored)) {
      continue;  // infinities too
    }
    const Number most = tolerance * std::max<Number>(1, std::abs(expected[i]));
    if (tolerance > 0 && std::abs(found[i] - expected[i]) <= most) continue;
    return "element " + std::to_string(i) + ": found " + std::to_string(found[i]) + ", expected " +
           std::to_string(expected[i]);
  }
  return "";
}

}  // namespace shardwise
