#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "shardwise/runtime/kernels/detail/elementwise.h"
#include "shardwise/shard/dtype.h"

namespace shardwise {

/// Elements of one dtype.
struct Elements {
  DType dtype;
  std::vector<std::byte> bytes;

  std::size_t count() const { return bytes.size() / size_bytes(dtype); }
};

inline bool holds_floats(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

inline bool holds_signed(DType dtype) {
  return dtype == DType::i64 || dtype == DType::i32 || dtype == DType::i16 || dtype == DType::i8;
}

inline Elements elements_of(DType dtype, std::span<const double> values) {
  Elements elements{dtype, std::vector<std::byte>(values.size() * size_bytes(dtype))};
  convert(DType::f64, reinterpret_cast<const std::byte*>(values.data()), dtype,
          elements.bytes.data(), values.size());
  return elements;
}

inline std::uint64_t bits_at(const Elements& elements, std::size_t i) {
  const std::size_t bytes = size_bytes(elements.dtype);
  std::uint64_t bits = 0;
  std::memcpy(&bits, elements.bytes.data() + i * bytes, bytes);
  return bits;
}

/// A floating element, exactly.
inline double double_at(const Elements& elements, std::size_t i) {
  double value;
  convert(elements.dtype, elements.bytes.data() + i * size_bytes(elements.dtype), DType::f64,
          reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

inline bool same_element(const Elements& a, const Elements& b, std::size_t i) {
  if (bits_at(a, i) == bits_at(b, i)) return true;
  return holds_floats(a.dtype) && std::isnan(double_at(a, i)) && std::isnan(double_at(b, i));
}

/// Every kind of element: zeros, infinities, NaN, subnormals, extremes, ordinary numbers, any bits.
inline Elements random_elements(DType dtype, std::size_t count, std::mt19937& random) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static const double kSpecial[] = {0,
                                    -0.0,
                                    1,
                                    -1,
                                    0.5,
                                    2,
                                    kInfinity,
                                    -kInfinity,
                                    std::numeric_limits<double>::quiet_NaN(),
                                    std::numeric_limits<double>::max(),
                                    std::numeric_limits<double>::lowest(),
                                    std::numeric_limits<double>::denorm_min(),
                                    std::numeric_limits<float>::max(),
                                    std::numeric_limits<float>::denorm_min(),
                                    -1e-40,
                                    65504,
                                    65520,
                                    6e-8,
                                    1e-5,
                                    88.7,
                                    -103.5,
                                    1e10};
  std::normal_distribution<double> normal(0, 5);
  std::vector<double> values(count);
  for (double& value : values) {
    value = random() % 3 == 0 ? kSpecial[random() % std::size(kSpecial)] : normal(random);
  }
  Elements elements = elements_of(dtype, values);
  if (dtype == DType::boolean) return elements;
  const std::size_t bytes = size_bytes(dtype);
  for (std::size_t i = 0; i < count; ++i) {
    if (random() % 3 != 0) continue;
    const std::uint64_t any = std::uint64_t{random()} << 32 | random();
    std::memcpy(elements.bytes.data() + i * bytes, &any, bytes);
  }
  return elements;
}

/// The kernel of one instruction.
inline Elements run_one(const ElementwiseInstruction& instruction,
                        std::span<const Elements* const> operands, std::size_t count) {
  std::vector<ElementwiseInput> inputs;
  std::vector<ElementwiseKernel::Operand> data;
  ElementwiseInstruction numbered = instruction;
  numbered.operands.clear();
  for (const Elements* operand : operands) {
    numbered.operands.push_back(static_cast<std::int32_t>(inputs.size()));
    inputs.push_back({operand->dtype});
    data.push_back({operand->bytes.data(), {1}});
  }
  const ElementwiseKernel kernel(inputs, {numbered}, {static_cast<std::int32_t>(inputs.size())});
  Elements out{instruction.dtype, std::vector<std::byte>(count * size_bytes(instruction.dtype))};
  std::byte* const to[] = {out.bytes.data()};
  kernel.run({static_cast<std::int64_t>(count)}, data, to);
  return out;
}

inline constexpr Op kUnaryOps[] = {
    Op::neg,   Op::abs,       Op::sign,       Op::exp,   Op::exp2,
    Op::expm1, Op::log1p,     Op::erf_inv,    Op::cbrt,  Op::population_count,
    Op::log,   Op::tanh,      Op::logistic,   Op::erf,   Op::sqrt,
    Op::rsqrt, Op::sin,       Op::cos,        Op::floor, Op::ceil,
    Op::round, Op::is_finite, Op::logical_not};
inline constexpr Op kBinaryOps[] = {Op::add,
                                    Op::sub,
                                    Op::mul,
                                    Op::div,
                                    Op::rem,
                                    Op::max,
                                    Op::min,
                                    Op::pow,
                                    Op::eq,
                                    Op::ne,
                                    Op::lt,
                                    Op::le,
                                    Op::gt,
                                    Op::ge,
                                    Op::logical_and,
                                    Op::logical_or,
                                    Op::logical_xor,
                                    Op::atan2,
                                    Op::shift_left,
                                    Op::shift_right_logical,
                                    Op::shift_right_arithmetic};

/// Result dtype of an op on operands of a dtype.
inline DType result_of(Op op, DType dtype) {
  const bool truth = op == Op::is_finite || (Op::eq <= op && op <= Op::ge);
  return truth ? DType::boolean : dtype;
}

}  // namespace shardwise
