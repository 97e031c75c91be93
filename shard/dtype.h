#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

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

namespace detail {

template <class T, class... Others>
inline constexpr bool kIsOneOf = (std::same_as<T, Others> || ...);

// std::complex, without its header.
template <class T, class Part>
concept ComplexOf = std::same_as<typename T::value_type, Part> && sizeof(T) == 2 * sizeof(Part) &&
                    requires(const T& x) {
  x.real() + x.imag();
};

template <class T>
constexpr std::optional<DType> find_dtype() {
  if constexpr (std::same_as<T, double>) return DType::f64;
  if constexpr (std::same_as<T, float>) return DType::f32;
  if constexpr (std::same_as<T, bool>) return DType::boolean;
  if constexpr (ComplexOf<T, float>) return DType::c64;
  if constexpr (ComplexOf<T, double>) return DType::c128;
  if constexpr (std::integral<T> &&
                !kIsOneOf<T, bool, char, wchar_t, char8_t, char16_t, char32_t>) {
    constexpr bool is_signed = std::signed_integral<T>;
    if constexpr (sizeof(T) == 1) return is_signed ? DType::i8 : DType::u8;
    if constexpr (sizeof(T) == 2) return is_signed ? DType::i16 : DType::u16;
    if constexpr (sizeof(T) == 4) return is_signed ? DType::i32 : DType::u32;
    if constexpr (sizeof(T) == 8) return is_signed ? DType::i64 : DType::u64;
  }
  return std::nullopt;
}

}  // namespace detail

/// The C++ types that are elements of a tensor: float, double, integers, bool and std::complex of
/// float and double.
template <class T>
concept TensorElement = (detail::find_dtype<std::remove_cv_t<T>>() != std::nullopt);

/// The dtype of a C++ type.
///
///   dtype_of<float>();          // f32
///   dtype_of<std::int64_t>();   // i64
template <TensorElement T>
constexpr DType dtype_of() {
  return *detail::find_dtype<std::remove_cv_t<T>>();
}

/// A std::vector, std::array, array or std::span of elements that outlives the expression it is in.
/// std::vector<bool> does not qualify: its elements are not side by side in memory.
template <class R>
concept ElementRange = requires(R&& range) {
  requires TensorElement<typename decltype(std::span(std::forward<R>(range)))::element_type>;
};

/// The same, but it need not outlive the call: functions that take one copy it.
template <class R>
concept ElementValues = ElementRange<const R&>;

/// The dtype of a range's elements.
template <ElementRange R>
constexpr DType dtype_of_elements() {
  return dtype_of<typename decltype(std::span(std::declval<R>()))::element_type>();
}

/// A vector of `count` elements, whose bytes `fill` writes.
template <TensorElement T, std::invocable<std::span<std::byte>> Fill>
std::vector<T> filled_vector(std::size_t count, const Fill& fill) {
  if constexpr (std::same_as<T, bool>) {
    std::vector<std::uint8_t> bytes(count);
    fill(std::as_writable_bytes(std::span(bytes)));
    return std::vector<bool>(bytes.begin(), bytes.end());
  } else {
    std::vector<T> values(count);
    fill(std::as_writable_bytes(std::span(values)));
    return values;
  }
}

/// Every DType, in declaration order.
std::span<const DType> all_dtypes();

/// The types up to `boolean`: kernels and reductions take them.
std::span<const DType> compute_dtypes();
bool is_computed(DType dtype);

/// True if the dtype is f64, f32, f16 or bf16, the floating types that kernels compute with.
bool is_floating(DType dtype);

/// True if the dtype is an integer that may be negative.
bool is_signed_integer(DType dtype);

/// Bytes per element: 1, 2, 4, 8 or 16.
std::size_t size_bytes(DType dtype);

/// "f32", "bf16", "bool", "f8_e5m2", ...: the names in manifests and on the command line.
std::string_view name(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);
template <std::same_as<DType> T>
std::string to_string(T) = delete;  // name(dtype)

/// Throws invalid_argument if elements of `found` are used as elements of `needed`: "read tensor
/// "w": found f32, needed i32". `what` is the text before the colon.
void check_dtype(std::string_view what, DType found, DType needed);

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
/// wraps around, as in numpy, PyTorch and JAX. Anything to bool is `!= 0`. Floats of one byte are
/// rounded as PyTorch 2.15 does: f8_e4m3fn saturates, the others overflow to infinity, or to NaN if
/// they have no infinity; f8_e8m0fnu gets the nearest power of two of the modulus. The ranges must
/// not overlap unless the types are equal. Throws unsupported if only one of the types is complex.
void convert(DType from, const std::byte* source, DType to, std::byte* target, std::size_t count);

}  // namespace shardwise
