#pragma once

#include <cmath>
#include <concepts>

namespace shardwise::detail {

/// False of integers.
template <class T>
bool has_sign(T value) {
  if constexpr (std::floating_point<T>) {
    return std::signbit(value);
  } else {
    return false;
  }
}

/// The larger of the two. A NaN on either side wins: it compares false with everything, itself
/// included. -0 is less than 0, so the order of the two does not matter.
template <class T>
T larger(T a, T b) {
  // NOLINTNEXTLINE(misc-redundant-expression)
  const bool first = a > b || a != a || (a == b && !has_sign(a));
  return first ? a : b;
}

/// The less of the two; NaN and zeros as in larger().
template <class T>
T smaller(T a, T b) {
  // NOLINTNEXTLINE(misc-redundant-expression)
  const bool first = a < b || a != a || (a == b && has_sign(a));
  return first ? a : b;
}

}  // namespace shardwise::detail
