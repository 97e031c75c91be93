"""Rules of ATen's Fourier transforms: products with tables of cosines and sines. The tables are made in the program of places
alone, so they take no input."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._program_text import Number, Value
from ._aten import Builder, Type, replaced
from ._aten_complex import OF_BOTH, Complex

MOST_AT_ONCE = 256  #: elements of a dim that are one product; more are two, one after the other, if their number has factors


def _turned(build: Builder, dtype: str, shape: tuple[int, int], size: int, sign: int) -> tuple[Value, Value]:
    """cos and sin of sign 2 pi j k / size, for j along the first dim and k along the other. The product is taken modulo the size first, so that
    the angle is small."""
    product = build.binary("mul", build.iota("i64", shape, 0), build.iota("i64", shape, 1))
    rest = build.binary("rem", product, size)
    rest = build.select(build.binary("gt", rest, size // 2), build.binary("sub", rest, size), rest)
    angle = build.binary("mul", build.convert(rest, "f64"), sign * 2 * math.pi / size)
    return build.convert(build.unary("cos", angle), dtype), build.convert(build.unary("sin", angle), dtype)


def _is_zero(x: Value) -> bool:
    return isinstance(x, Number) and x.value == 0


def _times(build: Builder, equation: str, x: Complex, table: tuple[Value, Value]) -> Complex:
    """A product of x with cos + i sin. Of a real x these are two products."""
    cos, sin = table

    def product(part: Value, other: Value) -> Value:
        return build.product(equation, part, other)

    if _is_zero(x.imag):
        return Complex(product(x.real, cos), product(x.real, sin))
    return Complex(build.binary("sub", product(x.real, cos), product(x.imag, sin)),
                   build.binary("add", product(x.real, sin), product(x.imag, cos)))


def _along_last(build: Builder, x: Complex, sign: int) -> Complex:
    """Of the last dim: one product, or, of a * b elements, transforms of a, a turn of each, and transforms of b."""
    *before, size = x.shape
    a = next((n for n in range(math.isqrt(size), 1, -1) if size % n == 0), 1) if size > MOST_AT_ONCE else 1
    letters = "abcdefgh"[:len(before)]
    if a == 1:
        return _times(build, f"{letters}j,jk->{letters}k", x, _turned(build, x.real.dtype, (size, size), size, sign))
    b = size // a

    def shaped(one: Complex, *shape: int) -> Complex:
        return Complex(build.reshape(one.real, (*before, *shape)), build.reshape(one.imag, (*before, *shape)))

    def swapped(one: Complex) -> Complex:
        order = [*range(len(before)), len(before) + 1, len(before)]
        return Complex(build.transpose(one.real, order), build.transpose(one.imag, order))

    inner = _along_last(build, swapped(shaped(x, a, b)), sign)  # [.., b, a], of places j2 and k1
    cos, sin = (build.broadcast_to(one, inner.shape) for one in _turned(build, x.real.dtype, (b, a), size, sign))
    turned = Complex(build.binary("sub", build.binary("mul", inner.real, cos), build.binary("mul", inner.imag, sin)),
                     build.binary("add", build.binary("mul", inner.real, sin), build.binary("mul", inner.imag, cos)))
    return shaped(swapped(_along_last(build, swapped(turned), sign)), size)


def _transformed(build: Builder, x: Complex, dims: Sequence[int], sign: int) -> Complex:
    for dim in dims:
        order = [*(d for d in range(len(x.shape)) if d != dim), dim]
        back = [order.index(d) for d in range(len(order))]
        made = _along_last(build, Complex(build.transpose(x.real, order), build.transpose(x.imag, order)), sign)
        x = Complex(build.transpose(made.real, back), build.transpose(made.imag, back))
    return x


def _scaled(build: Builder, x: Value, count: int, normalization: int) -> Value:
    """0: as it is, 1: by the root of the count, 2: by the count."""
    return build.binary("mul", x, (1, 1 / math.sqrt(count), 1 / count)[normalization]) if normalization else x


def _both_scaled(build: Builder, x: Complex, count: int, normalization: int) -> Complex:
    return Complex(_scaled(build, x.real, count, normalization), _scaled(build, x.imag, count, normalization))


def _from_front(dims: Sequence[int], rank: int) -> list[int]:
    return [dim % rank for dim in dims]


def _count(shape: Sequence[int], dims: Sequence[int]) -> int:
    return math.prod(shape[dim] for dim in dims)


@OF_BOTH.rule("_fft_c2c")
def _of_complex(build: Builder, out: Type, x: Complex, dims: Sequence[int], normalization: int, forward: bool) -> Complex:
    dims = _from_front(dims, len(x.shape))
    return _both_scaled(build, _transformed(build, x, dims, -1 if forward else 1), _count(x.shape, dims), normalization)


@OF_BOTH.rule("_fft_r2c")
def _of_real(build: Builder, out: Type, x: Value, dims: Sequence[int], normalization: int, onesided: bool) -> Complex:
    dims = _from_front(dims, len(x.shape))
    *others, last = dims
    made = _transformed(build, Complex(x, build.full(x, 0)), [last], -1)
    if onesided:
        half = x.shape[last] // 2 + 1
        made = Complex(build.cut(made.real, last, 0, half), build.cut(made.imag, last, 0, half))
    return _both_scaled(build, _transformed(build, made, others, -1), _count(x.shape, dims), normalization)


@OF_BOTH.rule("_fft_c2r")
def _to_real(build: Builder, out: Type, x: Complex, dims: Sequence[int], normalization: int, size: int) -> Value:
    """The last dim has the first half; the other one is that turned round, with the other sign of sines."""
    dims = _from_front(dims, len(x.shape))
    *others, last = dims
    x = _transformed(build, x, others, 1)
    half = size // 2 + 1

    def whole(part: Value, sign: int) -> Value:
        part = build.cut(part, last, 0, half)
        rest = build.reverse(build.cut(part, last, 1, size - half + 1), [last])
        return build.concatenate([part, rest if sign > 0 else build.unary("neg", rest)], last) if size > half else part

    made = _transformed(build, Complex(whole(x.real, 1), whole(x.imag, -1)), [last], 1).real
    return _scaled(build, made, _count(replaced(x.shape, last, size), dims), normalization)
