"""Writes arithmetic of complex numbers, which are pairs of real tensors in programs."""

from __future__ import annotations

import math

from ..._programs.text import Complex, ProgramText, Value
from .elementary import cosh, sinh


def product(text: ProgramText, a: Complex, b: Complex) -> Complex:
    of = text.elementwise
    return Complex(of("sub", of("mul", a.real, b.real), of("mul", a.imag, b.imag)),
                   of("add", of("mul", a.real, b.imag), of("mul", a.imag, b.real)))


def quotient(text: ProgramText, a: Complex, b: Complex) -> Complex:
    """Returns a / b. First divides b by its larger part, so that no square is infinite."""
    of = text.elementwise
    size = of("max", of("abs", b.real), of("abs", b.imag))
    c, d = of("div", b.real, size), of("div", b.imag, size)
    squares = of("mul", size, of("add", of("mul", c, c), of("mul", d, d)))
    above = product(text, a, Complex(c, of("neg", d)))
    return Complex(of("div", above.real, squares), of("div", above.imag, squares))


def hypotenuse(text: ProgramText, a: Value, b: Value) -> Value:
    """Returns root(a^2 + b^2), by the quotient of the two, as their squares may be infinite, or 0."""
    of = text.elementwise
    x, y = of("abs", a), of("abs", b)
    most, least = of("max", x, y), of("min", x, y)
    ratio = of("div", least, text.select(of("eq", most, text.full(most, 0)), text.full(most, 1), most))
    made = of("mul", most, of("sqrt", of("add", of("mul", ratio, ratio), text.full(ratio, 1))))
    is_infinite = of("logical_or", of("eq", x, text.full(x, math.inf)), of("eq", y, text.full(y, math.inf)))
    return text.select(is_infinite, text.full(made, math.inf), made)


def scaled(text: ProgramText, x: Complex, by: Value) -> Complex:
    return Complex(text.elementwise("mul", x.real, by), text.elementwise("mul", x.imag, by))


def one_like(text: ProgramText, x: Complex) -> Complex:
    return Complex(text.full(x.real, 1), text.full(x.real, 0))


def exponential(text: ProgramText, x: Complex) -> Complex:
    return scaled(text, Complex(text.elementwise("cos", x.imag), text.elementwise("sin", x.imag)),
                  text.elementwise("exp", x.real))


def logarithm(text: ProgramText, x: Complex) -> Complex:
    return Complex(text.elementwise("log", hypotenuse(text, x.real, x.imag)),
                   text.elementwise("atan2", x.imag, x.real))


def root(text: ProgramText, x: Complex) -> Complex:
    size, angle = text.elementwise("sqrt", hypotenuse(text, x.real,
                                                      x.imag)), text.elementwise("atan2", x.imag, x.real)
    half = text.elementwise("mul", angle, text.full(angle, 0.5))
    return scaled(text, Complex(text.elementwise("cos", half), text.elementwise("sin", half)), size)


def whole_power(text: ProgramText, x: Complex, power: int) -> Complex:
    found, base, rest = one_like(text, x), x, abs(power)
    while rest:
        found = product(text, found, base) if rest & 1 else found
        rest >>= 1
        base = product(text, base, base) if rest else base
    return found if power >= 0 else quotient(text, one_like(text, x), found)


def power(text: ProgramText, x: Complex, y: Complex | Value) -> Complex:
    """Returns exp(y log(x)); for x = 0, 1 if y is 0, else 0."""
    of, exponent = text.elementwise, y if isinstance(y, Complex) else Complex(y, text.full(y, 0))
    known = logarithm(text, x)
    found = exponential(text, product(text, known, y) if isinstance(y, Complex)
                        else scaled(text, known, text.convert(y, x.real.dtype)))
    at_zero = text.convert(equal(text, exponent, Complex(text.full(exponent.real, 0),
                                                         text.full(exponent.real, 0))), x.real.dtype)
    is_zero = equal(text, x, Complex(text.full(x.real, 0), text.full(x.real, 0)))
    return Complex(of("select", is_zero, at_zero, found.real),
                   of("select", is_zero, text.full(found.imag, 0), found.imag))


def sine(text: ProgramText, x: Complex) -> Complex:
    of = text.elementwise
    return Complex(of("mul", of("sin", x.real), cosh(text, x.imag)),
                   of("mul", of("cos", x.real), sinh(text, x.imag)))


def cosine(text: ProgramText, x: Complex) -> Complex:
    of = text.elementwise
    return Complex(of("mul", of("cos", x.real), cosh(text, x.imag)),
                   of("neg", of("mul", of("sin", x.real), sinh(text, x.imag))))


def equal(text: ProgramText, a: Complex, b: Complex) -> Value:
    of = text.elementwise
    return of("logical_and", of("eq", a.real, b.real), of("eq", a.imag, b.imag))
