// The vector functions of tile_f32.cc. Included once per SIMD target, like Highway's own "-inl.h"
// files; HWY_TARGET_TOGGLE distinguishes the targets.
#if defined(SHARDWISE_F32_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARDWISE_F32_MATH_INL_H
#undef SHARDWISE_F32_MATH_INL_H
#else
#define SHARDWISE_F32_MATH_INL_H
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "shardwise/runtime/kernels/detail/tile_functions.h"

HWY_BEFORE_NAMESPACE();
namespace shardwise::detail {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// At most a block, also if the machine's vectors have no bound.
using Floats = hn::CappedTag<float, kBlockBytes / sizeof(float)>;
using Ints = hn::RebindToSigned<Floats>;
using F32 = hn::Vec<Floats>;
using I32 = hn::Vec<Ints>;
using Mask = hn::Mask<Floats>;

HWY_INLINE F32 number(float value) { return hn::Set(Floats(), value); }
HWY_INLINE I32 bits(std::uint32_t value) {
  return hn::Set(Ints(), static_cast<std::int32_t>(value));
}
HWY_INLINE I32 bits_of(F32 x) { return hn::BitCast(Ints(), x); }
HWY_INLINE F32 float_of(I32 x) { return hn::BitCast(Floats(), x); }
template <int kBy>
HWY_INLINE I32 shift_right(I32 x) {  // brings in zeros
  const hn::RebindToUnsigned<Floats> unsigned_tag;
  return hn::BitCast(Ints(), hn::ShiftRight<kBy>(hn::BitCast(unsigned_tag, x)));
}
HWY_INLINE I32 choose(hn::Mask<Ints> condition, I32 yes, I32 no) {
  return hn::IfThenElse(condition, yes, no);
}

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Exact, or rounded as IEEE says.

struct Neg {
  static HWY_INLINE F32 apply(F32 x) { return hn::Neg(x); }
};
struct Abs {
  static HWY_INLINE F32 apply(F32 x) { return hn::Abs(x); }
};
struct Sign {  // zeros and NaN are their own
  static HWY_INLINE F32 apply(F32 x) {
    const F32 zero = hn::Zero(Floats());
    return hn::IfThenElse(hn::Lt(x, zero), number(-1),
                          hn::IfThenElse(hn::Gt(x, zero), number(1), x));
  }
};
struct Sqrt {
  static HWY_INLINE F32 apply(F32 x) { return hn::Sqrt(x); }
};
struct Rsqrt {  // two roundings
  static HWY_INLINE F32 apply(F32 x) { return hn::Div(number(1), hn::Sqrt(x)); }
};
// The result has the sign of x, also for a zero, which not all targets ensure by themselves.
struct Floor {
  static HWY_INLINE F32 apply(F32 x) { return hn::CopySign(hn::Floor(x), x); }
};
struct Ceil {
  static HWY_INLINE F32 apply(F32 x) { return hn::CopySign(hn::Ceil(x), x); }
};
struct Round {
  static HWY_INLINE F32 apply(F32 x) { return hn::CopySign(hn::Round(x), x); }
};
struct IsFinite {
  static HWY_INLINE Mask apply(F32 x) { return hn::Lt(hn::Abs(x), number(kInfinity)); }
};

struct Add {
  static HWY_INLINE F32 apply(F32 a, F32 b) { return hn::Add(a, b); }
};
struct Sub {
  static HWY_INLINE F32 apply(F32 a, F32 b) { return hn::Sub(a, b); }
};
struct Mul {
  static HWY_INLINE F32 apply(F32 a, F32 b) { return hn::Mul(a, b); }
};
struct Div {
  static HWY_INLINE F32 apply(F32 a, F32 b) { return hn::Div(a, b); }
};
// A comparison with NaN is false, so a NaN in `a` stays; a NaN in `b` is chosen by itself. Equal
// numbers differ in their bits only by the sign of a zero, which And and Or choose.
struct Max {
  static HWY_INLINE F32 apply(F32 a, F32 b) {
    const F32 larger = hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(b)), b, a);
    return hn::IfThenElse(hn::Eq(a, b), hn::And(a, b), larger);
  }
};
struct Min {
  static HWY_INLINE F32 apply(F32 a, F32 b) {
    const F32 less = hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(b)), b, a);
    return hn::IfThenElse(hn::Eq(a, b), hn::Or(a, b), less);
  }
};

struct Equal {
  static HWY_INLINE Mask apply(F32 a, F32 b) { return hn::Eq(a, b); }
};
struct NotEqual {  // Highway's Ne is false for NaN on some targets
  static HWY_INLINE Mask apply(F32 a, F32 b) { return hn::Not(hn::Eq(a, b)); }
};
struct Less {
  static HWY_INLINE Mask apply(F32 a, F32 b) { return hn::Lt(a, b); }
};
struct LessEqual {
  static HWY_INLINE Mask apply(F32 a, F32 b) { return hn::Le(a, b); }
};
struct Greater {
  static HWY_INLINE Mask apply(F32 a, F32 b) { return hn::Gt(a, b); }
};
struct GreaterEqual {
  static HWY_INLINE Mask apply(F32 a, F32 b) { return hn::Ge(a, b); }
};

// Approximations. Highway's are for ordinary numbers; the other cases are added here.

struct Exp {
  static HWY_INLINE F32 apply(F32 x) {
    // Within these bounds Highway's powers of two fit; at them the result is 0 and infinity.
    const F32 inside = hn::Min(hn::Max(x, number(-105)), number(105));
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(Floats(), inside));
  }
};
struct Log {
  static HWY_INLINE F32 apply(F32 x) {
    const F32 zero = hn::Zero(Floats());
    F32 y = hn::Log(Floats(), x);
    y = hn::IfThenElse(hn::Eq(x, zero), number(-kInfinity), y);
    y = hn::IfThenElse(hn::Lt(x, zero), number(std::numeric_limits<float>::quiet_NaN()), y);
    // Infinity, and NaN.
    return hn::IfThenElse(hn::Or(hn::Eq(x, number(kInfinity)), hn::IsNaN(x)), x, y);
  }
};
struct Tanh {
  static HWY_INLINE F32 apply(F32 x) { return hn::Tanh(Floats(), x); }
};
struct Logistic {
  static HWY_INLINE F32 apply(F32 x) {
    // exp(-|x|) does not overflow: e / (1 + e) if x is negative, else 1 / (1 + e).
    const F32 e = Exp::apply(hn::Neg(hn::Abs(x)));
    const F32 over = hn::IfThenElse(hn::Lt(x, hn::Zero(Floats())), e, number(1));
    return hn::Div(over, hn::Add(e, number(1)));
  }
};
// x + x A(x^2) near 0, and 1 - exp(-|x| - |x| B(|x|)) beyond, with the coefficients of erff in
// Arm's optimized-routines. Eigen's quotient of polynomials is faster, but off by 6 units near 3.
struct Erf {
  static HWY_INLINE F32 apply(F32 x) {
    const F32 y = hn::Mul(x, x);
    F32 a = number(-0x1.3a1a82p-11f);
    a = hn::MulAdd(a, y, number(0x1.473f48p-08f));
    a = hn::MulAdd(a, y, number(-0x1.b68bd2p-06f));
    a = hn::MulAdd(a, y, number(0x1.ce1a46p-04f));
    a = hn::MulAdd(a, y, number(-0x1.8126e0p-02f));
    a = hn::MulAdd(a, y, number(0x1.06eba6p-03f));
    const F32 near = hn::MulAdd(a, x, x);
    // From 4 on the nearest float is 1.
    const F32 t = hn::Min(hn::Abs(x), number(4));
    F32 b = number(0x1.222900p-16f);
    b = hn::MulAdd(b, t, number(-0x1.91d2ccp-12f));
    b = hn::MulAdd(b, t, number(0x1.fd1336p-9f));
    b = hn::MulAdd(b, t, number(-0x1.8d6300p-6f));
    b = hn::MulAdd(b, t, number(0x1.b55cb0p-4f));
    b = hn::MulAdd(b, t, number(0x1.450aa0p-1f));
    b = hn::MulAdd(b, t, number(0x1.079d0cp-3f));
    const F32 e = hn::Exp(Floats(), hn::Neg(hn::MulAdd(b, t, t)));
    const F32 far = hn::CopySign(hn::Sub(number(1), e), x);
    const F32 both = hn::IfThenElse(hn::Lt(t, number(0.921875f)), near, far);
    return hn::IfThenElse(hn::IsNaN(x), x, both);
  }
};

/// Highway's F up to the largest number for which it is exact, `beyond` for lanes above that.
template <class F>
HWY_INLINE F32 periodic(F32 x, float (*beyond)(float)) {
  const Mask large = hn::Not(hn::Lt(hn::Abs(x), number(39000)));  // infinity and NaN too
  const F32 y = F::apply(hn::IfThenZeroElse(large, x));
  if (HWY_LIKELY(hn::AllFalse(Floats(), large))) return y;
  HWY_ALIGN float from[kBlockBytes / sizeof(float)];
  HWY_ALIGN float to[kBlockBytes / sizeof(float)];
  hn::Store(x, Floats(), from);
  for (std::size_t i = 0; i < hn::Lanes(Floats()); ++i) to[i] = beyond(from[i]);
  return hn::IfThenElse(large, hn::Load(Floats(), to), y);
}
struct SinInside {
  static HWY_INLINE F32 apply(F32 x) {
    const F32 magnitude = hn::Abs(x);  // so that the sine of -0 is -0
    return hn::Xor(hn::Sin(Floats(), magnitude), hn::Xor(x, magnitude));
  }
};
struct CosInside {
  static HWY_INLINE F32 apply(F32 x) { return hn::Cos(Floats(), x); }
};
struct Sin {
  static HWY_INLINE F32 apply(F32 x) { return periodic<SinInside>(x, &std::sin); }
};
struct Cos {
  static HWY_INLINE F32 apply(F32 x) { return periodic<CosInside>(x, &std::cos); }
};

// Conversions, with the results of shardwise::convert.

struct WidenBF16 {
  static HWY_INLINE F32 apply(I32 half) { return float_of(hn::ShiftLeft<16>(half)); }
};
struct NarrowBF16 {
  static HWY_INLINE I32 apply(F32 x) {
    const I32 u = bits_of(x), top = shift_right<16>(u);
    const I32 odd = hn::And(top, bits(1));
    const I32 rounded = shift_right<16>(hn::Add(u, hn::Add(odd, bits(0x7fff))));
    return choose(hn::RebindMask(Ints(), hn::IsNaN(x)), hn::Or(top, bits(0x40)), rounded);
  }
};
struct RoundBF16 {
  static HWY_INLINE F32 apply(F32 x) { return WidenBF16::apply(NarrowBF16::apply(x)); }
};

struct WidenF16 {
  static HWY_INLINE F32 apply(I32 half) {
    const I32 magnitude = hn::And(half, bits(0x7fff));
    const I32 sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
    const I32 fields = hn::ShiftLeft<13>(magnitude);
    // Read as a float with the same fields, the number is off by a power of two, subnormal or not.
    const I32 finite = bits_of(hn::Mul(float_of(fields), number(0x1p112f)));
    const I32 special = hn::Add(fields, bits((255u - 31u) << 23));
    return float_of(hn::Or(sign, choose(hn::Gt(magnitude, bits(0x7bff)), special, finite)));
  }
};
struct NarrowF16 {
  static HWY_INLINE I32 apply(F32 x) {
    const I32 u = bits_of(x), magnitude = hn::And(u, bits(0x7fffffff));
    const I32 sign = shift_right<16>(hn::Xor(u, magnitude));
    // Normal numbers: another bias, and the mantissa rounded in integers. A carry runs into the
    // exponent, up to infinity.
    const I32 odd = hn::And(shift_right<13>(magnitude), bits(1));
    const I32 rebiased = hn::Sub(magnitude, bits((127u - 15u) << 23));
    I32 half = shift_right<13>(hn::Add(rebiased, hn::Add(odd, bits(0xfff))));
    // Subnormal ones: a float near 1/2 has the same last place as f16's subnormals, so adding 1/2
    // rounds to it.
    const I32 small =
        hn::Sub(bits_of(hn::Add(float_of(magnitude), number(0.5f))), bits_of(number(0.5f)));
    half = choose(hn::Lt(magnitude, bits((127u - 14u) << 23)), small, half);
    half = choose(hn::Gt(magnitude, bits(0x477fffff)), bits(0x7c00), half);
    const I32 nan = hn::Or(bits(0x7e00), hn::And(shift_right<13>(magnitude), bits(0x3ff)));
    half = choose(hn::RebindMask(Ints(), hn::IsNaN(x)), nan, half);
    return hn::Or(sign, half);
  }
};
struct RoundF16 {
  static HWY_INLINE F32 apply(F32 x) { return WidenF16::apply(NarrowF16::apply(x)); }
};

struct FromI32 {
  static HWY_INLINE F32 apply(I32 x) { return hn::ConvertTo(Floats(), x); }
};
struct FromU32 {  // both parts are exact, so the sum is rounded once
  static HWY_INLINE F32 apply(I32 x) {
    const F32 high = hn::ConvertTo(Floats(), shift_right<16>(x));
    const F32 low = hn::ConvertTo(Floats(), hn::And(x, bits(0xffff)));
    return hn::Add(hn::Mul(high, number(65536)), low);
  }
};
struct ToI32 {
  static HWY_INLINE I32 apply(F32 x) {
    // Below the least integer a conversion saturates by itself: it gives the same bits as an error.
    const F32 inside = hn::Max(hn::IfThenZeroElse(hn::IsNaN(x), x), number(-0x1p31f));
    const auto over = hn::RebindMask(Ints(), hn::Ge(x, number(0x1p31f)));
    return choose(over, bits(0x7fffffff), hn::ConvertTo(Ints(), inside));
  }
};
struct FromBoolean {
  static HWY_INLINE F32 apply(Mask x) { return hn::IfThenElseZero(x, number(1)); }
};
struct ToBoolean {
  static HWY_INLINE Mask apply(F32 x) { return hn::Not(hn::Eq(x, hn::Zero(Floats()))); }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace shardwise::detail
HWY_AFTER_NAMESPACE();

#endif
