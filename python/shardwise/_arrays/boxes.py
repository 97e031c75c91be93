"""Memory for boxes of tensors, and reads into it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from .. import _core

_ALIGNMENT = 64


def aligned_empty(shape: Sequence[int], dtype: np.dtype, alignment: int = _ALIGNMENT) -> np.ndarray:
    """Returns an array at an address that is a multiple of 64, as JAX takes it without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + alignment, np.uint8)
    begin = -raw.__array_interface__["data"][0] % alignment
    return raw[begin : begin + size].view(dtype).reshape(shape)


# Arrays below the first size share blocks of the second: to allocate each would take longer than to read it.
_SMALL_BYTES, _BLOCK_BYTES = 64 << 10, 2 << 20


def many_empty(kinds: Sequence[tuple[tuple[int, ...], np.dtype]]) -> tuple[list[np.ndarray], list[int]]:
    """Returns arrays of these shapes and dtypes, as aligned_empty() makes them, and their addresses."""
    arrays, addresses = [], []
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
    small_left = sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes if size < _SMALL_BYTES)
    block, room, at, address = np.empty(0, np.uint8), 0, 0, 0
    for (shape, dtype), size in zip(kinds, sizes):
        if size < _SMALL_BYTES:
            if at + size > room:
                room, at = min(small_left, _BLOCK_BYTES), 0
                # A whole block is one huge page: numpy asks for these from 4 MiB on. The rest is never
                # touched, and is no part of the arrays' base.
                alignment = room if room == _BLOCK_BYTES else _ALIGNMENT
                made = aligned_empty((room,), np.dtype(np.uint8), alignment)
                block = np.frombuffer(made.data, np.uint8)
                address = block.__array_interface__["data"][0]
            arrays.append(np.ndarray(shape, dtype, block, at))
            addresses.append(address + at)
            taken = -(-size // _ALIGNMENT) * _ALIGNMENT
            at += taken
            small_left -= taken
        else:
            arrays.append(aligned_empty(shape, dtype))
            addresses.append(arrays[-1].__array_interface__["data"][0])
    return arrays, addresses


Boxes = list[tuple[int, Sequence[int], np.ndarray]]


def read_boxes(reader: _core.Reader, boxes: Iterable[tuple[int, Sequence[int], np.ndarray]]) -> None:
    """Fills row-major arrays, each with the box of tensor number i that begins at an index and has the
    array's shape; each stored chunk is read once."""
    targets = [(number, list(begin), list(array.shape), array.__array_interface__["data"][0])
               for number, begin, array in boxes if array.size]
    reader.read(targets)
