"""Complex numbers that are computed with, as rotary embeddings do: a pair of real tensors each. In and out of a program they are real, with
a last dim of 2."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .._complex import hypotenuse, product, quotient
from .._elementary import cosh, sinh
from .._fourier import of_real, to_real, transformed
from .._program_text import PARTS, Complex, Number, ProgramText, Refused, Rules, Value
from ._primitives import RULES, Call

#: Those that look at both parts at once.
OF_BOTH = Rules()

#: Those that do to each part what they do to a real tensor. Real operands (indices, conditions) are the same for both.
_OF_EACH = frozenset("""copy stop_gradient name pvary device_put optimization_barrier sharding_constraint reshard broadcast_in_dim reshape squeeze
    transpose slice pad concatenate stack unstack tile split rev empty2 select_n dynamic_slice dynamic_update_slice gather scatter scatter-add
    scatter-sub reduce_sum psum cumsum neg add sub add_any""".split())

#: Those that are written with complex operands as they are with real ones: loops and branches.
_OF_ANY = frozenset(("scan", "cond", "while", "custom_linear_solve", "shard_map"))


def rule_of(name: str) -> Callable[..., Any]:
    """Of a primitive that is given complex tensors, or gives one. Raises Refused."""
    if name in OF_BOTH:
        return OF_BOTH[name]
    if name in _OF_ANY:
        return RULES[name]
    if name in _OF_EACH:
        return lambda call, *operands: _each(name, call, operands)
    raise Refused("found complex numbers")


def _each(name: str, call: Call, operands: Sequence[Any]) -> Any:
    results = [(PARTS.get(dtype, dtype), shape) for dtype, shape in call.results]

    def made(part: str) -> list[Value]:
        found = RULES[name](replace(call, results=results), *(getattr(x, part) if isinstance(x, Complex) else x for x in operands))
        return list(found) if isinstance(found, (list, tuple)) else [found]

    real, imag = made("real"), made("imag")
    return [Complex(a, b) if dtype in PARTS else a for a, b, (dtype, _) in zip(real, imag, call.results)]


def _scaled(text: ProgramText, x: Complex, by: Value) -> Complex:
    return Complex(text.elementwise("mul", x.real, by), text.elementwise("mul", x.imag, by))


@OF_BOTH.rule("complex")
def _of_parts(call: Call, real: Value, imag: Value) -> Complex:
    return Complex(call.text.broadcast_to(real, call.shape), call.text.broadcast_to(imag, call.shape))


@OF_BOTH.rule("real")
def _real(call: Call, x: Complex) -> Value:
    return x.real


@OF_BOTH.rule("imag")
def _imag(call: Call, x: Complex) -> Value:
    return x.imag


@OF_BOTH.rule("conj")
def _conj(call: Call, x: Complex | Value) -> Complex:
    if not isinstance(x, Complex):
        return Complex(x, call.text.full(x, 0))
    return Complex(x.real, call.text.elementwise("neg", x.imag))


@OF_BOTH.rule("convert_element_type")
def _convert(call: Call, x: Complex | Value) -> Complex | Value:
    text, dtype = call.text, PARTS.get(call.dtype, call.dtype)
    if not isinstance(x, Complex):
        real = text.convert(x, dtype)
        return Complex(real, text.full(real, 0))
    return Complex(text.convert(x.real, dtype), text.convert(x.imag, dtype)) if call.dtype in PARTS else text.convert(x.real, dtype)


@OF_BOTH.rule("iota")
def _iota(call: Call) -> Complex:
    real = call.text.iota(PARTS[call.dtype], call.shape, call.params["dimension"])
    return Complex(real, call.text.full(real, 0))


@OF_BOTH.rule("mul")
def _mul(call: Call, a: Complex, b: Complex) -> Complex:
    return product(call.text, a, b)


@OF_BOTH.rule("square")
def _square(call: Call, x: Complex) -> Complex:
    return product(call.text, x, x)


@OF_BOTH.rule("div")
def _div(call: Call, a: Complex, b: Complex) -> Complex:
    return quotient(call.text, a, b)


@OF_BOTH.rule("integer_pow")
def _integer_pow(call: Call, x: Complex) -> Complex:
    text, power, found = call.text, call.params["y"], Complex(call.text.full(x.real, 1), call.text.full(x.real, 0))
    base, rest = x, abs(power)
    while rest:
        found = product(text, found, base) if rest & 1 else found
        rest >>= 1
        base = product(text, base, base) if rest else base
    return found if power >= 0 else quotient(text, Complex(text.full(x.real, 1), text.full(x.real, 0)), found)


@OF_BOTH.rule("abs")
def _abs(call: Call, x: Complex) -> Value:
    return hypotenuse(call.text, x.real, x.imag)


@OF_BOTH.rule("sign")
def _sign(call: Call, x: Complex) -> Complex:
    text, size = call.text, hypotenuse(call.text, x.real, x.imag)
    size = text.select(text.elementwise("eq", size, text.full(size, 0)), text.full(size, 1), size)
    return Complex(text.elementwise("div", x.real, size), text.elementwise("div", x.imag, size))


@OF_BOTH.rule("exp")
def _exp(call: Call, x: Complex) -> Complex:
    text = call.text
    return _scaled(text, Complex(text.elementwise("cos", x.imag), text.elementwise("sin", x.imag)), text.elementwise("exp", x.real))


@OF_BOTH.rule("log")
def _log(call: Call, x: Complex) -> Complex:
    text = call.text
    return Complex(text.elementwise("log", hypotenuse(text, x.real, x.imag)), text.elementwise("atan2", x.imag, x.real))


@OF_BOTH.rule("sqrt")
def _sqrt(call: Call, x: Complex) -> Complex:
    text = call.text
    root, angle = text.elementwise("sqrt", hypotenuse(text, x.real, x.imag)), text.elementwise("atan2", x.imag, x.real)
    half = text.elementwise("mul", angle, text.full(angle, 0.5))
    return _scaled(text, Complex(text.elementwise("cos", half), text.elementwise("sin", half)), root)


@OF_BOTH.rule("rsqrt")
def _rsqrt(call: Call, x: Complex) -> Complex:
    text = call.text
    return quotient(text, Complex(text.full(x.real, 1), text.full(x.real, 0)), _sqrt(call, x))


@OF_BOTH.rule("pow")
def _pow(call: Call, x: Complex | Value, y: Complex | Value) -> Complex:
    """exp(y log(x)); of 0, 1 to the power of 0 and else 0."""
    text, of = call.text, call.text.elementwise
    x = x if isinstance(x, Complex) else Complex(text.convert(x, PARTS[call.dtype]), Number(0, PARTS[call.dtype], x.shape))
    logarithm = _log(call, x)
    power = product(text, logarithm, y) if isinstance(y, Complex) else _scaled(text, logarithm, text.convert(y, x.real.dtype))
    found = _exp(call, power)
    is_zero = of("logical_and", of("eq", x.real, text.full(x.real, 0)), of("eq", x.imag, text.full(x.imag, 0)))
    exponent = y if isinstance(y, Complex) else Complex(y, text.full(y, 0))
    is_one = of("logical_and", of("eq", exponent.real, text.full(exponent.real, 0)), of("eq", exponent.imag, text.full(exponent.imag, 0)))
    at_zero = text.convert(is_one, x.real.dtype)
    return Complex(text.select(is_zero, at_zero, found.real), text.select(is_zero, text.full(found.imag, 0), found.imag))


@OF_BOTH.rule("sin")
def _sin(call: Call, x: Complex) -> Complex:
    of = call.text.elementwise
    return Complex(of("mul", of("sin", x.real), cosh(call.text, x.imag)), of("mul", of("cos", x.real), sinh(call.text, x.imag)))


@OF_BOTH.rule("cos")
def _cos(call: Call, x: Complex) -> Complex:
    of = call.text.elementwise
    return Complex(of("mul", of("cos", x.real), cosh(call.text, x.imag)), of("neg", of("mul", of("sin", x.real), sinh(call.text, x.imag))))


@OF_BOTH.rule("eq")
def _equal(call: Call, a: Complex, b: Complex) -> Value:
    of = call.text.elementwise
    return of("logical_and", of("eq", a.real, b.real), of("eq", a.imag, b.imag))


@OF_BOTH.rule("ne")
def _different(call: Call, a: Complex, b: Complex) -> Value:
    return call.text.elementwise("logical_not", _equal(call, a, b))


@OF_BOTH.rule("dot_general")
def _dot_general(call: Call, a: Complex | Value, b: Complex | Value) -> Complex:
    """Of a complex and a real one, each part times that."""
    real = replace(call, results=[(PARTS[call.dtype], call.shape)])

    def of(x: Value, y: Value) -> Value:
        found: Value = RULES["dot_general"](real, x, y)
        return found

    text = call.text
    if not isinstance(a, Complex) or not isinstance(b, Complex):
        pairs: list[tuple[Any, Any]] = [(getattr(a, part, a), getattr(b, part, b)) for part in ("real", "imag")]
        return Complex(*(of(text.convert(x, real.dtype), text.convert(y, real.dtype)) for x, y in pairs))
    return Complex(text.elementwise("sub", of(a.real, b.real), of(a.imag, b.imag)), text.elementwise("add", of(a.real, b.imag), of(a.imag, b.real)))


@OF_BOTH.rule("fft")
def _fft(call: Call, x: Any) -> Any:
    text, sizes, kind = call.text, call.params["fft_lengths"], int(call.params["fft_type"])  # there, back, of real numbers there, back
    if 0 in x.shape or 0 in call.shape:
        return Complex(*(Number(0, PARTS[call.dtype], call.shape) for _ in range(2))) if call.dtype in PARTS else Number(0, call.dtype, call.shape)
    dims = range(len(x.shape) - len(sizes), len(x.shape))
    if kind == 0:
        return transformed(text, x, dims, -1)
    if kind == 2:
        return of_real(text, x, dims)
    part = 1 / math.prod(sizes)
    if kind == 1:
        made = transformed(text, x, dims, 1)
        return _scaled(text, made, text.full(made.real, part))
    real = to_real(text, x, dims, sizes[-1])
    return text.elementwise("mul", real, text.full(real, part))
