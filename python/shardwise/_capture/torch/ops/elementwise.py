"""Writes ATen operations that work element by element."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from ...._arrays.torch_tensors import OURS
from ...._programs.text import FLOATS, Refused, Value
from ...shared.complex import hypotenuse
from ...shared.elementary import FUNCTIONS
from .rules import NUMBERS, RULES, Builder, Scalar, Type, is_float, rule

_UNARY = {
    "neg": "neg", "_neg_view": "neg", "abs": "abs", "sign": "sign", "exp": "exp", "exp2": "exp2",
    "expm1": "expm1", "log": "log", "log1p": "log1p", "tanh": "tanh", "sigmoid": "logistic", "erf": "erf",
    "erfinv": "erf_inv", "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos", "floor": "floor",
    "ceil": "ceil", "logical_not": "logical_not", "bitwise_not": "logical_not",
}  # fmt: skip
_BINARY = {
    "mul": "mul", "maximum": "max", "minimum": "min", "atan2": "atan2", "fmod": "rem",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
    "bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor",
}  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@rule("round")
def _round(build: Builder, out: Type, x: Value, *, decimals: int = 0) -> Value:
    if not is_float(x):
        return x
    if decimals == 0:
        return build.unary("round", x)
    scale, wide = 10.0 ** abs(decimals), build.wide(x)
    first, then = ("mul", "div") if decimals > 0 else ("div", "mul")
    return build.convert(build.binary(then, build.unary("round", build.binary(first, wide, scale)), scale),
                         x.dtype)


def _unary(op: str) -> Callable[..., Value]:
    return lambda build, out, x: build.unary(op, build.convert(x, out.dtype))


def _binary(op: str) -> Callable[..., Value]:
    def of(build: Builder, out: Type, a: Value | Scalar, b: Value | Scalar) -> Value:
        if op == "mul" and out.dtype == "bool":
            return _on(build, "logical_and", out, a, b)
        return _on(build, op, out, a, b)

    return of


def _comparison(op: str) -> Callable[..., Value]:
    def of(build: Builder, out: Type, a: Value | Scalar, b: Value | Scalar) -> Value:
        dtype = OURS[torch.result_type(*build.examples)]
        return build.binary(op, build.operand(a, dtype, out.shape), build.operand(b, dtype, out.shape))

    return of


def _elementary(function: Callable[[Builder, Value], Value]) -> Callable[..., Value]:
    return lambda build, out, x: build.convert(function(build, build.wide(build.convert(x, out.dtype))),
                                               out.dtype)


RULES.update({name: _unary(op) for name, op in _UNARY.items()})
RULES.update({name: _elementary(function) for name, function in FUNCTIONS.items()})
RULES.update({name: _binary(op) for name, op in _BINARY.items()})
RULES.update({name: _comparison(name) for name in _COMPARISONS})


def _on(build: Builder, op: str, out: Type, a: Value | Scalar, b: Value | Scalar) -> Value:
    return build.binary(op, build.operand(a, out.dtype, out.shape), build.operand(b, out.dtype, out.shape))


def _sum(op: str) -> Callable[..., Value]:
    def of(build: Builder, out: Type, a: Value | Scalar, b: Value | Scalar, alpha: Scalar = 1) -> Value:
        if out.dtype == "bool":
            return _on(build, "logical_or", out, a, b)
        if not isinstance(b, Value) and not isinstance(alpha, Value):
            b, alpha = b * alpha, 1
            if b == 0 and isinstance(a, Value):
                return build.operand(a, out.dtype, out.shape)
        right = build.operand(b, out.dtype, out.shape)
        if alpha != 1:
            right = build.binary("mul", right, build.operand(alpha, out.dtype, out.shape))
        return build.binary(op, build.operand(a, out.dtype, out.shape), right)

    return of


RULES["add"], RULES["sub"] = _sum("add"), _sum("sub")


@rule("rsub")
def _rsub(build: Builder, out: Type, a: Value, b: Value | Scalar, alpha: Scalar = 1) -> Value:
    made: Value = RULES["sub"](build, out, b, a, alpha)
    return made


@rule("div")
def _div(build: Builder, out: Type, a: Value | Scalar, b: Value | Scalar,
         rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor" and out.dtype in FLOATS:
        return _floor_division(build, out, a, b)
    quotient = _on(build, "div", out, a, b)
    if rounding_mode is None or (rounding_mode == "trunc" and not is_float(quotient)):
        return quotient
    if rounding_mode == "trunc":
        return _trunc(build, out, quotient)
    below = _has_other_sign(build, _on(build, "rem", out, a, b), build.operand(b, out.dtype, out.shape))
    return build.select(below, build.binary("sub", quotient, 1), quotient)


def _floor_division(build: Builder, out: Type, a: Value | Scalar, b: Value | Scalar) -> Value:
    """Divides by the exact remainder: 1 / 0.1 is just below 10 and rounds to 10, but its floor is 9."""
    x, y = (build.wide(build.operand(one, out.dtype, out.shape)) for one in (a, b))
    rest, quotient = build.binary("rem", x, y), build.binary("div", x, y)
    near = build.binary("div", build.binary("sub", x, rest), y)  # a whole number, except for rounding
    near = build.select(_has_other_sign(build, rest, y), build.binary("sub", near, 1), near)
    below = build.unary("floor", near)
    below = build.select(build.binary("gt", build.binary("sub", near, below), 0.5),
                         build.binary("add", below, 1), below)
    # A zero has the sign of the quotient.
    below = build.select(build.binary("eq", near, 0), build.binary("mul", quotient, 0), below)
    return build.convert(build.select(build.binary("eq", y, 0), quotient, below), out.dtype)


@rule("remainder")
def _remainder(build: Builder, out: Type, a: Value | Scalar, b: Value | Scalar) -> Value:
    """Returns the remainder with the sign of the divisor."""
    rest, divisor = _on(build, "rem", out, a, b), build.operand(b, out.dtype, out.shape)
    return build.select(_has_other_sign(build, rest, divisor), build.binary("add", rest, divisor), rest)


def _has_other_sign(build: Builder, rest: Value, divisor: Value) -> Value:
    differs = build.binary("logical_xor", build.binary("lt", rest, 0), build.binary("lt", divisor, 0))
    return build.binary("logical_and", build.binary("ne", rest, 0), differs)


@rule("pow")
def _pow(build: Builder, out: Type, a: Value | Scalar, b: Value | Scalar) -> Value:
    if not isinstance(b, Value):
        x = build.operand(a, out.dtype, out.shape)
        if b == 1:
            return x
        if b == 2:
            return build.binary("mul", x, x)
        if b == 3:
            return build.binary("mul", build.binary("mul", x, x), x)
        if b == 0.5:
            return build.unary("sqrt", x)
        if b == -0.5:
            return build.unary("rsqrt", x)
    return _on(build, "pow", out, a, b)


@rule("reciprocal")
def _reciprocal(build: Builder, out: Type, x: Value) -> Value:
    return _on(build, "div", out, 1, x)


@rule("trunc", "fix")
def _trunc(build: Builder, out: Type, x: Value) -> Value:
    return (build.select(build.binary("lt", x, 0), build.unary("ceil", x), build.unary("floor", x))
            if is_float(x) else x)


RULES["log2"] = lambda build, out, x: build.binary("mul", build.unary("log", build.convert(x, out.dtype)),
                                                   1 / math.log(2))
RULES["log10"] = lambda build, out, x: build.binary("mul", build.unary("log", build.convert(x, out.dtype)),
                                                    1 / math.log(10))


@rule("isnan")
def _isnan(build: Builder, out: Type, x: Value) -> Value:
    return build.binary("ne", x, x)


@rule("isinf")
def _isinf(build: Builder, out: Type, x: Value) -> Value:
    return build.binary("eq", build.unary("abs", x), math.inf) if is_float(x) else build.operand(
        False, "bool", x.shape)


@rule("isfinite")
def _isfinite(build: Builder, out: Type, x: Value) -> Value:
    return build.unary("is_finite", x) if is_float(x) else build.operand(True, "bool", x.shape)


@rule("relu")
def _relu(build: Builder, out: Type, x: Value) -> Value:
    return build.binary("max", x, 0)


@rule("clamp", "clamp_min")
def _clamp(build: Builder, out: Type, x: Value, least: Any = None, most: Any = None) -> Value:
    x = build.operand(x, out.dtype, out.shape)
    if least is not None:
        x = build.binary("max", x, build.operand(least, out.dtype, out.shape))
    if most is not None:
        x = build.binary("min", x, build.operand(most, out.dtype, out.shape))
    return x


RULES["clamp_max"] = lambda build, out, x, most: _clamp(build, out, x, None, most)
RULES["hardtanh"] = lambda build, out, x, least=-1, most=1: _clamp(build, out, x, least, most)


@rule("leaky_relu")
def _leaky_relu(build: Builder, out: Type, x: Value, slope: Scalar = 0.01) -> Value:
    return build.select(build.binary("gt", x, 0), x, build.binary("mul", x, slope))


@rule("elu")
def _elu(build: Builder, out: Type, x: Value, alpha: Scalar = 1, scale: Scalar = 1,
         input_scale: Scalar = 1) -> Value:
    low = build.binary("mul", build.unary("expm1", build.binary("mul", x, input_scale)), alpha * scale)
    return build.select(build.binary("gt", x, 0), build.binary("mul", x, scale), low)


@rule("hardshrink_backward", "softshrink_backward")
def _shrink_backward(build: Builder, out: Type, gradient: Value, x: Value, size: Scalar) -> Value:
    """Passes the gradient of elements that are not shrunk to 0."""
    return build.select(build.binary("le", build.unary("abs", x), size), build.full(gradient, 0), gradient)


@rule("signbit")
def _signbit(build: Builder, out: Type, x: Value) -> Value:
    """Returns True for negative numbers, and for -0, as 1 / -0 is negative infinity."""
    if not is_float(x):
        return build.binary("lt", x, 0)
    below = build.binary("lt", build.binary("div", build.full(x, 1), x), 0)
    return build.select(build.binary("eq", x, 0), below, build.binary("lt", x, 0))


@rule("hypot")
def _hypot(build: Builder, out: Type, a: Value, b: Value) -> Value:
    x, y = (build.operand(one, out.dtype, out.shape) for one in (a, b))
    return hypotenuse(build, x, y)


def _of_numbers_alone(op: str) -> Callable[..., Value]:
    """Returns the rule of an extreme that is NaN only if both operands are."""

    def of(build: Builder, out: Type, a: Value, b: Value) -> Value:
        x, y = build.operand(a, out.dtype, out.shape), build.operand(b, out.dtype, out.shape)
        made = build.binary(op, x, y)
        return build.select(_isnan(build, out, x), y, build.select(_isnan(build, out, y), x,
                                                                   made)) if is_float(x) else made

    return of


RULES["fmax"], RULES["fmin"] = _of_numbers_alone("max"), _of_numbers_alone("min")


@rule("copysign")
def _copysign(build: Builder, out: Type, a: Value, b: Value | Scalar) -> Value:
    size = build.unary("abs", build.operand(a, out.dtype, out.shape))
    is_below = _signbit(build, out, build.operand(b, out.dtype, out.shape))
    return build.select(is_below, build.unary("neg", size), size)


@rule("ldexp")
def _ldexp(build: Builder, out: Type, x: Value, power: Value) -> Value:
    return build.binary("mul", build.operand(x, out.dtype, out.shape),
                        build.unary("exp2", build.operand(power, out.dtype, out.shape)))


@rule("angle")
def _angle(build: Builder, out: Type, x: Value) -> Value:
    x = build.convert(x, out.dtype)
    return build.select(build.binary("ne", x, x), x,
                        build.select(build.binary("lt", x, 0), build.full(x, math.pi), build.full(x, 0)))


RULES["bitwise_left_shift"] = RULES["__lshift__"] = lambda build, out, a, b: _on(build, "shift_left", out, a,
                                                                                 b)


@rule("bitwise_right_shift", "__rshift__")
def _right_shift(build: Builder, out: Type, a: Value | Scalar, b: Value | Scalar) -> Value:
    return _on(build, "shift_right_logical" if out.dtype[0] == "u" else "shift_right_arithmetic", out, a, b)


@rule("silu")
def _silu(build: Builder, out: Type, x: Value) -> Value:
    wide = build.wide(x)
    return build.convert(build.binary("mul", wide, build.unary("logistic", wide)), x.dtype)


@rule("gelu")
def _gelu(build: Builder, out: Type, given: Value, approximate: str = "none") -> Value:
    x = build.wide(given)
    if approximate == "tanh":
        cube = build.binary("mul", x, build.binary("mul", x, x))
        inner = build.binary("mul", build.binary("add", x, build.binary("mul", cube, 0.044715)),
                             math.sqrt(2 / math.pi))
        part = build.unary("tanh", inner)
    else:
        part = build.unary("erf", build.binary("mul", x, math.sqrt(0.5)))
    made = build.binary("mul", build.binary("mul", x, 0.5), build.binary("add", part, 1))
    return build.convert(made, given.dtype)


@rule("lerp", "lerp_")
def _lerp(build: Builder, out: Type, a: Value, b: Value, weight: Value | Scalar) -> Value:
    difference = build.binary("sub", build.operand(b, out.dtype, out.shape),
                              build.operand(a, out.dtype, out.shape))
    step = build.binary("mul", difference, build.operand(weight, out.dtype, out.shape))
    return build.binary("add", build.operand(a, out.dtype, out.shape), step)


@rule("fma")
def _fma(build: Builder, out: Type, a: Value, b: Value, c: Value) -> Value:
    """Rounds twice, as addcmul and addcdiv do, for which Dynamo writes it."""
    return _on(build, "add", out, _on(build, "mul", out, a, b), c)


@rule("addcmul", "addcmul_")
def _addcmul(build: Builder, out: Type, x: Value, a: Value, b: Value, value: Scalar = 1) -> Value:
    return _sum_with(build, out, x, _on(build, "mul", out, a, b), value)


@rule("addcdiv", "addcdiv_")
def _addcdiv(build: Builder, out: Type, x: Value, a: Value, b: Value, value: Scalar = 1) -> Value:
    return _sum_with(build, out, x, _on(build, "div", out, a, b), value)


def _sum_with(build: Builder, out: Type, x: Value, y: Value, value: Scalar) -> Value:
    scaled = y if value == 1 else build.binary("mul", y, build.operand(value, out.dtype, out.shape))
    return build.binary("add", build.operand(x, out.dtype, out.shape), scaled)


@rule("where")
def _where(build: Builder, out: Type, condition: Value, *both: Value | Scalar) -> Value:
    if len(both) != 2:
        raise Refused("where of a condition alone")
    a, b = (build.operand(x, out.dtype, out.shape) for x in both)
    return build.select(build.operand(condition, "bool", out.shape), a, b)


@rule("_to_copy", "to")
def _to_copy(build: Builder, out: Type, x: Value, *_: Any, **__: Any) -> Value:
    return build.convert(x, out.dtype)


@rule("clone", "alias", "detach", "contiguous", "lift", "lift_fresh", "lift_fresh_copy", "_reshape_alias")
def _same(build: Builder, out: Type, x: Value, *_: Any, **__: Any) -> Value:
    return x


@rule("copy", "copy_")
def _copy(build: Builder, out: Type, x: Value, y: Value, *_: Any) -> Value:
    return build.operand(y, x.dtype, x.shape)


@rule("full", "full_like", "new_full")
def _full(build: Builder, out: Type, *arguments: Any, **_: Any) -> Value:
    return build.operand(arguments[-1], out.dtype, out.shape)


@rule("scalar_tensor")
def _scalar(build: Builder, out: Type, number: Scalar, **_: Any) -> Value:
    return build.operand(number, out.dtype, out.shape)


@rule("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_permuted",
      "empty_strided", "new_empty_strided")
def _zeros(build: Builder, out: Type, *_: Any, **__: Any) -> Value:
    return build.operand(0, out.dtype, out.shape)


@rule("ones", "ones_like", "new_ones")
def _ones(build: Builder, out: Type, *_: Any, **__: Any) -> Value:
    return build.operand(1, out.dtype, out.shape)


@rule("fill")
def _fill(build: Builder, out: Type, x: Value, number: Value | Scalar) -> Value:
    return build.operand(number, out.dtype, out.shape)


# Python numbers that the step takes from tensors.


def _of_numbers(op: str) -> Callable[..., Value]:
    return lambda build, *numbers: build.elementwise(op, *(build.operand(number, "f64", ())
                                                           for number in numbers))


NUMBERS.update({
    torch.ops.aten._local_scalar_dense.default: lambda build, x: build.convert(build.reshape(x, ()), "f64"),
    operator.add: _of_numbers("add"), operator.sub: _of_numbers("sub"), operator.mul: _of_numbers("mul"),
    operator.neg: _of_numbers("neg"), operator.truediv: _of_numbers("div"), operator.pow: _of_numbers("pow"),
    torch.sym_float: lambda build, x: x, torch.sym_max: _of_numbers("max"), torch.sym_min: _of_numbers("min"),
})


@rule("arange")
def _arange(build: Builder, out: Type, *numbers: Scalar, **_: Any) -> Value:
    start, step = (numbers[0], numbers[2] if len(numbers) > 2 else 1) if len(numbers) > 1 else (0, 1)
    made: Value = build.iota(out.dtype, out.shape, 0)
    made = made if step == 1 else build.binary("mul", made, step)
    return made if start == 0 else build.binary("add", made, start)
