"""Writes Fourier transforms as products with tables of cosines and sines. The program makes the tables from
indices, so they need no input."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..._programs.text import Complex, Number, ProgramText, Value
from .complex import product

#: the most elements of a dim in one product; more make two products, if their number has factors
MOST_AT_ONCE = 256


def transformed(text: ProgramText, x: Complex, dims: Sequence[int], sign: int) -> Complex:
    """Returns the sum of x e^(sign 2 pi i j k / extent) along each dim. Sign -1 gives the transform, 1 its
    inverse without the division by the extents."""
    for dim in dims:
        order = [*(d for d in range(len(x.shape)) if d != dim), dim]
        back = [order.index(d) for d in range(len(order))]
        made = _along_last(text, Complex(text.transpose(x.real, order), text.transpose(x.imag, order)), sign)
        x = Complex(text.transpose(made.real, back), text.transpose(made.imag, back))
    return x


def of_real(text: ProgramText, x: Value, dims: Sequence[int]) -> Complex:
    """Transforms real numbers. Returns the first half of the last dim, as the other half is its conjugate."""
    *others, last = dims
    made, half = transformed(text, Complex(x, text.full(x, 0)), [last], -1), x.shape[last] // 2 + 1
    made = Complex(text.part(made.real, last, 0, half), text.part(made.imag, last, 0, half))
    return transformed(text, made, others, -1)


def to_real(text: ProgramText, x: Complex, dims: Sequence[int], size: int) -> Value:
    """Inverts of_real() to `size` elements along the last dim, without the division by the extents. Elements
    beyond half of them are ignored."""
    *others, last = dims
    x, half = transformed(text, x, others, 1), size // 2 + 1

    def whole(part: Value, is_imag: bool) -> Value:
        part = text.part(part, last, 0, half)
        if size == half:
            return part
        rest = text.reverse(text.part(part, last, 1, size - half + 1), [last])
        return text.concatenate([part, text.elementwise("neg", rest) if is_imag else rest], last)

    return transformed(text, Complex(whole(x.real, False), whole(x.imag, True)), [last], 1).real


def _along_last(text: ProgramText, x: Complex, sign: int) -> Complex:
    """Transforms the last dim by one product, or, for a * b elements, by transforms of a, a turn of each
    element, and transforms of b (Cooley and Tukey, An Algorithm for the Machine Calculation of Complex
    Fourier Series, 1965)."""
    *before, size = x.shape
    a = next((n for n in range(math.isqrt(size), 1, -1) if size % n == 0), 1) if size > MOST_AT_ONCE else 1
    letters = "abcdefghilmnopqrstuvwxyz"[:len(before)]  # all but j and k
    if a == 1:
        return _times(text, f"{letters}j,jk->{letters}k", x,
                      _turns(text, x.real.dtype, (size, size), size, sign))
    b = size // a

    def shaped(one: Complex, *shape: int) -> Complex:
        return Complex(text.reshape(one.real, (*before, *shape)), text.reshape(one.imag, (*before, *shape)))

    def swapped(one: Complex) -> Complex:
        order = [*range(len(before)), len(before) + 1, len(before)]
        return Complex(text.transpose(one.real, order), text.transpose(one.imag, order))

    inner = _along_last(text, swapped(shaped(x, a, b)), sign)  # [.., b, a], of places j2 and k1
    turn = _turns(text, x.real.dtype, (b, a), size, sign)
    turn = Complex(text.broadcast_to(turn.real, inner.shape), text.broadcast_to(turn.imag, inner.shape))
    return shaped(swapped(_along_last(text, swapped(product(text, inner, turn)), sign)), size)


def _turns(text: ProgramText, dtype: str, shape: tuple[int, int], size: int, sign: int) -> Complex:
    """Returns e^(sign 2 pi i j k / size), for j along the first dim and k along the second. Takes j k modulo
    the size, so that the angle is small."""
    of = text.elementwise
    places = of("mul", text.iota("i64", shape, 0), text.iota("i64", shape, 1))
    rest = of("rem", places, text.full(places, size))
    rest = text.select(of("gt", rest, text.full(rest, size // 2)), of("sub", rest, text.full(rest, size)),
                       rest)
    angle = of("mul", text.convert(rest, "f64"), Number(sign * 2 * math.pi / size, "f64", shape))
    return Complex(text.convert(of("cos", angle), dtype), text.convert(of("sin", angle), dtype))


def _times(text: ProgramText, equation: str, x: Complex, table: Complex) -> Complex:
    """Returns a product of matrices, as four real products, or two for a real x."""
    def of(part: Value, other: Value) -> Value:
        return text.einsum(equation, part, other, part.dtype)

    if isinstance(x.imag, Number) and x.imag.value == 0:
        return Complex(of(x.real, table.real), of(x.real, table.imag))
    return Complex(text.elementwise("sub", of(x.real, table.real), of(x.imag, table.imag)),
                   text.elementwise("add", of(x.real, table.imag), of(x.imag, table.real)))
