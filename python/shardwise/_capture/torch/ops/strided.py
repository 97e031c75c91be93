"""Writes as_strided, which takes elements by their places in memory. If these are places in a grid, dims that
are not cut into windows stay as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...._programs.text import Refused, Value
from .rules import Builder, Type, number_of, rule


@dataclass(frozen=True, slots=True)
class _Line:
    """The dims of the grid, major first, each with its first place, and with the dims of the result along it
    and their steps."""

    extents: list[int]
    begins: list[int]
    along: list[list[tuple[int, int]]]
    size: list[int]  #: the size of the result

    @property
    def order(self) -> list[int]:
        """Returns the dims of the result in the order of the grid."""
        return [dim for dims in self.along for dim, _ in dims]


def _grid(count: int, own: Sequence[int], size: Sequence[int], stride: Sequence[int], begin: int) -> _Line:
    """Cuts `count` elements in a row into a grid. own: the strides that they have already. Each dim of the
    result runs along one dim of the grid, which grows until it holds the dim. The last place must be that of
    an element."""
    wanted = [(dim, step) for dim, (n, step) in enumerate(zip(size, stride, strict=True)) if n > 1 and step]
    cuts = [1]
    for step in sorted({*own, *(step for _, step in wanted)}):
        if step > cuts[-1] and step % cuts[-1] == 0 and count % step == 0:
            cuts.append(step)
    while True:
        extents = [b // a for a, b in zip(cuts, [*cuts[1:], count], strict=True)]
        begins = [begin // cut % n for cut, n in zip(cuts, extents, strict=True)]
        along: list[list[tuple[int, int]]] = [[] for _ in cuts]
        for dim, step in wanted:
            place = max(k for k, cut in enumerate(cuts) if step % cut == 0)
            along[place].append((dim, step // cuts[place]))
        beyond = next((k for k, n in enumerate(extents)
                       if begins[k] + sum(step * (size[dim] - 1) for dim, step in along[k]) >= n), None)
        if beyond is None:
            return _Line(extents[::-1], begins[::-1], along[::-1], list(size))
        del cuts[beyond + 1]


def _places(build: Builder, line: _Line, k: int) -> Value:
    """Returns the places along a dim of the grid, for the dims of the result along it."""
    shape = tuple(line.size[dim] for dim, _ in line.along[k])
    return build.counted("i64", shape, [step for _, step in line.along[k]], line.begins[k])


@rule("as_strided")
def _as_strided(build: Builder, out: Type, x: Value, size: Sequence[int], stride: Sequence[int],
                offset: int | None = None) -> Value:
    own: torch.Tensor = build.examples[0]
    begin = 0 if offset is None else int(offset - own.storage_offset())
    last = begin + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    order = _order_in_memory(own)
    if 0 in size:
        return build.operand(0, x.dtype, out.shape)
    if order is None or begin < 0 or last >= own.numel():
        raise Refused(f"as_strided of size {list(size)} and stride {list(stride)}")
    # torch asks for the places themselves, to put a gradient there.
    if len(x.shape) == 1 and build.counts_along(x, 0):
        return build.noted_places(build.counted(x.dtype, out.shape, stride, begin), stride, begin)
    line = _grid(own.numel(), [own.stride(d) for d in order if own.shape[d] > 1], size, stride, begin)
    made = build.reshape(build.transpose(x, order), line.extents)
    at = len(line.extents)
    for k in reversed(range(len(line.extents))):
        at, dims = at - 1, line.along[k]
        if len(dims) > 1:
            made = build.take(made, _places(build, line, k), at)
            continue
        n, step = (line.size[dims[0][0]], dims[0][1]) if dims else (1, 1)
        made = build.cut(made, at, line.begins[k], line.begins[k] + (n - 1) * step + 1, step)
        made = made if dims else build.reshape(made, made.shape[:at] + made.shape[at + 1:])
    made = build.transpose(made, [line.order.index(dim) for dim in sorted(line.order)])
    made = build.reshape(made, [n if step else 1 for n, step in zip(size, stride, strict=True)])
    return build.broadcast_to(made, out.shape)


def added_in_windows(build: Builder, count: int, ids: Value, values: Value) -> Value | None:
    """Adds each value to zeros at its place, as a gradient of as_strided does, if `ids` are noted places;
    returns None for other ids."""
    places = build.places_of(ids)
    return None if places is None else _in_windows(build, count, *places, values)


def _in_windows(build: Builder, count: int, size: Sequence[int], stride: Sequence[int], begin: int,
                values: Value) -> Value:
    """Returns `count` zeros with each value added at its place."""
    line = _grid(count, [], size, stride, begin)
    present = sorted(line.order)
    repeated = [dim for dim in range(len(size)) if dim not in present]
    made = build.reduce("reduce_sum", build.reshape(values, size), repeated) if repeated else build.reshape(
        values, size)
    made = build.transpose(made, [present.index(dim) for dim in line.order])
    at = len(made.shape)
    for k in reversed(range(len(line.extents))):
        dims, extent = line.along[k], line.extents[k]
        at -= len(dims)
        if len(dims) > 1:
            made = build.scatter_add(_places(build, line, k), made, at, extent)
            continue
        n, step = (made.shape[at], dims[0][1]) if dims else (1, 1)
        made = made if dims else build.reshape(made, (*made.shape[:at], 1, *made.shape[at:]))
        low, high, gaps = ([0] * len(made.shape) for _ in range(3))
        low[at], gaps[at] = line.begins[k], step - 1
        high[at] = extent - line.begins[k] - (n - 1) * step - 1
        made = build.pad(made, low, high, gaps, 0)
    return build.reshape(made, (count,))


@rule("as_strided_scatter")
def _as_strided_scatter(build: Builder, out: Type, x: Value, source: Value, size: Sequence[int],
                        stride: Sequence[int], offset: int | None = None) -> Value:
    """Returns x with `source` at the places, which must be distinct and inside x."""
    own: torch.Tensor = build.examples[0]
    begin = 0 if offset is None else int(offset - own.storage_offset())
    last = begin + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    order = _order_in_memory(own)
    if 0 in size:
        return x
    if order is None or begin < 0 or last >= own.numel():
        raise Refused(f"as_strided of size {list(size)} and stride {list(stride)}")

    def put(values: Value) -> Value:
        made = build.reshape(_in_windows(build, own.numel(), size, stride, begin, values),
                             [x.shape[d] for d in order])
        return build.transpose(made, [order.index(d) for d in range(len(order))])

    made = put(source)
    if number_of(x) == 0 or math.prod(size) == own.numel():
        return made
    return build.select(build.convert(put(build.operand(1, "i32", source.shape)), "bool"), made, x)


def _order_in_memory(own: torch.Tensor) -> list[int] | None:
    """Returns the dims, major first, if the elements are in a row in some order of dims; else None."""
    order = sorted(range(own.dim()), key=lambda d: (own.shape[d] > 1, -own.stride()[d]))
    step = 1
    for d in reversed(order):
        if own.shape[d] > 1 and own.stride(d) != step:
            return None
        step *= own.shape[d]
    return order
