"""Arithmetic of complex numbers of programs, which are pairs of real tensors."""

from __future__ import annotations

import math

from ._program_text import Complex, ProgramText, Value


def product(text: ProgramText, a: Complex, b: Complex) -> Complex:
    of = text.elementwise
    return Complex(of("sub", of("mul", a.real, b.real), of("mul", a.imag, b.imag)), of("add", of("mul", a.real, b.imag), of("mul", a.imag, b.real)))


def quotient(text: ProgramText, a: Complex, b: Complex) -> Complex:
    """b is divided by its larger part first, so that no square is infinite."""
    of = text.elementwise
    size = of("max", of("abs", b.real), of("abs", b.imag))
    c, d = of("div", b.real, size), of("div", b.imag, size)
    squares = of("mul", size, of("add", of("mul", c, c), of("mul", d, d)))
    above = product(text, a, Complex(c, of("neg", d)))
    return Complex(of("div", above.real, squares), of("div", above.imag, squares))


def hypotenuse(text: ProgramText, a: Value, b: Value) -> Value:
    """root(a^2 + b^2), of the quotient of the two: their squares may be infinite, or 0."""
    of = text.elementwise
    x, y = of("abs", a), of("abs", b)
    most, least = of("max", x, y), of("min", x, y)
    ratio = of("div", least, text.select(of("eq", most, text.full(most, 0)), text.full(most, 1), most))
    made = of("mul", most, of("sqrt", of("add", of("mul", ratio, ratio), text.full(ratio, 1))))
    is_infinite = of("logical_or", of("eq", x, text.full(x, math.inf)), of("eq", y, text.full(y, math.inf)))
    return text.select(is_infinite, text.full(made, math.inf), made)
