"""Memory that one read fills."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _core

_ALIGNMENT = 64
_SMALL = 64 << 10
_BLOCK = 1 << 20


class _Block:
    """Memory: `size` bytes of it are aligned."""

    def __init__(self, size: int) -> None:
        self.memory = np.empty(size + _ALIGNMENT, np.uint8)
        self.address: int = self.memory.__array_interface__["data"][0]
        self.begin = -self.address % _ALIGNMENT
        self.end = self.begin + size


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array at an address that is a multiple of 64, as JAX takes it without a copy."""
    block = _Block(math.prod(shape) * dtype.itemsize)
    return np.ndarray(shape, dtype, block.memory, block.begin)


class Reads:
    """Boxes of tensors, to be read in one pass: each stored chunk is read once."""

    def __init__(self, reader: _core.Reader) -> None:
        self._reader = reader
        self._targets: list[tuple[int, Sequence[int], Sequence[int], int]] = []
        self._kept: list[Any] = []
        self._shared = _Block(0)

    def new(self, number: int, begin: Sequence[int], shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array for the box of tensor `number` that begins at an index and has this shape. Aligned; small ones share
        blocks of 1 MiB, as it would take longer to find memory for each than to read it."""
        size = math.prod(shape) * dtype.itemsize
        block = self._shared
        offset = block.begin
        if size >= _SMALL:
            block = _Block(size)
            offset = block.begin
        elif offset + size > block.end:
            block = self._shared = _Block(_BLOCK)
            offset = block.begin
        block.begin += size + -size % _ALIGNMENT
        if size:
            self._targets.append((number, begin, shape, block.address + offset))
        return np.ndarray(shape, dtype, block.memory, offset)

    def add(self, number: int, begin: Sequence[int], array: Any) -> None:
        """Into an array of yours, row-major."""
        if array.size:
            self.add_memory(number, begin, array.shape, array.__array_interface__["data"][0], array)

    def add_memory(self, number: int, begin: Sequence[int], shape: Sequence[int], address: int, keeper: Any) -> None:
        """Into memory that `keeper` keeps; not empty."""
        self._targets.append((number, begin, shape, address))
        self._kept.append(keeper)

    def run(self) -> None:
        """Fills them. The arrays of new() are to be there still."""
        self._reader.read(self._targets)
        self._targets, self._kept = [], []
