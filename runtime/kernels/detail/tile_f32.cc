#include <cstdint>
#include <cstring>
#include <utility>

#include "shardwise/runtime/kernels/detail/tile_functions.h"

// Highway compiles this file once per SIMD target and picks one at run time. The targets are
// included again from here, so everything up to the second part is inside HWY_NAMESPACE.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shardwise/runtime/kernels/detail/tile_f32.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway wants it.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "shardwise/runtime/kernels/detail/f32_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shardwise::detail {
namespace HWY_NAMESPACE {
namespace {

// Moves elements from memory to a vector of 32-bit lanes and back.

struct FloatElement {
  static constexpr std::size_t kBytes = 4;
  static HWY_INLINE F32 load(const std::byte* from) {
    return hn::LoadU(Floats(), reinterpret_cast<const float*>(from));
  }
  static HWY_INLINE void store(F32 v, std::byte* to) {
    hn::StoreU(v, Floats(), reinterpret_cast<float*>(to));
  }
};

struct IntElement {
  static constexpr std::size_t kBytes = 4;
  static HWY_INLINE I32 load(const std::byte* from) {
    return hn::LoadU(Ints(), reinterpret_cast<const std::int32_t*>(from));
  }
  static HWY_INLINE void store(I32 v, std::byte* to) {
    hn::StoreU(v, Ints(), reinterpret_cast<std::int32_t*>(to));
  }
};

/// The bits of f16 and bf16.
struct HalfElement {
  static constexpr std::size_t kBytes = 2;
  using Halves = hn::Rebind<std::uint16_t, Floats>;
  static HWY_INLINE I32 load(const std::byte* from) {
    return hn::PromoteTo(Ints(), hn::LoadU(Halves(), reinterpret_cast<const std::uint16_t*>(from)));
  }
  static HWY_INLINE void store(I32 v, std::byte* to) {
    hn::StoreU(hn::DemoteTo(Halves(), v), Halves(), reinterpret_cast<std::uint16_t*>(to));
  }
};

struct BooleanElement {
  static constexpr std::size_t kBytes = 1;
  using Bytes = hn::Rebind<std::uint8_t, Floats>;
  static HWY_INLINE Mask load(const std::byte* from) {
    const I32 bytes =
        hn::PromoteTo(Ints(), hn::LoadU(Bytes(), reinterpret_cast<const std::uint8_t*>(from)));
    return hn::RebindMask(Floats(), hn::Ne(bytes, hn::Zero(Ints())));
  }
  static HWY_INLINE void store(Mask v, std::byte* to) {
    const I32 ones = hn::IfThenElseZero(hn::RebindMask(Ints(), v), hn::Set(Ints(), 1));
    hn::StoreU(hn::DemoteTo(Bytes(), ones), Bytes(), reinterpret_cast<std::uint8_t*>(to));
  }
};

/// F::apply for each vector of the operands.
template <class F, class Out, class... In, std::size_t... k>
void map_tile(const Source* sources, std::byte* out, std::size_t count,
              std::index_sequence<k...> /*operands*/) {
  const std::size_t lanes = hn::Lanes(Floats());
  const std::byte* data[] = {sources[k].data...};
  const std::size_t advance[] = {sources[k].step * In::kBytes * lanes...};
  for (; count >= lanes; count -= lanes) {
    Out::store(F::apply(In::load(data[k])...), out);
    ((data[k] += advance[k]), ...);
    out += lanes * Out::kBytes;
  }
  if (count == 0) return;
  alignas(kBlockBytes) std::byte rest[sizeof...(In)][kBlockBytes] = {};
  alignas(kBlockBytes) std::byte result[kBlockBytes];
  (std::memcpy(rest[k], data[k], count * In::kBytes), ...);
  Out::store(F::apply(In::load(rest[k])...), result);
  std::memcpy(out, result, count * Out::kBytes);
}

template <class F, class Out, class... In>
void tile(const Source* sources, std::byte* out, std::size_t count) {
  map_tile<F, Out, In...>(sources, out, count, std::index_sequence_for<In...>());
}

template <class F>
constexpr TileFunction kUnary = &tile<F, FloatElement, FloatElement>;
template <class F>
constexpr TileFunction kBinary = &tile<F, FloatElement, FloatElement, FloatElement>;
template <class F>
constexpr TileFunction kCompare = &tile<F, BooleanElement, FloatElement, FloatElement>;

struct Select {
  static HWY_INLINE F32 apply(Mask condition, F32 yes, F32 no) {
    return hn::IfThenElse(condition, yes, no);
  }
};

TileFunction find_unary(Op op) {
  switch (op) {
    case Op::neg:
      return kUnary<Neg>;
    case Op::abs:
      return kUnary<Abs>;
    case Op::sign:
      return kUnary<Sign>;
    case Op::exp:
      return kUnary<Exp>;
    case Op::log:
      return kUnary<Log>;
    case Op::tanh:
      return kUnary<Tanh>;
    case Op::logistic:
      return kUnary<Logistic>;
    case Op::erf:
      return kUnary<Erf>;
    case Op::sqrt:
      return kUnary<Sqrt>;
    case Op::rsqrt:
      return kUnary<Rsqrt>;
    case Op::sin:
      return kUnary<Sin>;
    case Op::cos:
      return kUnary<Cos>;
    case Op::floor:
      return kUnary<Floor>;
    case Op::ceil:
      return kUnary<Ceil>;
    case Op::round:
      return kUnary<Round>;
    case Op::is_finite:
      return &tile<IsFinite, BooleanElement, FloatElement>;
    default:
      return nullptr;
  }
}

TileFunction find_function(Op op) {
  switch (op) {
    case Op::add:
      return kBinary<Add>;
    case Op::sub:
      return kBinary<Sub>;
    case Op::mul:
      return kBinary<Mul>;
    case Op::div:
      return kBinary<Div>;
    case Op::max:
      return kBinary<Max>;
    case Op::min:
      return kBinary<Min>;
    case Op::eq:
      return kCompare<Equal>;
    case Op::ne:
      return kCompare<NotEqual>;
    case Op::lt:
      return kCompare<Less>;
    case Op::le:
      return kCompare<LessEqual>;
    case Op::gt:
      return kCompare<Greater>;
    case Op::ge:
      return kCompare<GreaterEqual>;
    case Op::select:
      return &tile<Select, FloatElement, BooleanElement, FloatElement, FloatElement>;
    default:
      return find_unary(op);
  }
}

TileFunction find_convert(DType from, DType to) {
  if (to == DType::f32) {
    switch (from) {
      case DType::f16:
        return &tile<WidenF16, FloatElement, HalfElement>;
      case DType::bf16:
        return &tile<WidenBF16, FloatElement, HalfElement>;
      case DType::i32:
        return &tile<FromI32, FloatElement, IntElement>;
      case DType::u32:
        return &tile<FromU32, FloatElement, IntElement>;
      case DType::boolean:
        return &tile<FromBoolean, FloatElement, BooleanElement>;
      default:
        return nullptr;
    }
  }
  if (from != DType::f32) return nullptr;
  switch (to) {
    case DType::f16:
      return &tile<NarrowF16, HalfElement, FloatElement>;
    case DType::bf16:
      return &tile<NarrowBF16, HalfElement, FloatElement>;
    case DType::i32:
      return &tile<ToI32, IntElement, FloatElement>;
    case DType::boolean:
      return &tile<ToBoolean, BooleanElement, FloatElement>;
    default:
      return nullptr;
  }
}

TileFunction find_rounding(DType to) {
  if (to == DType::f16) return &tile<RoundF16, FloatElement, FloatElement>;
  if (to == DType::bf16) return &tile<RoundBF16, FloatElement, FloatElement>;
  return nullptr;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace shardwise::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardwise::detail {
namespace {

HWY_EXPORT(find_function);
HWY_EXPORT(find_convert);
HWY_EXPORT(find_rounding);

}  // namespace

TileFunction f32_function(Op op) { return HWY_DYNAMIC_DISPATCH(find_function)(op); }

TileFunction convert_function(DType from, DType to) {
  return HWY_DYNAMIC_DISPATCH(find_convert)(from, to);
}

TileFunction rounding_function(DType to) { return HWY_DYNAMIC_DISPATCH(find_rounding)(to); }

}  // namespace shardwise::detail
#endif
