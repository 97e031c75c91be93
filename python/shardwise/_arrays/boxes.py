"""Allocates memory for boxes of tensors, and reads into it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from .. import _core

_ALIGNMENT = 64


def aligned_empty(shape: Sequence[int], dtype: np.dtype, alignment: int = _ALIGNMENT) -> np.ndarray:
    """Returns an array at an aligned address. JAX takes an array at a multiple of 64 without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + alignment, np.uint8)
    begin = -raw.__array_interface__["data"][0] % alignment
    return raw[begin : begin + size].view(dtype).reshape(shape)


# Arrays below the first size share blocks of the second: allocating each would take longer than reading it.
_SMALL_BYTES, _BLOCK_BYTES = 64 << 10, 2 << 20


def many_empty(kinds: Sequence[tuple[tuple[int, ...], np.dtype]]) -> tuple[list[np.ndarray], list[int]]:
    """Returns aligned arrays of these shapes and dtypes, and their addresses."""
    arrays, addresses = [], []
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
    small_left = sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes if size < _SMALL_BYTES)
    block, room, at, address = np.empty(0, np.uint8), 0, 0, 0
    for (shape, dtype), size in zip(kinds, sizes):
        if size < _SMALL_BYTES:
            if at + size > room:
                room, at = min(small_left, _BLOCK_BYTES), 0
                # An aligned block is one huge page, as numpy asks for them from 4 MiB on. The padding is
                # never touched, and not part of the arrays' base.
                alignment = room if room == _BLOCK_BYTES else _ALIGNMENT
                memory = aligned_empty((room,), np.dtype(np.uint8), alignment)
                block = np.frombuffer(memory.data, np.uint8)
                address = block.__array_interface__["data"][0]
            arrays.append(np.ndarray(shape, dtype, block, at))
            addresses.append(address + at)
            padded = -(-size // _ALIGNMENT) * _ALIGNMENT
            at += padded
            small_left -= padded
        else:
            arrays.append(aligned_empty(shape, dtype))
            addresses.append(arrays[-1].__array_interface__["data"][0])
    return arrays, addresses


Boxes = list[tuple[int, Sequence[int], np.ndarray]]


def read_boxes(reader: _core.Reader, boxes: Iterable[tuple[int, Sequence[int], np.ndarray]]) -> None:
    """Fills row-major arrays. A box is the number of a tensor, the index that the box begins at, and the
    array, which has the shape of the box. Reads each stored chunk once."""
    targets = [(number, list(begin), list(array.shape), array.__array_interface__["data"][0])
               for number, begin, array in boxes if array.size]
    reader.read(targets)
