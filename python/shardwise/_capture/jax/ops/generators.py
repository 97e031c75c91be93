"""Writes generators of random bits as integer operations, with the bits of XLA on a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...._programs.text import Number, ProgramText, Refused, Shape, Value

_PHILOX = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)  #: factors, and the key's increments per round


def random_bits(text: ProgramText, algorithm: str, state: Value, dtype: str,
                shape: Shape) -> tuple[Value, Value]:
    """Returns the next state, and unsigned numbers of the shape. state: two u64, a key and a counter. Raises
    Refused for too many numbers."""
    if math.prod(shape) >= 2**32:
        raise Refused(f"found {list(shape)} random numbers, needed fewer than 2^32")
    draw = _threefry_bits if algorithm.endswith("THREE_FRY") else _philox_bits
    words, counters = draw(text, state, "u64" if dtype == "u64" else "u32", shape)
    after = text.concatenate([text.part(state, 0, 0, 1), text.elementwise("add", text.part(state, 0, 1, 2),
                                                                          Number(counters, "u64", (1,)))], 0)
    return after, text.convert(words, dtype)


def threefry2x32(text: ProgramText, key_0: Value, key_1: Value, x_0: Value,
                 x_1: Value) -> tuple[Value, Value]:
    """Writes 20 rounds of Threefry (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3")."""

    def add(a: Value, b: Value) -> Value:
        return text.elementwise("add", a, b)

    def rotated(x: Value, bits: int) -> Value:
        left = text.elementwise("shift_left", x, text.full(x, bits))
        return text.elementwise("logical_or", left,
                                text.elementwise("shift_right_logical", x, text.full(x, 32 - bits)))

    keys = key_0, key_1, _xor(text, key_0, key_1, text.full(key_0, 0x1BD11BDA))
    a, b = add(x_0, key_0), add(x_1, key_1)
    for group in range(5):
        for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            a = add(a, b)
            b = _xor(text, a, rotated(b, bits))
        a = add(a, keys[(group + 1) % 3])
        b = add(b, add(keys[(group + 2) % 3], text.full(key_0, group + 1)))
    return a, b


def _xor(text: ProgramText, *values: Value) -> Value:
    result = values[0]
    for value in values[1:]:
        result = text.elementwise("logical_xor", result, value)
    return result


def _halves(text: ProgramText, x: Value) -> tuple[Value, Value]:
    """Returns the low and the high 32 bits of u64 values."""
    return text.convert(x, "u32"), text.convert(text.elementwise("shift_right_logical", x, text.full(x, 32)),
                                                "u32")


def _whole(text: ProgramText, low: Value, high: Value) -> Value:
    raised = text.elementwise("shift_left", text.convert(high, "u64"), Number(32, "u64", high.shape))
    return text.elementwise("logical_or", text.convert(low, "u64"), raised)


def _counted(text: ProgramText, first: Value, shape: Shape) -> Value:
    """Returns first, first + 1, .., row-major."""
    count = text.broadcast(first, shape, [])
    for dim in range(len(shape)):
        along = text.iota("u64", shape, dim)
        count = text.elementwise("add", count,
                                 text.elementwise("mul", along, text.full(along, math.prod(shape[dim + 1:]))))
    return count


def _key_and_counter(text: ProgramText, state: Value) -> list[Value]:
    return [text.reshape(text.part(state, 0, place, place + 1), ()) for place in (0, 1)]


def _philox_bits(text: ProgramText, state: Value, dtype: str, shape: Shape) -> tuple[Value, int]:
    """Draws four words from each counter, along the last dim if 4 divides it, so that a cut of other dims
    moves nothing."""
    per = 4 if dtype == "u32" else 2
    count = math.prod(shape)
    along = shape if shape and shape[-1] % per == 0 else (-(-count // per) * per,)
    blocks = (*along[:-1], along[-1] // per)
    key, first = _key_and_counter(text, state)
    low = _counted(text, first, blocks)
    has_wrapped = text.convert(text.elementwise("lt", low, text.broadcast(first, blocks, [])), "u64")
    high = text.elementwise("add", text.broadcast(key, blocks, []), has_wrapped)
    words = _philox(text, [*_halves(text, low), *_halves(text, high)], _halves(text, key))
    parts = words if per == 4 else [_whole(text, *words[:2]), _whole(text, *words[2:])]
    drawn = text.reshape(text.concatenate([text.reshape(part, (*blocks, 1)) for part in parts], len(blocks)),
                         along)
    return drawn if along == shape else text.reshape(text.part(drawn, 0, 0, count), shape), math.prod(blocks)


def _philox(text: ProgramText, counter: Sequence[Value], key: Sequence[Value]) -> Sequence[Value]:
    """Writes Philox4x32-10 of the same paper."""
    a, b, c, d = counter
    for number in range(10):
        keys = [text.elementwise("add", half, text.full(half, number * step % 2**32))
                for half, step in zip(key, _PHILOX[1])]
        products = [text.elementwise("mul", text.convert(x, "u64"), Number(factor, "u64", x.shape))
                    for x, factor in zip((a, c), _PHILOX[0])]
        (low_a, high_a), (low_c, high_c) = (_halves(text, product) for product in products)
        a, b, c, d = _xor(text, high_c, b, keys[0]), low_c, _xor(text, high_a, d, keys[1]), low_a
    return a, b, c, d


def _threefry_bits(text: ProgramText, state: Value, dtype: str, shape: Shape) -> tuple[Value, int]:
    """Draws two words from each counter, which alternate along the first even dim, or else along the
    longest."""
    key, first = _key_and_counter(text, state)

    def drawn(counted: Shape) -> tuple[Value, Value]:
        low, high = (text.broadcast(half, counted, []) for half in _halves(text, key))
        return threefry2x32(text, low, high, *_halves(text, _counted(text, first, counted)))

    if dtype == "u64":
        return _whole(text, *drawn(shape)), math.prod(shape)
    whole = shape or (1,)
    dim = next((dim for dim, extent in enumerate(whole) if extent % 2 == 0), whole.index(max(whole)))
    half = (*whole[:dim], -(-whole[dim] // 2), *whole[dim + 1:])
    twice = (*whole[:dim], 2 * half[dim], *whole[dim + 1:])
    parts = [text.reshape(word, (*half[:dim + 1], 1, *half[dim + 1:])) for word in drawn(half)]
    words = text.reshape(text.concatenate(parts, dim + 1), twice)
    return text.reshape(text.part(words, dim, 0, whole[dim]), shape), math.prod(half)
