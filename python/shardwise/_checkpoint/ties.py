"""Checks that the checkpoint has equal values for targets that share one memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .._arrays.boxes import aligned_empty, read_boxes
from .tensor import Tensor

# The bytes of each of two tensors that are compared at a time.
_PIECE_BYTES = 32 << 20


def differ_text(first: str, second: str) -> str:
    return (f"{first!r} and {second!r} are one array here and have different values there: "
            "needed is memory of its own for each")


def differ_there(first: Tensor, second: Tensor, begin: Sequence[int], shape: Sequence[int]) -> bool:
    """Returns True if any bit of two tensors of one checkpoint differs in a box."""
    if first.number == second.number:
        return False
    if first.dtype != second.dtype or first.ndim != second.ndim:
        return True
    for at, extents in _pieces(tuple(begin), tuple(shape), first.dtype.itemsize):
        parts = [aligned_empty(extents, first.dtype) for _ in range(2)]
        read_boxes(first.reader, [(tensor.number, at, part) for tensor, part in zip((first, second), parts)])
        if parts[0].tobytes() != parts[1].tobytes():
            return True
    return False


def _pieces(begin: tuple[int, ...], shape: tuple[int, ...],
            itemsize: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yields parts of a box, each of at most _PIECE_BYTES."""
    size = itemsize * math.prod(shape)
    dim = next((dim for dim, extent in enumerate(shape) if extent > 1), None)
    if size <= _PIECE_BYTES or dim is None:
        yield begin, shape
        return
    step = max(1, shape[dim] * _PIECE_BYTES // size)
    for at in range(0, shape[dim], step):
        yield from _pieces((*begin[:dim], begin[dim] + at, *begin[dim + 1:]),
                           (*shape[:dim], min(step, shape[dim] - at), *shape[dim + 1:]), itemsize)
