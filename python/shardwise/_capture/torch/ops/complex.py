"""Writes operations on complex numbers, as in rotary embeddings, as operations on pairs of real tensors. The
inputs and outputs of a program are real, with a last dim of 2, as of torch.view_as_real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...._programs.text import PARTS, Complex, Refused, Rules, Value
from ...shared.complex import (cosine, equal, exponential, hypotenuse, logarithm, one_like, power, product,
                               quotient, root, sine, whole_power)
from .rules import RULES, Builder, Scalar, Type

#: The rules of operations that combine both parts, by the name of the ATen operation.
OF_BOTH = Rules()

#: Operations that apply to the real and imaginary parts separately; a real operand has the imaginary part 0.
_OF_EACH = frozenset(
    """alias detach clone view _unsafe_view reshape unsqueeze squeeze permute transpose t expand slice
    select cat stack index index_select flip roll split_with_sizes repeat slice_scatter select_scatter
    neg _neg_view sum mean where unfold as_strided gather scatter_add diagonal cumsum lift_fresh
    lift_fresh_copy index_put tril triu index_add permute_copy""".split())

#: The operand of such an operation that is a condition or an index, and equal for both parts.
_NO_DATA = {"where": 0, "index": 1, "index_select": 2, "gather": 2, "scatter_add": 2, "index_put": 1,
            "index_add": 2}


def is_complex(one: Any) -> bool:
    """Returns True if an operand or a type, or one in a list, is complex."""
    return any(map(is_complex, one)) if isinstance(one, (list, tuple)) else isinstance(one, Complex) or (
        isinstance(one, Type) and one.dtype in PARTS)


def rule_of(name: str) -> Callable[..., Any]:
    """Returns the rule of an operation that takes or returns complex tensors. Raises Refused."""
    if name in OF_BOTH:
        return OF_BOTH[name]
    if name not in _OF_EACH:
        raise Refused("found complex numbers")
    return lambda build, out, *args, **kwargs: _each(name, build, out, args, kwargs)


def _each(name: str, build: Builder, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def part(values: Any, which: str) -> Any:
        if isinstance(values, (list, tuple)):
            return [part(value, which) for value in values]
        return getattr(values, which) if isinstance(values, Complex) else values

    args = tuple(arg if place == _NO_DATA.get(name) else _with_imag(build, arg)
                 for place, arg in enumerate(args))

    def made(which: str) -> Any:
        types = [_part_type(one) for one in out] if isinstance(out, list) else _part_type(out)
        return RULES[name](build, types, *part(args, which), **kwargs)

    real, imag = made("real"), made("imag")
    return [Complex(*pair) for pair in zip(real, imag,
                                           strict=True)] if isinstance(out, list) else Complex(real, imag)


def _with_imag(build: Builder, x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [_with_imag(build, one) for one in x]
    return Complex(x, build.full(x, 0)) if isinstance(x, Value) else x


def _part_type(out: Type) -> Type:
    return Type(PARTS[out.dtype], out.shape)


def _complex(build: Builder, x: Complex | Value | Scalar | complex, out: Type) -> Complex:
    """Returns an operand as a complex value with the shape of the result."""
    real, imag = (x.real, x.imag) if isinstance(x, (Complex, complex)) else (x, 0)
    part = PARTS[out.dtype]
    return Complex(build.operand(real, part, out.shape), build.operand(imag, part, out.shape))


@OF_BOTH.rule("view_as_complex")
def _view_as_complex(build: Builder, out: Type, x: Value) -> Complex:
    return build.pair(x)


@OF_BOTH.rule("view_as_real")
def _view_as_real(build: Builder, out: Type, x: Complex) -> Value:
    return build.in_one(x)


@OF_BOTH.rule("_to_copy", "to")
def _to_copy(build: Builder, out: Type, x: Complex | Value, *_: Any, **__: Any) -> Complex | Value:
    if out.dtype in PARTS:
        return _complex(build, x, out)
    assert isinstance(x, Complex)
    return build.convert(x.real, out.dtype)


@OF_BOTH.rule("copy")
def _copy(build: Builder, out: Type, _: Any, x: Complex | Value, *__: Any) -> Complex | Value:
    if out.dtype in PARTS:
        return _complex(build, x, out)
    assert isinstance(x, Complex)
    return build.operand(x.real, out.dtype, out.shape)


@OF_BOTH.rule("constant_pad_nd")
def _padded(build: Builder, out: Type, x: Complex, pads: Sequence[int],
            number: Scalar | complex = 0) -> Complex:
    pad, part = RULES["constant_pad_nd"], _part_type(out)
    return Complex(pad(build, part, x.real, pads, number.real), pad(build, part, x.imag, pads, number.imag))


@OF_BOTH.rule("real")
def _real(build: Builder, out: Type, x: Complex) -> Value:
    return x.real


@OF_BOTH.rule("imag")
def _imag(build: Builder, out: Type, x: Complex) -> Value:
    return x.imag


@OF_BOTH.rule("complex")
def _of_parts(build: Builder, out: Type, real: Value, imag: Value) -> Complex:
    return Complex(build.broadcast_to(real, out.shape), build.broadcast_to(imag, out.shape))


@OF_BOTH.rule("polar")
def _polar(build: Builder, out: Type, size: Value, angle: Value) -> Complex:
    size, angle = build.broadcast_to(size, out.shape), build.broadcast_to(angle, out.shape)
    return Complex(build.binary("mul", size, build.unary("cos", angle)),
                   build.binary("mul", size, build.unary("sin", angle)))


@OF_BOTH.rule("abs")
def _abs(build: Builder, out: Type, x: Complex) -> Value:
    return hypotenuse(build, x.real, x.imag)


@OF_BOTH.rule("angle")
def _angle(build: Builder, out: Type, x: Complex) -> Value:
    return build.binary("atan2", x.imag, x.real)


@OF_BOTH.rule("sgn")
def _sgn(build: Builder, out: Type, x: Complex) -> Complex:
    """Scales x to size 1, except 0."""
    size = _abs(build, out, x)
    divisor = build.select(build.binary("eq", size, 0), build.full(size, 1), size)
    return Complex(build.binary("div", x.real, divisor), build.binary("div", x.imag, divisor))


@OF_BOTH.rule("_conj", "conj_physical", "_conj_physical")
def _conj(build: Builder, out: Type, x: Complex | complex) -> Complex:
    x = _complex(build, x, out)
    return Complex(x.real, build.unary("neg", x.imag))


@OF_BOTH.rule("resolve_conj", "resolve_neg")
def _same(build: Builder, out: Type, x: Complex) -> Complex:
    return x


def _sum(op: str) -> Callable[..., Complex]:
    def of(build: Builder, out: Type, a: Any, b: Any, alpha: Scalar | complex = 1) -> Complex:
        x, y = _complex(build, a, out), _complex(build, b, out)
        y = y if alpha == 1 else _product(build, out, y, alpha)
        return Complex(build.binary(op, x.real, y.real), build.binary(op, x.imag, y.imag))

    return of


OF_BOTH["add"], OF_BOTH["sub"] = _sum("add"), _sum("sub")


@OF_BOTH.rule("mul")
def _product(build: Builder, out: Type, a: Any, b: Any) -> Complex:
    """Multiplies. A real operand multiplies each part of the complex one."""
    if not isinstance(a, Complex):
        a, b = b, a
    x = _complex(build, a, out)
    if not isinstance(b, (Complex, complex)):
        return Complex(*(build.binary("mul", part, build.operand(b, PARTS[out.dtype], out.shape))
                         for part in (x.real, x.imag)))
    return product(build, x, _complex(build, b, out))


@OF_BOTH.rule("div")
def _quotient(build: Builder, out: Type, a: Any, b: Any) -> Complex:
    if isinstance(b, (Complex, complex)):
        return quotient(build, _complex(build, a, out), _complex(build, b, out))
    x, divisor = _complex(build, a, out), build.operand(b, PARTS[out.dtype], out.shape)
    return Complex(build.binary("div", x.real, divisor), build.binary("div", x.imag, divisor))


@OF_BOTH.rule("full", "full_like", "new_full", "scalar_tensor")
def _full(build: Builder, out: Type, *arguments: Any, **_: Any) -> Complex:
    return _complex(build, arguments[-1], out)


OF_BOTH.update(dict.fromkeys(("zeros", "zeros_like", "new_zeros"),
                             lambda build, out, *_, **__: _full(build, out, 0)))
OF_BOTH.update(dict.fromkeys(("ones", "ones_like", "new_ones"),
                             lambda build, out, *_, **__: _full(build, out, 1)))


def _function(of: Callable[..., Complex]) -> Callable[..., Complex]:
    return lambda build, out, x: of(build, x)


def _tangent(build: Builder, x: Complex) -> Complex:
    """Returns the hyperbolic tangent. For large numbers the quotient of sine and cosine would be one of
    infinities."""
    real, imag = build.unary("tanh", x.real), build.binary("div", build.unary("sin", x.imag),
                                                           build.unary("cos", x.imag))
    return quotient(build, Complex(real, imag), Complex(build.full(real, 1), build.binary("mul", real, imag)))


def _turned(build: Builder, x: Complex, sign: int) -> Complex:
    """Multiplies by i, or by -i."""
    minus = build.unary("neg", x.imag if sign > 0 else x.real)
    return Complex(minus, x.real) if sign > 0 else Complex(x.imag, minus)


def _sigmoid(build: Builder, x: Complex) -> Complex:
    one, turned = (one_like(build, x),
                   exponential(build, Complex(build.unary("neg", x.real), build.unary("neg", x.imag))))
    return quotient(build, one, Complex(build.binary("add", turned.real, 1), turned.imag))


OF_BOTH.update({name: _function(of) for name, of in {
    "exp": exponential, "log": logarithm, "sqrt": root, "sin": sine, "cos": cosine, "tanh": _tangent,
    "sigmoid": _sigmoid, "sinh": lambda build, x: _turned(build, sine(build, _turned(build, x, 1)), -1),
    "cosh": lambda build, x: cosine(build, _turned(build, x, 1)),
    "reciprocal": lambda build, x: quotient(build, one_like(build, x), x),
    "rsqrt": lambda build, x: quotient(build, one_like(build, x), root(build, x)),
}.items()})


@OF_BOTH.rule("pow")
def _pow(build: Builder, out: Type, x: Any, y: Any) -> Complex:
    base = _complex(build, x, out)
    if not isinstance(y, (Value, Complex)) and y == int(y.real):
        return whole_power(build, base, int(y.real))
    if isinstance(y, (int, float)) and y in (0.5, -0.5):
        return root(build, base) if y > 0 else quotient(build, one_like(build, base), root(build, base))
    return power(build, base, _complex(build, y, out))


def _compared(differs: bool) -> Callable[..., Value]:
    def of(build: Builder, out: Type, a: Any, b: Any) -> Value:
        part = next(x.real.dtype for x in (a, b) if isinstance(x, Complex))
        both = [Complex(*(build.operand(part_of, part, out.shape)
                          for part_of in ((x.real, x.imag) if isinstance(x, (Complex, complex)) else (x, 0))))
                for x in (a, b)]
        found = equal(build, *both)
        return build.unary("logical_not", found) if differs else found

    return of


OF_BOTH["eq"], OF_BOTH["ne"] = _compared(False), _compared(True)
OF_BOTH["isfinite"] = lambda build, out, x: build.binary("logical_and", build.unary("is_finite", x.real),
                                                         build.unary("is_finite", x.imag))


def _of_two(name: str, a: int = 0, b: int = 1) -> Callable[..., Complex]:
    """Returns the rule of an operation that is linear in each of two operands."""

    def of(build: Builder, out: Type, *operands: Any, **options: Any) -> Complex:
        def made(first: Value, second: Value) -> Value:
            value: Value = RULES[name](build, _part_type(out), first, second, **options)
            return value

        x, y = (_with_imag(build, operands[place]) for place in (a, b))
        return Complex(build.binary("sub", made(x.real, y.real), made(x.imag, y.imag)),
                       build.binary("add", made(x.real, y.imag), made(x.imag, y.real)))

    return of


OF_BOTH.update({name: _of_two(name) for name in ("mm", "bmm", "mv", "dot")})


@OF_BOTH.rule("vdot")
def _vdot(build: Builder, out: Type, a: Any, b: Any) -> Complex:
    conjugate = _conj(build, Type(out.dtype, a.shape), a)
    return OF_BOTH["dot"](build, out, conjugate, b)  # type: ignore[no-any-return]


@OF_BOTH.rule("addmm", "baddbmm", "addmv")
def _addmm(build: Builder, out: Type, c: Any, a: Any, b: Any, *, beta: Scalar = 1,
           alpha: Scalar = 1) -> Complex:
    name = "mm" if len(out.shape) == 2 else "bmm" if len(out.shape) == 3 else "mv"
    made = OF_BOTH[name](build, out, a, b)
    c = _complex(build, c, out)
    made = made if alpha == 1 else _product(build, out, made, alpha)
    made = made if beta == 0 else OF_BOTH["add"](build, out,
                                                 c if beta == 1 else _product(build, out, c, beta), made)
    return made
