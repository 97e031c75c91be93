"""Writes JAX's random numbers. A typed key is its data, and a draw is integer operations with the bits of
JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ...._dtypes import NUMPY
from ...._programs.text import Number, Refused, Value
from . import generators
from .rules import Call, rule


@rule("random_wrap", "random_unwrap", "random_clone")
def _same_data(call: Call, keys: Value) -> Value:
    return keys


def _written(call: Call, function: Callable[..., Any], *operands: Value) -> Sequence[Value]:
    """Inlines a function of JAX of the data."""
    example = [np.zeros(x.shape, NUMPY[x.dtype]) for x in operands]
    return call.inlined(jax.make_jaxpr(function)(*example), operands)


def _for_each_key(call: Call, function: Callable[..., Any], *operands: Value) -> Sequence[Value]:
    shape = call.avals[0].shape
    if any(aval.shape != shape for aval in call.avals):
        raise Refused(f"found keys of {list(shape)} and numbers of {list(call.avals[-1].shape)}, "
                      "needed one for each key")
    for _ in shape:
        function = jax.vmap(function)
    return _written(call, function, *operands)


@rule("random_bits")
def _bits(call: Call, keys: Value) -> Sequence[Value]:
    draw, params = call.avals[0].dtype._impl.random_bits, call.params
    return _for_each_key(call, lambda key: draw(key, params["bit_width"], params["shape"]), keys)


@rule("random_split")
def _split(call: Call, keys: Value) -> Sequence[Value]:
    split = call.avals[0].dtype._impl.split
    return _for_each_key(call, lambda key: split(key, call.params["shape"]), keys)


@rule("random_fold_in")
def _fold_in(call: Call, keys: Value, numbers: Value) -> Sequence[Value]:
    return _for_each_key(call, call.avals[0].dtype._impl.fold_in, keys, numbers)


@rule("random_seed")
def _seed(call: Call, seeds: Value) -> Sequence[Value]:
    return _for_each_key(call, call.params["impl"].seed, seeds)


@rule("iota_2x32_shape")
def _iota_2x32(call: Call) -> Sequence[Value]:
    """Returns the row-major number of each element, as the two halves of 64 bits."""
    text, shape = call.text, call.shape
    if np.prod(shape, dtype=np.float64) >= 2.0**32:
        raise Refused(f"found {list(shape)} random numbers, needed fewer than 2^32")
    number: Value = Number(0, "u32", shape)
    for dim in range(len(shape)):
        stride = int(np.prod(shape[dim + 1:], dtype=np.int64))
        along = text.elementwise("mul", text.iota("u32", shape, dim), Number(stride, "u32", shape))
        number = along if dim == 0 else text.elementwise("add", number, along)
    return Number(0, "u32", shape), number


@rule("threefry2x32")
def _threefry2x32(call: Call, key_0: Value, key_1: Value, x_0: Value, x_1: Value) -> Sequence[Value]:
    return generators.threefry2x32(call.text, key_0, key_1, x_0, x_1)


@rule("rng_bit_generator")
def _bit_generator(call: Call, state: Value) -> Sequence[Value]:
    """Draws from a state of four u32, which are two u64, or of two u64."""
    text, params = call.text, call.params
    wide = state if state.dtype == "u64" else text.bitcast(text.reshape(state, (2, 2)), "u64", (2,))
    after, bits = generators.random_bits(text, str(params["algorithm"]), wide, call.results[1][0],
                                         call.results[1][1])
    return (after if state.dtype == "u64" else text.reshape(text.bitcast(after, "u32", (2, 2)), state.shape),
            bits)
