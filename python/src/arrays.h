#pragma once

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "bindings.h"
#include "shardwise/runtime/graph/op.h"

namespace shardwise::python {

/// Row-major arrays in host memory, alive as long as these are. They are never copies.
struct ArrayIn : nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> {};
struct ArrayOut : nb::ndarray<nb::c_contig, nb::device::cpu> {};

/// The type under which numpy exports elements: those of ml_dtypes (bf16, f8) are exported as
/// unsigned integers of their width.
inline nb::dlpack::dtype exported(DType dtype) {
  using enum nb::dlpack::dtype_code;
  const auto bits = static_cast<std::uint8_t>(8 * size_bytes(dtype));
  const auto code = dtype == DType::boolean                                             ? Bool
                    : is_signed_integer(dtype)                                          ? Int
                    : dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 ? Float
                    : dtype == DType::c64 || dtype == DType::c128                       ? Complex
                                                                                        : UInt;
  return {static_cast<std::uint8_t>(code), bits, 1};
}

/// The elements of an array that has this type. Throws invalid_argument if it has another.
template <class Array>
auto memory_of(const Array& array, const TensorType& type) {
  bool fits = array.dtype() == exported(type.dtype) && array.ndim() == type.shape.size();
  for (std::size_t dim = 0; fits && dim < array.ndim(); ++dim) {
    fits = std::cmp_equal(array.shape(dim), type.shape[dim]);
  }
  if (!fits) {
    throw Error(ErrorCode::invalid_argument,
                "read an array: found another dtype or shape, needed " + to_string(type));
  }
  using Byte = std::conditional_t<std::is_same_v<Array, ArrayIn>, const std::byte, std::byte>;
  return std::span(static_cast<Byte*>(array.data()), array.nbytes());
}

}  // namespace shardwise::python

// nanobind's own caster would let a copy stand for an array in another order, and its name in the
// stub says nothing about elements.
namespace nanobind::detail {

template <class T>
requires(std::is_same_v<T, shardwise::python::ArrayIn> ||
         std::is_same_v<T, shardwise::python::ArrayOut>) struct type_caster<T> {
  NB_TYPE_CASTER(T, const_name("numpy.typing.NDArray[typing.Any]"))

  bool from_python(handle source, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    const auto cast = [&]<class... Args>(ndarray<Args...>& array) {
      type_caster<ndarray<Args...>> caster;
      const auto as_it_is = flags & ~static_cast<std::uint32_t>(cast_flags::convert);
      if (!caster.from_python(source, as_it_is, cleanup)) return false;
      array = std::move(caster.value);
      return true;
    };
    return cast(value);
  }
};

}  // namespace nanobind::detail
