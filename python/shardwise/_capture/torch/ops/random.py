"""Writes ATen's random numbers. Their bits are Philox of an input that each run draws from torch's generator.
They are not the bits that torch would draw, but they are equal on any mesh."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...._programs.text import Node, Refused, Shape, Value
from .rules import Builder, Scalar, Type, rule

KEY = "random_key"  #: the name of the input

_BITS = {"f64": 32, "f32": 24, "f16": 11, "bf16": 8}  #: random bits of a number below 1, by dtype


def draws(operation: Any) -> bool:
    """Returns True if an operation of ATen draws random numbers, and does not only leave memory
    uninitialised."""
    return (isinstance(operation, torch._ops.OpOverload)
            and torch.Tag.nondeterministic_seeded in operation.tags
            and operation._schema.name not in ("aten::empty", "aten::empty_like"))


def _words(build: Builder, shape: Shape, generator: Any) -> Node:
    """Returns words of 32 random bits. Each draw of the step has its own key."""
    if generator is not None:
        raise Refused("found another generator, needed torch's default generator")
    assert build.random_key is not None
    return build.node("random_bits", [build.binary("add", build.random_key, build.draw)], "u32", shape)


def _fraction(build: Builder, out: Type, bits: int, generator: Any, added: float = 0.0) -> Value:
    """Returns (a random whole number of `bits` bits + added) / 2^bits, in f64 for a result in f64, else in
    f32."""
    if out.dtype not in _BITS:
        raise Refused(f"found {out.dtype}, needed a floating dtype")
    words: Value = _words(build, out.shape, generator)
    words = words if bits == 32 else build.binary("shift_right_logical", words, 32 - bits)
    wide = build.convert(words, "f64" if out.dtype == "f64" else "f32")
    return build.binary("mul", build.binary("add", wide, added) if added else wide, 2.0**-bits)


def _uniform(build: Builder, out: Type, generator: Any) -> Value:
    """Draws numbers from 0 to below 1."""
    return build.convert(_fraction(build, out, _BITS.get(out.dtype, 0), generator), out.dtype)


def _inside(build: Builder, out: Type, generator: Any) -> Value:
    """Draws numbers above 0 and below 1."""
    return _fraction(build, out, 32 if out.dtype == "f64" else 23, generator, 0.5)


@rule("bernoulli")
def _bernoulli(build: Builder, out: Type, x: Value, p: Value | Scalar | None = None, *,
               generator: Any = None) -> Value:
    """Draws True with the probability p, or with the probability that each element of x gives."""
    chance = x if p is None else p
    if isinstance(chance, Value):
        kept: Value = build.binary("lt", _uniform(build, Type("f32", out.shape), generator),
                                   build.operand(chance, "f32", out.shape))
    else:
        words, below = _words(build, out.shape, generator), round(chance * 2**32)
        kept = build.binary("lt", words, below) if below < 2**32 else build.operand(True, "bool", out.shape)
    return build.convert(kept, out.dtype)


@rule("rand", "rand_like")
def _rand(build: Builder, out: Type, *_: Any, generator: Any = None, **__: Any) -> Value:
    return _uniform(build, out, generator)


@rule("uniform")
def _uniform_between(build: Builder, out: Type, x: Value, low: Scalar = 0, high: Scalar = 1, *,
                     generator: Any = None) -> Value:
    return build.binary("add", build.binary("mul", _uniform(build, out, generator), high - low), low)


@rule("randn", "randn_like")
def _randn(build: Builder, out: Type, *_: Any, generator: Any = None, **__: Any) -> Value:
    """Draws normal numbers by the inverse of their distribution, as jax.random.normal does."""
    between = build.binary("sub", build.binary("mul", _inside(build, out, generator), 2.0), 1.0)
    return build.convert(build.binary("mul", build.unary("erf_inv", between), math.sqrt(2)), out.dtype)


@rule("normal")
def _normal(build: Builder, out: Type, mean: Value | Scalar = 0, deviation: Value | Scalar = 1, *_: Any,
            generator: Any = None, **__: Any) -> Value:
    scaled = build.binary("mul", _randn(build, out, generator=generator),
                          build.operand(deviation, out.dtype, out.shape))
    return build.binary("add", scaled, build.operand(mean, out.dtype, out.shape))


@rule("normal_functional")
def _normal_like(build: Builder, out: Type, x: Value, mean: Scalar = 0, deviation: Scalar = 1, *,
                 generator: Any = None) -> Value:
    return _normal(build, out, mean, deviation, generator=generator)


@rule("exponential")
def _exponential(build: Builder, out: Type, x: Value, rate: Scalar = 1, *, generator: Any = None) -> Value:
    return build.convert(build.binary("mul", build.unary("log", _inside(build, out, generator)), -1 / rate),
                         out.dtype)


@rule("randint", "randint_like")
def _randint(build: Builder, out: Type, *arguments: Any, generator: Any = None, **_: Any) -> Value:
    """Draws integers from low to below high, for (high, size), (low, high, size), (like, high) or (like, low,
    high)."""
    low, high = [0, *(n for n in arguments if isinstance(n, int))][-2:]
    if high - low > 2**32:
        raise Refused(f"found {high - low} numbers to draw from, needed at most 2^32")
    rest = build.binary("rem", build.convert(_words(build, out.shape, generator), "i64"), high - low)
    return build.convert(build.binary("add", rest, low), out.dtype)
