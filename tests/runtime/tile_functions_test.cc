// Every op on every dtype that it is defined for, against a plain reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <string>

#include "elementwise_values.h"
#include "testing/simd_targets.h"

namespace shardwise {
namespace {

__extension__ using Wide = __int128;  // holds sums of all integers, and products that wrap around

Wide wide_at(const Elements& elements, std::size_t i) {
  const std::uint64_t bits = bits_at(elements, i);
  if (!holds_signed(elements.dtype)) return bits;
  const int unused = 64 - static_cast<int>(8 * size_bytes(elements.dtype));
  return static_cast<std::int64_t>(bits << unused) >> unused;
}

Wide wide_power(Wide base, Wide exponent) {
  using Unsigned = std::uint64_t;
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  if (exponent == 0) return 1;
  const auto root = static_cast<Unsigned>(wide_power(base, exponent / 2));
  const Unsigned square = root * root;
  return static_cast<Wide>(exponent % 2 == 0 ? square : square * static_cast<Unsigned>(base));
}

/// Cut to the dtype's bits.
Wide integer_reference(Op op, Wide a, Wide b, DType dtype) {
  const bool boolean = dtype == DType::boolean;
  const int width = static_cast<int>(8 * size_bytes(dtype));
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - width);
  const bool is_out = b < 0 || b >= width;  // of a shift
  switch (op) {
    case Op::neg:
      return -a;
    case Op::abs:
      return a < 0 ? -a : a;
    case Op::sign:
      return (a > 0) - (a < 0);
    case Op::logical_not:
      return boolean ? a == 0 : ~a;
    case Op::add:
      return a + b;
    case Op::sub:
      return a - b;
    case Op::mul:
      return static_cast<Wide>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    case Op::div:
      return b == 0 ? -1 : a / b;
    case Op::rem:
      return b == 0 ? a : a % b;
    case Op::pow:
      return wide_power(a, b);
    case Op::max:
      return std::max(a, b);
    case Op::min:
      return std::min(a, b);
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
    case Op::logical_and:
      return a & b;
    case Op::logical_or:
      return a | b;
    case Op::logical_xor:
      return a ^ b;
    case Op::population_count:
      return std::popcount(static_cast<std::uint64_t>(a) & mask);
    case Op::shift_left:
      return is_out ? 0 : static_cast<Wide>(static_cast<std::uint64_t>(a) << b);
    case Op::shift_right_logical:
      return is_out ? 0 : static_cast<Wide>((static_cast<std::uint64_t>(a) & mask) >> b);
    case Op::shift_right_arithmetic: {
      const int unused = 64 - width;
      const auto bits =
          static_cast<std::int64_t>(static_cast<std::uint64_t>(a) << unused) >> unused;
      return bits >> (is_out ? 63 : b);
    }
    default:
      ADD_FAILURE() << name(op);
      return 0;
  }
}

double max_reference(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  if (a == b) return std::signbit(a) ? b : a;
  return a < b ? b : a;
}

/// By halving.
double erf_inv_reference(double x) {
  if (!(std::fabs(x) <= 1)) return std::numeric_limits<double>::quiet_NaN();
  if (std::fabs(x) == 1) return x * std::numeric_limits<double>::infinity();
  long double low = 0, high = 10;
  for (int i = 0; i < 16400 && low < high; ++i) {
    const long double middle = (low + high) / 2;
    if (middle == low || middle == high) break;
    // Far out, only the distance to 1 tells numbers apart.
    const bool is_low = x > 0.5 || x < -0.5
                            ? std::erfc(middle) > 1 - static_cast<long double>(std::fabs(x))
                            : std::erf(middle) < static_cast<long double>(std::fabs(x));
    (is_low ? low : high) = middle;
  }
  return static_cast<double>(std::copysign(low, static_cast<long double>(x)));
}

/// In f64, which for sums, products, quotients and roots of f32 rounds to the same f32.
double floating_reference(Op op, double a, double b) {
  switch (op) {
    case Op::neg:
      return -a;
    case Op::abs:
      return std::fabs(a);
    case Op::sign:
      return a > 0 ? 1 : a < 0 ? -1 : a;
    case Op::exp:
      return std::exp(a);
    case Op::exp2:
      return std::exp2(a);
    case Op::expm1:
      return std::expm1(a);
    case Op::log:
      return std::log(a);
    case Op::log1p:
      return std::log1p(a);
    case Op::erf_inv:
      return erf_inv_reference(a);
    case Op::cbrt:
      return std::cbrt(a);
    case Op::atan2:
      return std::atan2(a, b);
    case Op::tanh:
      return std::tanh(a);
    case Op::logistic:
      return a < 0 ? std::exp(a) / (1 + std::exp(a)) : 1 / (1 + std::exp(-a));
    case Op::erf:
      return std::erf(a);
    case Op::sqrt:
      return std::sqrt(a);
    case Op::rsqrt:
      return 1 / std::sqrt(a);
    case Op::sin:
      return std::sin(a);
    case Op::cos:
      return std::cos(a);
    case Op::floor:
      return std::floor(a);
    case Op::ceil:
      return std::ceil(a);
    case Op::round:
      return std::nearbyint(a);
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
      return b == 0 || a == 1 ? 1 : std::pow(a, b);  // of a signaling NaN, too
    case Op::max:
      return max_reference(a, b);
    case Op::min:
      return -max_reference(-a, -b);
    case Op::is_finite:
      return std::isfinite(a);
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
      ADD_FAILURE() << name(op);
      return 0;
  }
}

/// Units in the last place of the type that is computed in.
int allowed_units(Op op, DType dtype) {
  switch (op) {
    case Op::exp:
    case Op::log:
    case Op::tanh:
    case Op::erf:
    case Op::sin:
    case Op::cos:
    case Op::pow:
      return dtype == DType::f64 ? 0 : 4;
    case Op::logistic:
    case Op::rsqrt:
    case Op::erf_inv:
      return 4;
    default:
      return 0;
  }
}

/// The float that is `places` places above.
float moved(float value, int places) {
  const auto bits = std::bit_cast<std::int32_t>(value);
  std::int32_t place = bits < 0 ? -(bits & 0x7fffffff) : bits;
  place = std::clamp(place + places, -0x7f800000, 0x7f800000);
  return std::bit_cast<float>(place < 0 ? (-place | INT32_MIN) : place);
}

/// Rounded to the dtype, which is f32, f16 or bf16.
double rounded(DType dtype, float value) {
  if (dtype == DType::f16) return double{f16_to_f32(f32_to_f16(value))};
  if (dtype == DType::bf16) return double{bf16_to_f32(f32_to_bf16(value))};
  return double{value};
}

bool is_near(Op op, DType dtype, double found, double expected) {
  const int units = allowed_units(op, dtype);
  if (std::isnan(expected)) return std::isnan(found);
  if (std::isnan(found)) return false;
  if (expected == 0 && found == 0) return std::signbit(expected) == std::signbit(found);
  if (dtype == DType::f64) {
    const double last = std::fabs(std::nextafter(expected, HUGE_VAL) - expected);
    return found == expected || std::fabs(found - expected) <= units * last;
  }
  const auto exact = static_cast<float>(expected);
  return rounded(dtype, moved(exact, -units)) <= found &&
         found <= rounded(dtype, moved(exact, units));
}

void expect_op(Op op, DType dtype, const Elements& a, const Elements& b) {
  const bool binary =
      std::find(std::begin(kBinaryOps), std::end(kBinaryOps), op) != std::end(kBinaryOps);
  const Elements* const operands[] = {&a, &b};
  const DType result = result_of(op, dtype);
  const Elements out =
      run_one({op, result, {}, 0}, std::span(operands).first(binary ? 2 : 1), a.count());
  for (std::size_t i = 0; i < a.count(); ++i) {
    const auto where = [&] {
      return testing::Message() << name(op) << " of " << name(dtype) << ", bits " << std::hex
                                << bits_at(a, i) << " and " << bits_at(b, i) << ": "
                                << bits_at(out, i);
    };
    if (!holds_floats(dtype)) {
      const Wide expected = integer_reference(op, wide_at(a, i), wide_at(b, i), dtype);
      Elements cut{result, std::vector<std::byte>(size_bytes(result))};
      std::memcpy(cut.bytes.data(), &expected, cut.bytes.size());
      ASSERT_EQ(bits_at(out, i), bits_at(cut, 0)) << where();
      continue;
    }
    const double expected = floating_reference(op, double_at(a, i), double_at(b, i));
    if (result == DType::boolean) {
      ASSERT_EQ(bits_at(out, i), expected == 0 ? 0u : 1u) << where();
    } else {
      ASSERT_TRUE(is_near(op, dtype, double_at(out, i), expected)) << where() << ", " << expected;
    }
  }
}

void for_all_ops(const std::function<void(Op)>& body) {
  for (const Op op : kUnaryOps) body(op);
  for (const Op op : kBinaryOps) body(op);
}

TEST(TileFunctions, EqualAPlainReference) {
  on_each_target([] {
    std::mt19937 random(1);
    for_all_ops([&](Op op) {
      for (const DType dtype : compute_dtypes()) {
        if (!ElementwiseKernel::supports(op, dtype)) continue;
        expect_op(op, dtype, random_elements(dtype, 1501, random),
                  random_elements(dtype, 1501, random));
      }
    });
  });
}

TEST(TileFunctions, AreRightForAllBytes) {
  Elements a{DType::i8, {}}, b = a;
  for (int i = 0; i < 1 << 16; ++i) {
    a.bytes.push_back(static_cast<std::byte>(i));
    b.bytes.push_back(static_cast<std::byte>(i >> 8));
  }
  for (const DType dtype : {DType::i8, DType::u8}) {
    a.dtype = b.dtype = dtype;
    for_all_ops([&](Op op) {
      if (ElementwiseKernel::supports(op, dtype)) expect_op(op, dtype, a, b);
    });
  }
}

TEST(TileFunctions, AreAccurateOverAllMagnitudes) {
  constexpr std::uint32_t kCount = 1 << 17;
  std::vector<float> values;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    values.push_back(std::bit_cast<float>(i * 32771));                         // all exponents
    values.push_back((static_cast<float>(i) - kCount / 2) * (10.f / kCount));  // where they bend
  }
  Elements a{DType::f32, std::vector<std::byte>(values.size() * sizeof(float))};
  std::memcpy(a.bytes.data(), values.data(), a.bytes.size());
  on_each_target([&] {
    for (const Op op : {Op::exp2, Op::expm1, Op::log1p, Op::erf_inv, Op::cbrt, Op::exp, Op::log,
                        Op::tanh, Op::logistic, Op::erf, Op::rsqrt, Op::sin, Op::cos}) {
      expect_op(op, DType::f32, a, a);
    }
  });
}

TEST(TileFunctions, SelectTakesOneOfTwoAsItIs) {
  on_each_target([] {
    std::mt19937 random(3);
    for (const DType dtype : compute_dtypes()) {
      const Elements condition = random_elements(DType::boolean, 999, random);
      const Elements yes = random_elements(dtype, 999, random);
      const Elements no = random_elements(dtype, 999, random);
      const Elements* const operands[] = {&condition, &yes, &no};
      const Elements out = run_one({Op::select, dtype, {}, 0}, operands, 999);
      for (std::size_t i = 0; i < out.count(); ++i) {
        ASSERT_TRUE(same_element(out, bits_at(condition, i) != 0 ? yes : no, i)) << name(dtype);
      }
    }
  });
}

TEST(TileFunctions, ConvertAsTheirDTypesDo) {
  on_each_target([] {
    std::mt19937 random(4);
    for (const DType from : compute_dtypes()) {
      const Elements a = random_elements(from, 4099, random);
      for (const DType to : compute_dtypes()) {
        const Elements* const operands[] = {&a};
        const Elements out = run_one({Op::convert, to, {}, 0}, operands, a.count());
        Elements expected = out;
        convert(from, a.bytes.data(), to, expected.bytes.data(), a.count());
        ASSERT_TRUE(out.bytes == expected.bytes) << name(from) << " to " << name(to);
      }
    }
  });
}

TEST(TileFunctions, NarrowAndWidenAllHalves) {
  on_each_target([] {
    Elements floats{DType::f32, std::vector<std::byte>((1 << 20) * sizeof(float))};
    for (std::uint32_t i = 0; i < 1 << 20; ++i) {  // all exponents, ties included
      const std::uint32_t bits = i << 12;
      std::memcpy(floats.bytes.data() + i * sizeof(bits), &bits, sizeof(bits));
    }
    for (const DType half : {DType::f16, DType::bf16}) {
      const Elements* const operands[] = {&floats};
      const Elements out = run_one({Op::convert, half, {}, 0}, operands, floats.count());
      Elements expected = out;
      convert(DType::f32, floats.bytes.data(), half, expected.bytes.data(), floats.count());
      ASSERT_TRUE(out.bytes == expected.bytes) << name(half);
      const Elements* const back[] = {&out};
      const Elements wide = run_one({Op::convert, DType::f32, {}, 0}, back, out.count());
      Elements expected_wide = wide;
      convert(half, out.bytes.data(), DType::f32, expected_wide.bytes.data(), out.count());
      ASSERT_TRUE(wide.bytes == expected_wide.bytes) << name(half);
    }
  });
}

TEST(TileFunctions, TakeAnyByteButZeroForTrue) {
  Elements odd{DType::boolean, {std::byte{2}, std::byte{0}, std::byte{255}}};
  Elements one{DType::boolean, {std::byte{1}, std::byte{1}, std::byte{1}}};
  const Elements* const operands[] = {&odd, &one};
  const std::vector<std::byte> expected{std::byte{1}, std::byte{0}, std::byte{1}};
  EXPECT_EQ(run_one({Op::eq, DType::boolean, {}, 0}, operands, 3).bytes, expected);
  EXPECT_EQ(run_one({Op::logical_and, DType::boolean, {}, 0}, operands, 3).bytes, expected);
}

TEST(TileFunctions, SupportWhatIsDefined) {
  const auto supported = [](Op op) {
    std::string all;
    for (const DType dtype : all_dtypes()) {
      if (ElementwiseKernel::supports(op, dtype)) all += std::string(name(dtype)) + " ";
    }
    return all;
  };
  const std::string floating = "f64 f32 f16 bf16 ";
  const std::string integers = "i64 i32 i16 i8 u64 u32 u16 u8 ";
  for (const Op op : {Op::exp, Op::log, Op::tanh, Op::logistic, Op::erf, Op::sqrt, Op::rsqrt,
                      Op::sin, Op::cos, Op::floor, Op::ceil, Op::round, Op::is_finite}) {
    EXPECT_EQ(supported(op), floating) << name(op);
  }
  for (const Op op :
       {Op::neg, Op::abs, Op::sign, Op::add, Op::sub, Op::mul, Op::div, Op::rem, Op::pow}) {
    EXPECT_EQ(supported(op), floating + integers) << name(op);
  }
  for (const Op op : {Op::logical_not, Op::logical_and, Op::logical_or, Op::logical_xor}) {
    EXPECT_EQ(supported(op), integers + "bool ") << name(op);
  }
  for (const Op op : {Op::max, Op::min, Op::eq, Op::ne, Op::lt, Op::le, Op::gt, Op::ge, Op::select,
                      Op::convert, Op::constant, Op::identity}) {
    EXPECT_EQ(supported(op), floating + integers + "bool ") << name(op);
  }
  for (const Op op : {Op::input, Op::iota, Op::broadcast, Op::reduce_sum, Op::dot_general}) {
    EXPECT_EQ(supported(op), "") << name(op);
  }
}

}  // namespace
}  // namespace shardwise
