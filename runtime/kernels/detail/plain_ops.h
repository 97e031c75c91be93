#pragma once

#include <bit>
#include <cmath>
#include <concepts>
#include <type_traits>

#include "shardwise/runtime/program/detail/extremes.h"

namespace shardwise::detail {

// The element-by-element functions of the plain tiles. Booleans are bool.

struct QuickPlainOp {
  static constexpr bool kSlow = false;
};
struct SlowPlainOp {  // not worth filling up a block
  static constexpr bool kSlow = true;
};

/// A type whose sums and products wrap around instead of overflowing. It is no narrower than int:
/// narrower types would be promoted to int, with overflow.
template <class T>
using Wrapping = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

template <class T>
Wrapping<T> wrapping(T value) {
  return static_cast<Wrapping<T>>(value);
}

struct PlainNeg : QuickPlainOp {
  template <class T>
  static T apply(T x) {
    if constexpr (std::integral<T>) {
      return static_cast<T>(0 - wrapping(x));
    } else {
      return static_cast<T>(-x);
    }
  }
};
struct PlainAbs : QuickPlainOp {
  template <class T>
  static T apply(T x) {
    if constexpr (std::integral<T>) {
      return x < 0 ? PlainNeg::apply(x) : x;
    } else {
      return static_cast<T>(std::abs(x));
    }
  }
};
struct PlainSign : QuickPlainOp {  // zeros and NaN are their own
  template <class T>
  static T apply(T x) {
    if (x > 0) return T{1};
    return x < 0 ? static_cast<T>(-1) : x;
  }
};

struct PlainAdd : QuickPlainOp {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::integral<T>) {
      return static_cast<T>(wrapping(a) + wrapping(b));
    } else {
      return a + b;
    }
  }
};
struct PlainSub : QuickPlainOp {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::integral<T>) {
      return static_cast<T>(wrapping(a) - wrapping(b));
    } else {
      return a - b;
    }
  }
};
struct PlainMul : QuickPlainOp {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::integral<T>) {
      return static_cast<T>(wrapping(a) * wrapping(b));
    } else {
      return a * b;
    }
  }
};
struct PlainDiv : QuickPlainOp {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::integral<T>) {
      if (b == 0) return static_cast<T>(-1);
      if (b == static_cast<T>(-1) && std::signed_integral<T>) return PlainNeg::apply(a);
    }
    return static_cast<T>(a / b);
  }
};
struct PlainRem : SlowPlainOp {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::integral<T>) {
      if (b == 0) return a;
      if (b == static_cast<T>(-1) && std::signed_integral<T>) return 0;
      return static_cast<T>(a % b);
    } else {
      return std::fmod(a, b);
    }
  }
};
struct PlainPow : SlowPlainOp {
  template <class T>
  static T apply(T base, T exponent) {
    if constexpr (std::floating_point<T>) {
      // Also for a signaling NaN, where std::pow gives NaN.
      return exponent == 0 || base == 1 ? T{1} : std::pow(base, exponent);
    } else {
      if (exponent < 0) {  // the reciprocal, truncated
        if (base == 1) return 1;
        if (base != static_cast<T>(-1)) return 0;
        return exponent % 2 == 0 ? T{1} : base;
      }
      Wrapping<T> result = 1, factor = wrapping(base);
      for (T left = exponent; left > 0; left = static_cast<T>(left / 2), factor *= factor) {
        if (left % 2 != 0) result *= factor;
      }
      return static_cast<T>(result);
    }
  }
};
struct PlainMax : QuickPlainOp {
  template <class T>
  static T apply(T a, T b) {
    return larger(a, b);
  }
};
struct PlainMin : QuickPlainOp {
  template <class T>
  static T apply(T a, T b) {
    return smaller(a, b);
  }
};

struct PlainEqual : QuickPlainOp {
  template <class T>
  static bool apply(T a, T b) {
    return a == b;
  }
};
struct PlainNotEqual : QuickPlainOp {
  template <class T>
  static bool apply(T a, T b) {
    return a != b;
  }
};
struct PlainLess : QuickPlainOp {
  template <class T>
  static bool apply(T a, T b) {
    return a < b;
  }
};
struct PlainLessEqual : QuickPlainOp {
  template <class T>
  static bool apply(T a, T b) {
    return a <= b;
  }
};
struct PlainGreater : QuickPlainOp {
  template <class T>
  static bool apply(T a, T b) {
    return a > b;
  }
};
struct PlainGreaterEqual : QuickPlainOp {
  template <class T>
  static bool apply(T a, T b) {
    return a >= b;
  }
};

struct PlainNot : QuickPlainOp {
  template <class T>
  static T apply(T x) {
    return static_cast<T>(~wrapping(x));
  }
  static bool apply(bool x) { return !x; }
};
struct PlainAnd : QuickPlainOp {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct PlainOr : QuickPlainOp {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct PlainXor : QuickPlainOp {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
/// A shift by the width or more, or by less than 0, which is a large unsigned number, clears all
/// bits.
template <class T>
bool shifts_all_out(T by) {
  return static_cast<std::make_unsigned_t<T>>(by) >= 8 * sizeof(T);
}
struct PlainShiftLeft : QuickPlainOp {
  template <class T>
  static T apply(T x, T by) {
    return shifts_all_out(by) ? T{0} : static_cast<T>(wrapping(x) << by);
  }
};
struct PlainShiftRight : QuickPlainOp {
  template <class T>
  static T apply(T x, T by) {
    return shifts_all_out(by) ? T{0}
                              : static_cast<T>(static_cast<std::make_unsigned_t<T>>(x) >> by);
  }
};
struct PlainShiftRightArithmetic : QuickPlainOp {
  template <class T>
  static T apply(T x, T by) {
    const auto bits = static_cast<std::make_signed_t<T>>(x);
    return static_cast<T>(bits >> (shifts_all_out(by) ? T{8 * sizeof(T) - 1} : by));
  }
};
struct PlainPopulationCount : QuickPlainOp {
  template <class T>
  static T apply(T x) {
    return static_cast<T>(std::popcount(static_cast<std::make_unsigned_t<T>>(x)));
  }
};
struct PlainSelect : QuickPlainOp {
  template <class T>
  static T apply(bool condition, T yes, T no) {
    return condition ? yes : no;
  }
};

/// The inverse of the error function: infinite at 1 and -1, NaN beyond. (kernels/erf_inv.cc)
double erf_inv(double x);

/// An f32 function computed in f64, and rounded once.
template <double (*kFunction)(double)>
struct PlainLibrary : SlowPlainOp {
  template <class T>
  static T apply(T x) {
    return static_cast<T>(kFunction(x));
  }
};
struct PlainAtan2 : SlowPlainOp {
  template <class T>
  static T apply(T y, T x) {
    return static_cast<T>(std::atan2(static_cast<double>(y), static_cast<double>(x)));
  }
};
struct PlainLogistic : SlowPlainOp {
  static double apply(double x) {
    // exp(-|x|) does not overflow.
    const double e = std::exp(-std::abs(x));
    return (x < 0 ? e : 1) / (1 + e);
  }
};
struct PlainRsqrt : QuickPlainOp {
  static double apply(double x) { return 1 / std::sqrt(x); }
};
struct PlainIsFinite : QuickPlainOp {
  static bool apply(double x) { return std::isfinite(x); }
};

}  // namespace shardwise::detail
