"""Targets that share one memory: the checkpoint must have one value for them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .._arrays.boxes import aligned_empty, read_boxes
from .tensor import Tensor

# Bytes of each of two tensors that are compared at a time.
_PIECE_BYTES = 32 << 20


def differ_text(first: str, second: str) -> str:
    return (f"{first!r} and {second!r} are one array here and have different values there: "
            "needed is memory of its own for each")


def differ_there(one: Tensor, other: Tensor, begin: Sequence[int], shape: Sequence[int]) -> bool:
    """True if two tensors of one checkpoint differ in a box, to the bit."""
    if one.number == other.number:
        return False
    if one.dtype != other.dtype or one.ndim != other.ndim:
        return True
    for at, extents in _pieces(tuple(begin), tuple(shape), one.dtype.itemsize):
        parts = [aligned_empty(extents, one.dtype) for _ in range(2)]
        read_boxes(one.reader, [(tensor.number, at, part) for tensor, part in zip((one, other), parts)])
        if parts[0].tobytes() != parts[1].tobytes():
            return True
    return False


def _pieces(begin: tuple[int, ...], shape: tuple[int, ...],
            itemsize: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yields parts of a box that each have at most the bytes of a piece."""
    size = itemsize * math.prod(shape)
    dim = next((dim for dim, extent in enumerate(shape) if extent > 1), None)
    if size <= _PIECE_BYTES or dim is None:
        yield begin, shape
        return
    step = max(1, shape[dim] * _PIECE_BYTES // size)
    for at in range(0, shape[dim], step):
        yield from _pieces((*begin[:dim], begin[dim] + at, *begin[dim + 1:]),
                           (*shape[:dim], min(step, shape[dim] - at), *shape[dim + 1:]), itemsize)
