#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "shardwise/shard/error.h"

namespace shardwise {

/// Element type of a tensor. Stored little-endian; `boolean` is one byte, 0 or 1. The types after
/// `boolean` are stored, moved, saved and read, but not computed with: floats of one byte, named as
/// in ml_dtypes, and complex numbers, the real part first.
enum class DType {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  f8_e4m3fn,
  f8_e5m2,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  f8_e8m0fnu,
  c64,
  c128
};

/// Every DType, in declaration order.
std::span<const DType> all_dtypes();

/// The types up to `boolean`: kernels, reductions and convert() take them.
std::span<const DType> compute_dtypes();
bool is_computed(DType dtype);

/// Whether it is f64, f32, f16 or bf16, the floating types that are computed with.
bool is_floating(DType dtype);

/// Bytes per element: 1, 2, 4, 8 or 16.
std::size_t size_bytes(DType dtype);

/// "f32", "bf16", "bool", "f8_e5m2", ...; also what manifests and the command line use.
std::string_view name(DType dtype);

/// Inverse of name(); also takes the long spellings of numpy and torch ("float32", "bfloat16",
/// "int64", "uint8", "float8_e5m2", "complex64"). Throws invalid_argument, listing the types.
DType parse_dtype(std::string_view text);

/// IEEE binary16 and bfloat16 to and from float. Narrowing rounds to nearest, ties to even;
/// overflow gives infinity; NaN stays NaN.
float f16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_f16(float value);
float bf16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_bf16(float value);

/// Converts `count` elements. Floating targets round to nearest even, straight from the source's
/// exact value (no double rounding: f64 to bf16 does not pass through f32). Floating to integer
/// truncates toward zero and saturates, NaN gives 0. Integer to integer keeps the low bits, so it
/// wraps around, as in numpy, PyTorch and JAX. Anything to bool is `!= 0`. The ranges must not
/// overlap unless the types are equal. Throws unsupported if the types differ and one of them is
/// not computed with.
void convert(DType from, const std::byte* source, DType to, std::byte* target, std::size_t count);

}  // namespace shardwise
