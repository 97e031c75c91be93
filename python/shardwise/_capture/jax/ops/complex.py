"""Writes primitives on complex numbers, as in rotary embeddings, as operations on pairs of real tensors. The
inputs and outputs of a program are real, with a last dim of 2."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...._programs.text import PARTS, Complex, Number, Refused, Rules, Value
from ...shared.complex import (cosine, equal, exponential, hypotenuse, logarithm, one_like, power, product,
                               quotient, root, scaled, sine, whole_power)
from ...shared.fourier import of_real, to_real, transformed
from .rules import RULES, Call

#: The rules of primitives that combine both parts.
OF_BOTH = Rules()

#: Primitives that apply to each part separately; real operands (indices, conditions) serve both.
_OF_EACH = frozenset(
    """copy stop_gradient name pvary device_put optimization_barrier sharding_constraint reshard
    broadcast_in_dim reshape squeeze transpose slice pad concatenate stack unstack tile split rev empty2
    select_n dynamic_slice dynamic_update_slice gather scatter scatter-add scatter-sub reduce_sum psum
    cumsum neg add sub add_any""".split())

#: Loops and branches, which are written alike for complex and real operands.
_OF_ANY = frozenset(("scan", "cond", "while", "custom_linear_solve", "shard_map"))


def rule_of(name: str) -> Callable[..., Any]:
    """Returns the rule of a primitive that takes or returns complex tensors. Raises Refused."""
    if name in OF_BOTH:
        return OF_BOTH[name]
    if name in _OF_ANY:
        return RULES[name]
    if name in _OF_EACH:
        return lambda call, *operands: _each(name, call, operands)
    raise Refused("found complex numbers")


def _each(name: str, call: Call, operands: Sequence[Any]) -> Any:
    results = [(PARTS.get(dtype, dtype), shape) for dtype, shape in call.results]

    def applied(part: str) -> list[Value]:
        values = RULES[name](replace(call, results=results),
                             *(getattr(x, part) if isinstance(x, Complex) else x for x in operands))
        return list(values) if isinstance(values, (list, tuple)) else [values]

    real, imag = applied("real"), applied("imag")
    return [Complex(a, b) if dtype in PARTS else a for a, b, (dtype, _) in zip(real, imag, call.results)]


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
    return (Complex(text.convert(x.real, dtype), text.convert(x.imag, dtype)) if call.dtype in PARTS
            else text.convert(x.real, dtype))


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
    return whole_power(call.text, x, call.params["y"])


@OF_BOTH.rule("abs")
def _abs(call: Call, x: Complex) -> Value:
    return hypotenuse(call.text, x.real, x.imag)


@OF_BOTH.rule("sign")
def _sign(call: Call, x: Complex) -> Complex:
    text, size = call.text, hypotenuse(call.text, x.real, x.imag)
    size = text.select(text.elementwise("eq", size, text.full(size, 0)), text.full(size, 1), size)
    return Complex(text.elementwise("div", x.real, size), text.elementwise("div", x.imag, size))


for _name, _function in (("exp", exponential), ("log", logarithm), ("sqrt", root), ("sin", sine),
                         ("cos", cosine), ("eq", equal)):
    OF_BOTH[_name] = lambda call, *operands, function=_function: function(call.text, *operands)


@OF_BOTH.rule("rsqrt")
def _rsqrt(call: Call, x: Complex) -> Complex:
    return quotient(call.text, one_like(call.text, x), root(call.text, x))


@OF_BOTH.rule("pow")
def _pow(call: Call, x: Complex | Value, y: Complex | Value) -> Complex:
    part = PARTS[call.dtype]
    return power(call.text, x if isinstance(x, Complex)
                 else Complex(call.text.convert(x, part), Number(0, part, x.shape)), y)


@OF_BOTH.rule("ne")
def _different(call: Call, a: Complex, b: Complex) -> Value:
    return call.text.elementwise("logical_not", equal(call.text, a, b))


@OF_BOTH.rule("dot_general")
def _dot_general(call: Call, a: Complex | Value, b: Complex | Value) -> Complex:
    """Multiplies. A real operand multiplies each part of the complex one."""
    real = replace(call, results=[(PARTS[call.dtype], call.shape)])

    def of(x: Value, y: Value) -> Value:
        value: Value = RULES["dot_general"](real, x, y)
        return value

    text = call.text
    if not isinstance(a, Complex) or not isinstance(b, Complex):
        pairs: list[tuple[Any, Any]] = [(getattr(a, part, a), getattr(b, part, b))
                                        for part in ("real", "imag")]
        return Complex(*(of(text.convert(x, real.dtype), text.convert(y, real.dtype)) for x, y in pairs))
    return Complex(text.elementwise("sub", of(a.real, b.real), of(a.imag, b.imag)),
                   text.elementwise("add", of(a.real, b.imag), of(a.imag, b.real)))


@OF_BOTH.rule("fft")
def _fft(call: Call, x: Any) -> Any:
    # The kinds are 0: transform, 1: inverse, 2: transform of real numbers, 3: its inverse.
    text, sizes, kind = call.text, call.params["fft_lengths"], int(call.params["fft_type"])
    if 0 in x.shape or 0 in call.shape:
        return Complex(*(Number(0, PARTS[call.dtype], call.shape)
                         for _ in range(2))) if call.dtype in PARTS else Number(0, call.dtype, call.shape)
    dims = range(len(x.shape) - len(sizes), len(x.shape))
    if kind == 0:
        return transformed(text, x, dims, -1)
    if kind == 2:
        return of_real(text, x, dims)
    part = 1 / math.prod(sizes)
    if kind == 1:
        inverse = transformed(text, x, dims, 1)
        return scaled(text, inverse, text.full(inverse.real, part))
    real = to_real(text, x, dims, sizes[-1])
    return text.elementwise("mul", real, text.full(real, part))
