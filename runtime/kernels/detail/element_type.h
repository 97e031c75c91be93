#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string>

#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

/// Throws unsupported if kernels do not compute with the dtype. In programs append() has refused it
/// already, naming the op.
inline void need_computed_type(DType dtype) {
  if (is_computed(dtype)) return;
  throw Error(ErrorCode::unsupported, "kernel: found " + std::string(name(dtype)) +
                                          ", needed a type that is computed with");
}

/// True for types that are computed as f32.
constexpr bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

/// Calls body with a zero of the type that compares elements; boolean as bytes of 0 and 1.
/// Requires a dtype that is not half; throws as need_computed_type().
template <class Body>
void with_ordered_type(DType dtype, Body&& body) {
  need_computed_type(dtype);
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
      return body(std::uint16_t{});
    case DType::u8:
    case DType::boolean:
      return body(std::uint8_t{});
    case DType::f16:
    case DType::bf16:
    default:
      assert(false && "computed with as f32");
  }
}

/// Calls body with a zero of the unsigned type of 1, 2, 4 or 8 bytes.
template <class Body>
void with_unsigned_type(std::size_t bytes, Body&& body) {
  switch (bytes) {
    case 1:
      return body(std::uint8_t{});
    case 2:
      return body(std::uint16_t{});
    case 4:
      return body(std::uint32_t{});
    default:
      return body(std::uint64_t{});
  }
}

struct SixteenBytes {
  std::uint64_t first, second;
};

/// Calls body with a zero of a type of 1, 2, 4, 8 or 16 bytes, for elements that are only moved.
template <class Body>
void with_moved_type(std::size_t bytes, Body&& body) {
  if (bytes == sizeof(SixteenBytes)) return body(SixteenBytes{});
  with_unsigned_type(bytes, body);
}

/// Calls body with a zero of the type that adds and multiplies elements: integers are
/// unsigned, so that they wrap around. Requires a dtype that is neither half nor boolean; throws as
/// need_computed_type().
template <class Body>
void with_arithmetic_type(DType dtype, Body&& body) {
  need_computed_type(dtype);
  assert(!is_half(dtype) && dtype != DType::boolean);
  if (dtype == DType::f64) return body(double{});
  if (dtype == DType::f32) return body(float{});
  with_unsigned_type(size_bytes(dtype), body);
}

/// For types of with_arithmetic_type: narrower ones than int would be multiplied as int, and the
/// product may overflow.
template <class T>
T add(T a, T b) {
  return static_cast<T>(a + b);
}
template <class T>
T multiply(T a, T b) {
  if constexpr (sizeof(T) < sizeof(unsigned)) {
    return static_cast<T>(static_cast<unsigned>(a) * static_cast<unsigned>(b));
  } else {
    return a * b;
  }
}

}  // namespace shardwise::detail
