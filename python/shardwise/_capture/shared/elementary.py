"""Writes functions of one number that programs lack, as operations that they have."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from ..._programs.text import ProgramText, Value

# Lanczos' series for the gamma function, with g = 7.
_FIRST = 0.99999999999980993227684700473478
_TERMS = (676.520368121885098567009190444019, -1259.13921672240287047156078755283,
          771.3234287776530788486528258894, -176.61502916214059906584551354, 12.507343278686904814458936853,
          -0.13857109526572011689554707, 9.984369578019570859563e-6, 1.50563273514931155834e-7)  # fmt: skip
_G = 7.0


def _in_f32(function: Callable[[ProgramText, Value], Value]) -> Callable[[ProgramText, Value], Value]:
    """Returns a function with sums of large terms wrapped to compute f16 and bf16 in f32."""

    @functools.wraps(function)
    def wide(text: ProgramText, x: Value) -> Value:
        return (text.convert(function(text, text.convert(x, "f32")), x.dtype) if x.dtype in ("f16", "bf16")
                else function(text, x))

    return wide


def erfc(text: ProgramText, x: Value) -> Value:
    return text.elementwise("sub", text.full(x, 1), text.elementwise("erf", x))


def tan(text: ProgramText, x: Value) -> Value:
    return text.elementwise("div", text.elementwise("sin", x), text.elementwise("cos", x))


def asin(text: ProgramText, x: Value) -> Value:
    return text.elementwise("atan2", x, _other_side(text, x))


def acos(text: ProgramText, x: Value) -> Value:
    return text.elementwise("atan2", _other_side(text, x), x)


def _other_side(text: ProgramText, x: Value) -> Value:
    """Returns the root of (1 - x) (1 + x), the other side of a right triangle of hypotenuse 1."""
    one = text.full(x, 1)
    return text.elementwise("sqrt", text.elementwise("mul", text.elementwise("sub", one, x),
                                                     text.elementwise("add", one, x)))


def atan(text: ProgramText, x: Value) -> Value:
    return text.elementwise("atan2", x, text.full(x, 1))


def sinh(text: ProgramText, x: Value) -> Value:
    """Returns (expm1(x) - expm1(-x)) / 2 near 0, where the difference of exp(x) and exp(-x) loses most of its
    bits."""
    up, down = text.elementwise("expm1", x), text.elementwise("expm1", text.elementwise("neg", x))
    near = text.elementwise("mul", text.elementwise("sub", up, down), text.full(x, 0.5))
    is_near = text.elementwise("lt", text.elementwise("abs", x), text.full(x, 1))
    return text.select(is_near, near, text.elementwise("sub", *_half_powers(text, x)))


def cosh(text: ProgramText, x: Value) -> Value:
    return text.elementwise("add", *_half_powers(text, x))


def _half_powers(text: ProgramText, x: Value) -> tuple[Value, Value]:
    """Returns exp(x) / 2 and exp(-x) / 2. For x = 89, exp(x) is infinite in f32, but its half is not."""
    ln2 = text.full(x, math.log(2))
    return (text.elementwise("exp", text.elementwise("sub", x, ln2)),
            text.elementwise("exp", text.elementwise("sub", text.elementwise("neg", x), ln2)))


def asinh(text: ProgramText, x: Value) -> Value:
    """Returns, for a = |x| and with the sign of x, log1p(a + a^2 / (1 + root(a^2 + 1))), or log(a) + log(2)
    if a^2 is infinite."""
    one = text.full(x, 1)
    a = text.elementwise("abs", x)
    square = text.elementwise("mul", a, a)
    root = text.elementwise("sqrt", text.elementwise("add", square, one))
    near = text.elementwise("log1p", text.elementwise(
        "add", a, text.elementwise("div", square, text.elementwise("add", one, root))))
    far = text.elementwise("add", text.elementwise("log", a), text.full(x, math.log(2)))
    made = text.select(text.elementwise("is_finite", square), near, far)
    return text.elementwise("mul", text.elementwise("sign", x), made)


def acosh(text: ProgramText, x: Value) -> Value:
    """Returns, for t = x - 1, log1p(t + root(t) root(t + 2)), which is precise near 1, or log(x) + log(2) if
    the sum is infinite."""
    t = text.elementwise("sub", x, text.full(x, 1))
    roots = text.elementwise("sqrt", t), text.elementwise("sqrt", text.elementwise("add", t, text.full(x, 2)))
    total = text.elementwise("add", t, text.elementwise("mul", *roots))
    far = text.elementwise("add", text.elementwise("log", x), text.full(x, math.log(2)))
    return text.select(text.elementwise("eq", total, text.full(x, math.inf)), far,
                       text.elementwise("log1p", total))


def atanh(text: ProgramText, x: Value) -> Value:
    difference = text.elementwise("sub", text.elementwise("log1p", x),
                                  text.elementwise("log1p", text.elementwise("neg", x)))
    return text.elementwise("mul", difference, text.full(x, 0.5))


def _with_number(text: ProgramText, op: str, a: Value, b: Value | float) -> Value:
    return text.elementwise(op, a, text.full(a, b) if isinstance(b, (int, float)) else b)


@_in_f32
def lgamma(text: ProgramText, x: Value) -> Value:
    """Returns log |gamma(x)|, below 1/2 by reflection: gamma(x) gamma(1 - x) = pi / sin(pi x)."""

    of = functools.partial(_with_number, text)
    is_low, z = _reflected(text, x)
    series, _ = _series(text, z)
    t, log_t = _shifted(text, z)
    inner = of("mul", of("sub", of("add", z, 0.5), of("div", t, log_t)), log_t)
    value = of("add", of("add", inner, math.log(2 * math.pi) / 2), text.elementwise("log", series))
    size = text.elementwise("abs", x)
    fraction = of("sub", size, text.elementwise("floor", size))
    fraction = of("min", fraction, of("sub", text.full(x, 1), fraction))
    sine = text.elementwise("log", text.elementwise("sin", of("mul", fraction, math.pi)))
    low = text.select(text.elementwise("is_finite", sine),
                      of("sub", of("sub", text.full(x, math.log(math.pi)), sine), value),
                      text.elementwise("neg", sine))
    found = text.select(is_low, low, value)
    return text.select(of("eq", size, math.inf), text.full(x, math.inf), found)


@_in_f32
def digamma(text: ProgramText, x: Value) -> Value:
    """Returns the derivative of lgamma, below 1/2 by reflection: digamma(1 - x) - pi / tan(pi x)."""

    of = functools.partial(_with_number, text)
    is_low, z = _reflected(text, x)
    series, slope = _series(text, z)
    t, log_t = _shifted(text, z)
    value = of("sub", of("sub", log_t, of("div", slope, series)), of("div", text.full(x, _G), t))
    near = of("sub", x, text.elementwise("floor", of("add", x, 0.5)))  # its period is 1
    low = of("sub", value, of("div", text.full(x, math.pi), tan(text, of("mul", near, math.pi))))
    is_pole = of("logical_and", of("le", x, 0), of("eq", x, text.elementwise("floor", x)))
    at_pole = text.select(of("eq", x, 0), of("div", text.full(x, -1), x), text.full(x, math.nan))
    return text.select(is_pole, at_pole, text.select(is_low, low, value))


def _reflected(text: ProgramText, x: Value) -> tuple[Value, Value]:
    """Returns whether x is below 1/2, and the argument of the series: -x there, else x - 1."""
    is_low = text.elementwise("lt", x, text.full(x, 0.5))
    return is_low, text.select(is_low, text.elementwise("neg", x),
                               text.elementwise("sub", x, text.full(x, 1)))


def _shifted(text: ProgramText, z: Value) -> tuple[Value, Value]:
    """Returns t = z + g + 1/2, and its logarithm."""
    half = text.full(z, _G + 0.5)
    log_t = text.elementwise("add", text.full(z, math.log(_G + 0.5)),
                             text.elementwise("log1p", text.elementwise("div", z, half)))
    return text.elementwise("add", z, half), log_t


def _series(text: ProgramText, z: Value) -> tuple[Value, Value]:
    """Returns Lanczos' sum, and its negative derivative."""
    total: Value = text.full(z, _FIRST)
    slope: Value = text.full(z, 0)
    for number, term in enumerate(_TERMS, 1):
        place = text.elementwise("add", z, text.full(z, number))
        one = text.elementwise("div", text.full(z, term), place)
        total, slope = (text.elementwise("add", total, one),
                        text.elementwise("add", slope, text.elementwise("div", one, place)))
    return total, slope


#: The functions by their names in JAX and torch.
FUNCTIONS = {function.__name__: function
             for function in (erfc, tan, asin, acos, atan, sinh, cosh, asinh, acosh, atanh, lgamma, digamma)}
