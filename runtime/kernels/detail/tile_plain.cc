#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "shardwise/runtime/kernels/detail/element_type.h"
#include "shardwise/runtime/kernels/detail/plain_ops.h"
#include "shardwise/runtime/kernels/detail/strided_copy.h"
#include "shardwise/runtime/kernels/detail/tile_functions.h"

namespace shardwise::detail {
namespace {

/// A stored boolean. It is computed as bool.
struct StoredBool {
  std::uint8_t byte;
};

template <class T>
T plain_value(T element) {
  return element;
}
bool plain_value(StoredBool element) { return element.byte != 0; }

template <class Out, class T>
Out plain_element(T value) {
  return Out{value};
}

/// Applies F to blocks of elements. They pass through arrays of their own, so that compilers need
/// not ask whether operands and result overlap; the last block is filled up with zeros.
template <class F, class Out, class... In>
struct PlainTile {
  static constexpr std::size_t kBlock =
      F::kSlow ? 1 : kBlockBytes / std::max({sizeof(Out), sizeof(In)...});

  template <class T>
  static std::array<T, kBlock> load(const std::byte* from, std::size_t count) {
    std::array<T, kBlock> elements{};
    std::memcpy(elements.data(), from, count * sizeof(T));
    return elements;
  }

  static std::array<Out, kBlock> block(const std::array<In, kBlock>&... in) {
    std::array<Out, kBlock> out;
    for (std::size_t i = 0; i < kBlock; ++i)
      out[i] = plain_element<Out>(F::apply(plain_value(in[i])...));
    return out;
  }

  template <std::size_t... k>
  static void map(const Source* sources, std::byte* out, std::size_t count,
                  std::index_sequence<k...> /*operands*/) {
    const std::byte* data[] = {sources[k].data...};
    const std::size_t advance[] = {sources[k].step * sizeof(In) * kBlock...};
    for (; count >= kBlock; count -= kBlock) {
      const auto results = block(load<In>(data[k], kBlock)...);
      std::memcpy(out, results.data(), sizeof(results));
      ((data[k] += advance[k]), ...);
      out += sizeof(results);
    }
    if (count == 0) return;
    const auto results = block(load<In>(data[k], count)...);
    std::memcpy(out, results.data(), count * sizeof(Out));
  }

  static void tile(const Source* sources, std::byte* out, std::size_t count) {
    map(sources, out, count, std::index_sequence_for<In...>());
  }
};

template <class F, class T>
constexpr TileFunction kPlainUnary = &PlainTile<F, T, T>::tile;
template <class F, class T>
constexpr TileFunction kPlainBinary = &PlainTile<F, T, T, T>::tile;
template <class F, class T>
constexpr TileFunction kPlainCompare = &PlainTile<F, StoredBool, T, T>::tile;
template <double (*kFunction)(double), class T = double>
constexpr TileFunction kPlainLibrary = kPlainUnary<PlainLibrary<kFunction>, T>;

/// For every dtype.
template <class T>
TileFunction find_comparison(Op op) {
  switch (op) {
    case Op::max:
      return kPlainBinary<PlainMax, T>;
    case Op::min:
      return kPlainBinary<PlainMin, T>;
    case Op::eq:
      return kPlainCompare<PlainEqual, T>;
    case Op::ne:
      return kPlainCompare<PlainNotEqual, T>;
    case Op::lt:
      return kPlainCompare<PlainLess, T>;
    case Op::le:
      return kPlainCompare<PlainLessEqual, T>;
    case Op::gt:
      return kPlainCompare<PlainGreater, T>;
    case Op::ge:
      return kPlainCompare<PlainGreaterEqual, T>;
    case Op::select:
      return &PlainTile<PlainSelect, T, StoredBool, T, T>::tile;
    default:
      return nullptr;
  }
}

/// For integers and booleans.
template <class T>
TileFunction find_logical(Op op) {
  switch (op) {
    case Op::logical_not:
      return kPlainUnary<PlainNot, T>;
    case Op::logical_and:
      return kPlainBinary<PlainAnd, T>;
    case Op::logical_or:
      return kPlainBinary<PlainOr, T>;
    case Op::logical_xor:
      return kPlainBinary<PlainXor, T>;
    default:
      return nullptr;
  }
}

/// For integers.
template <class T>
TileFunction find_bits(Op op) {
  switch (op) {
    case Op::population_count:
      return kPlainUnary<PlainPopulationCount, T>;
    case Op::shift_left:
      return kPlainBinary<PlainShiftLeft, T>;
    case Op::shift_right_logical:
      return kPlainBinary<PlainShiftRight, T>;
    case Op::shift_right_arithmetic:
      return kPlainBinary<PlainShiftRightArithmetic, T>;
    default:
      return nullptr;
  }
}

/// For f32 functions without a vector version, and for f64.
template <class T>
TileFunction find_library(Op op) {
  switch (op) {
    case Op::exp2:
      return kPlainLibrary<&std::exp2, T>;
    case Op::expm1:
      return kPlainLibrary<&std::expm1, T>;
    case Op::log1p:
      return kPlainLibrary<&std::log1p, T>;
    case Op::erf_inv:
      return kPlainLibrary<&erf_inv, T>;
    case Op::cbrt:
      return kPlainLibrary<&std::cbrt, T>;
    case Op::atan2:
      return kPlainBinary<PlainAtan2, T>;
    default:
      return nullptr;
  }
}

/// For numbers.
template <class T>
TileFunction find_arithmetic(Op op) {
  switch (op) {
    case Op::neg:
      return kPlainUnary<PlainNeg, T>;
    case Op::abs:
      return kPlainUnary<PlainAbs, T>;
    case Op::sign:
      return kPlainUnary<PlainSign, T>;
    case Op::add:
      return kPlainBinary<PlainAdd, T>;
    case Op::sub:
      return kPlainBinary<PlainSub, T>;
    case Op::mul:
      return kPlainBinary<PlainMul, T>;
    case Op::div:
      return kPlainBinary<PlainDiv, T>;
    case Op::rem:
      return kPlainBinary<PlainRem, T>;
    case Op::pow:
      return kPlainBinary<PlainPow, T>;
    default:
      return nullptr;
  }
}

TileFunction find_f64(Op op) {
  switch (op) {
    case Op::exp:
      return kPlainLibrary<&std::exp>;
    case Op::log:
      return kPlainLibrary<&std::log>;
    case Op::tanh:
      return kPlainLibrary<&std::tanh>;
    case Op::erf:
      return kPlainLibrary<&std::erf>;
    case Op::sin:
      return kPlainLibrary<&std::sin>;
    case Op::cos:
      return kPlainLibrary<&std::cos>;
    case Op::sqrt:
      return kPlainLibrary<&std::sqrt>;
    case Op::floor:
      return kPlainLibrary<&std::floor>;
    case Op::ceil:
      return kPlainLibrary<&std::ceil>;
    case Op::round:
      return kPlainLibrary<&std::nearbyint>;
    case Op::logistic:
      return kPlainUnary<PlainLogistic, double>;
    case Op::rsqrt:
      return kPlainUnary<PlainRsqrt, double>;
    case Op::is_finite:
      return &PlainTile<PlainIsFinite, StoredBool, double>::tile;
    default:
      return nullptr;
  }
}

TileFunction first_function(std::initializer_list<TileFunction> functions) {
  for (const TileFunction function : functions) {
    if (function != nullptr) return function;
  }
  return nullptr;
}

template <class T>
TileFunction find_for_integer(Op op) {
  return first_function(
      {find_arithmetic<T>(op), find_comparison<T>(op), find_logical<T>(op), find_bits<T>(op)});
}

template <std::size_t kBytes>
void copy_plain_tile(const Source* source, std::byte* out, std::size_t count) {
  if (source->step == 1) {
    std::memmove(out, source->data, count * kBytes);
    return;
  }
  fill_elements(source->data, kBytes, out, count);
}

}  // namespace

DType compute_dtype(DType dtype) { return is_half(dtype) ? DType::f32 : dtype; }

TileFunction tile_function(Op op, DType dtype) {
  switch (dtype) {
    case DType::f64:
      return first_function({find_f64(op), find_library<double>(op), find_arithmetic<double>(op),
                             find_comparison<double>(op)});
    case DType::f32:
      if (op == Op::rem) return kPlainBinary<PlainRem, float>;
      if (op == Op::pow) return kPlainBinary<PlainPow, float>;
      return first_function({find_library<float>(op), f32_function(op)});
    case DType::i64:
      return find_for_integer<std::int64_t>(op);
    case DType::i32:
      return find_for_integer<std::int32_t>(op);
    case DType::i16:
      return find_for_integer<std::int16_t>(op);
    case DType::i8:
      return find_for_integer<std::int8_t>(op);
    case DType::u64:
      return find_for_integer<std::uint64_t>(op);
    case DType::u32:
      return find_for_integer<std::uint32_t>(op);
    case DType::u16:
      return find_for_integer<std::uint16_t>(op);
    case DType::u8:
      return find_for_integer<std::uint8_t>(op);
    case DType::boolean:
      return first_function({find_comparison<StoredBool>(op), find_logical<StoredBool>(op)});
    default:
      return nullptr;
  }
}

TileFunction copy_function(std::size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return &copy_plain_tile<1>;
    case 2:
      return &copy_plain_tile<2>;
    case 4:
      return &copy_plain_tile<4>;
    default:
      return &copy_plain_tile<8>;
  }
}

}  // namespace shardwise::detail
