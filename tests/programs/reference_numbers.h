#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "shardwise/runtime/graph/op.h"

namespace shardwise {

// Numbers of the reference: one for an element of any dtype.

/// 64 bits of mantissa or more, so that every integer dtype fits.
using Number = long double;

bool is_floating_type(DType dtype);

/// Calls body(T{}) with the C++ type that has the dtype's bytes.
template <class Body>
auto with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f64:
      return body(double{});
    case DType::f32:
      return body(float{});
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
    case DType::f16:
    case DType::bf16:
      return body(std::uint16_t{});
    case DType::u8:
    case DType::boolean:
      return body(std::uint8_t{});
    default:
      throw std::logic_error("not computed with");
  }
}

/// An integer as 64 bits, whose sums and products wrap around as those of narrower types.
std::uint64_t bits(Number value);

/// The number that the dtype has for the low bits.
Number wrapped(DType dtype, std::uint64_t value);

/// The nearest that the dtype has; integers must be in range.
Number rounded(DType dtype, Number value);

/// As shardwise::convert: floats towards zero, and no further than the dtype goes; integers keep
/// their low bits.
Number converted(DType from, DType to, Number value);

/// Results of elementwise ops for operands of a dtype.
Number apply(Op op, DType dtype, Number x);
Number apply(Op op, DType dtype, Number a, Number b);

/// Infinite if the dtype has that.
Number least_of(DType dtype);
Number largest_of(DType dtype);

/// The word of Philox4x32-10 for an element.
std::uint32_t random_word(std::uint64_t key, std::uint64_t element);

/// The elements in memory as numbers, and numbers as elements: integers wrap around.
std::vector<Number> decode(DType dtype, std::span<const std::byte> bytes);
std::vector<std::byte> encode(DType dtype, std::span<const Number> elements);

enum class ZeroSign { ignored, compared };

/// The first element that differs by more than `tolerance` (relative, absolute below 1), in words;
/// "" if all agree. NaN agrees with NaN.
std::string difference(std::span<const Number> found, std::span<const Number> expected,
                       Number tolerance, ZeroSign zero_sign = ZeroSign::ignored);

}  // namespace shardwise
