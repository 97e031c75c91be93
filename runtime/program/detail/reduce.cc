#include "shardwise/runtime/program/detail/reduce.h"

#include <algorithm>
#include <cassert>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "shardwise/runtime/program/detail/extremes.h"
namespace shardwise::detail {
namespace {

using Sources = std::span<const std::byte* const>;

/// This many elements at a time stay in the nearest cache while every source is added to them.
constexpr std::size_t kBlock = 2048;

struct Sum {
  template <class T>
  static T combine(T a, T b) {
    if constexpr (std::integral<T>) {
      using Unsigned = std::make_unsigned_t<T>;  // wraps where the signed sum would be undefined
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <class T>
  static T combine(T a, T b) {
    if constexpr (std::integral<T>) {
      // As wide as possible: a narrower type would be promoted to signed int, whose product
      // overflows.
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

struct Max {
  template <class T>
  static T combine(T a, T b) {
    return larger(a, b);
  }
};

struct Min {
  template <class T>
  static T combine(T a, T b) {
    return smaller(a, b);
  }
};

struct Or {
  static std::uint8_t combine(std::uint8_t a, std::uint8_t b) {
    return static_cast<std::uint8_t>(a | b);
  }
};

template <class Op, class T>
void combine_all(T* out, const T* in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = Op::combine(out[i], in[i]);
}

template <class Op, class T>
void reduce_as(Sources sources, std::byte* out, std::size_t count) {
  // A source must not be overwritten before it has been added.
  const bool is_source = std::find(sources.begin(), sources.end(), out) != sources.end();
  T sums[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t length = std::min(kBlock, count - begin);
    std::byte* const block = out + begin * sizeof(T);
    T* const to = is_source ? sums : reinterpret_cast<T*>(block);
    std::memcpy(to, sources[0] + begin * sizeof(T), length * sizeof(T));
    for (const std::byte* source : sources.subspan(1)) {
      combine_all<Op>(to, reinterpret_cast<const T*>(source + begin * sizeof(T)), length);
    }
    if (is_source) std::memcpy(block, sums, length * sizeof(T));
  }
}

template <class Op>
void reduce_half(DType dtype, Sources sources, std::byte* out, std::size_t count) {
  constexpr std::size_t kBytes = 2;
  float sums[kBlock], terms[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t length = std::min(kBlock, count - begin);
    const auto widen = [&](const std::byte* source, float* target) {
      convert(dtype, source + begin * kBytes, DType::f32, reinterpret_cast<std::byte*>(target),
              length);
    };
    widen(sources[0], sums);
    for (const std::byte* source : sources.subspan(1)) {
      widen(source, terms);
      combine_all<Op>(sums, terms, length);
    }
    convert(DType::f32, reinterpret_cast<const std::byte*>(sums), dtype, out + begin * kBytes,
            length);
  }
}

template <class Op>
void reduce_with(DType dtype, Sources sources, std::byte* out, std::size_t count) {
  switch (dtype) {
    case DType::f64:
      return reduce_as<Op, double>(sources, out, count);
    case DType::f32:
      return reduce_as<Op, float>(sources, out, count);
    case DType::f16:
    case DType::bf16:
      return reduce_half<Op>(dtype, sources, out, count);
    case DType::i64:
      return reduce_as<Op, std::int64_t>(sources, out, count);
    case DType::i32:
      return reduce_as<Op, std::int32_t>(sources, out, count);
    case DType::i16:
      return reduce_as<Op, std::int16_t>(sources, out, count);
    case DType::i8:
      return reduce_as<Op, std::int8_t>(sources, out, count);
    case DType::u64:
      return reduce_as<Op, std::uint64_t>(sources, out, count);
    case DType::u32:
      return reduce_as<Op, std::uint32_t>(sources, out, count);
    case DType::u16:
      return reduce_as<Op, std::uint16_t>(sources, out, count);
    case DType::u8:
      return reduce_as<Op, std::uint8_t>(sources, out, count);
    case DType::boolean:
      // Bytes of 0 and 1: the larger is "or", the smaller and the product are "and".
      return reduce_as<
          std::conditional_t<std::same_as<Op, Min> || std::same_as<Op, Product>, Min, Max>,
          std::uint8_t>(sources, out, count);
    default:
      assert(false && "not computed with");
  }
}

}  // namespace

void reduce(Reduction reduction, DType dtype, Sources sources, std::byte* out, std::size_t count) {
  assert(!sources.empty());
  switch (reduction) {
    case Reduction::none:
      assert(false && "nothing to combine with");
      return;
    case Reduction::sum:
      return reduce_with<Sum>(dtype, sources, out, count);
    case Reduction::max:
      return reduce_with<Max>(dtype, sources, out, count);
    case Reduction::min:
      return reduce_with<Min>(dtype, sources, out, count);
    case Reduction::product:
      return reduce_with<Product>(dtype, sources, out, count);
    case Reduction::bit_or:
      return reduce_as<Or, std::uint8_t>(sources, out, count * size_bytes(dtype));
  }
}

}  // namespace shardwise::detail
