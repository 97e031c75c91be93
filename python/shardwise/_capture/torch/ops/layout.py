"""Writes ATen operations that move elements, and those that take an index."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ...._arrays.torch_tensors import TORCH
from ...._programs.text import FLOATS, Node, Number, Refused, Value
from .rules import RULES, Builder, Scalar, Type, is_float, number_of, replaced, rule
from .strided import added_in_windows


@rule("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "view_copy")
def _view(build: Builder, out: Type, x: Value, *_: Any) -> Value:
    if x.dtype != out.dtype:
        return build.node("bitcast", (x,), out.dtype, out.shape)
    return build.reshape(x, out.shape)


@rule("permute")
def _permute(build: Builder, out: Type, x: Value, dims: Sequence[int]) -> Value:
    return build.transpose(x, [d % len(x.shape) for d in dims])


@rule("transpose")
def _transpose(build: Builder, out: Type, x: Value, one: int, other: int) -> Value:
    dims = list(range(len(x.shape)))
    dims[one], dims[other] = dims[other], dims[one]
    return build.transpose(x, dims)


@rule("t")
def _t(build: Builder, out: Type, x: Value) -> Value:
    return build.transpose(x, [1, 0]) if len(x.shape) == 2 else x


@rule("expand")
def _expand(build: Builder, out: Type, x: Value, *_: Any, **__: Any) -> Value:
    return build.broadcast_to(x, out.shape)


@rule("unfold")
def _unfold(build: Builder, out: Type, x: Value, dim: int, size: int, step: int) -> Value:
    """Takes windows along a dim, with their elements in the last dim, by one slice for each element or each
    window."""
    if not x.shape or 0 in out.shape:
        return build.reshape(x, out.shape) if 0 not in out.shape else build.operand(0, x.dtype, out.shape)
    dim %= len(x.shape)
    count = out.shape[dim]
    if size <= count:
        parts = [build.cut(x, dim, i, i + (count - 1) * step + 1, step) for i in range(size)]
        return build.concatenate([build.reshape(part, (*part.shape, 1)) for part in parts], len(x.shape))
    order = [*(d for d in range(len(x.shape)) if d != dim), dim]
    windows = [build.transpose(build.cut(x, dim, i * step, i * step + size), order) for i in range(count)]
    return build.concatenate([build.reshape(window, (*window.shape[:dim], 1, *window.shape[dim:]))
                              for window in windows], dim)


@rule("narrow_copy")
def _narrow(build: Builder, out: Type, x: Value, dim: int, begin: int, length: int) -> Value:
    dim %= len(x.shape)
    begin %= max(x.shape[dim], 1)
    return build.cut(x, dim, begin, begin + length)


def _bounds(extent: int, begin: int | None, end: int | None) -> tuple[int, int]:
    begin, end, _ = slice(begin, end).indices(extent)
    return begin, max(begin, end)


@rule("slice")
def _slice(build: Builder, out: Type, x: Value, dim: int = 0, begin: int | None = None,
           end: int | None = None, step: int = 1) -> Value:
    dim %= len(x.shape)
    return build.cut(x, dim, *_bounds(x.shape[dim], begin, end), step)


@rule("select")
def _select(build: Builder, out: Type, x: Value, dim: int, index: int | Value) -> Value:
    dim %= len(x.shape)
    if isinstance(index, (Node, Number)):  # a computed index
        return build.take(x, build.from_front(build.convert(index, "i64"), x.shape[dim]), dim)
    index %= x.shape[dim]
    return build.reshape(build.cut(x, dim, index, index + 1), out.shape)


@rule("slice_scatter")
def _slice_scatter(build: Builder, out: Type, x: Value, source: Value, dim: int = 0, begin: int | None = None,
                   end: int | None = None, step: int = 1) -> Value:
    """Returns x with `source` in a slice of it."""
    dim %= len(x.shape)
    extent = x.shape[dim]
    begin, end = _bounds(extent, begin, end)
    source = build.operand(source, x.dtype, replaced(x.shape, dim, -((begin - end) // step)))
    if source.shape[dim] == 0:
        return x
    last = begin + (source.shape[dim] - 1) * step + 1
    low, high, gaps = ([0] * len(x.shape) for _ in range(3))
    low[dim], high[dim], gaps[dim] = begin, extent - last, step - 1
    if number_of(x) == 0:
        return build.pad(source, low, high, gaps, 0)
    if step == 1:
        parts = build.cut(x, dim, 0, begin), source, build.cut(x, dim, last, extent)
        return build.concatenate([part for part in parts if part.shape[dim]], dim)
    is_source = build.pad(build.operand(True, "bool", source.shape), low, high, gaps, 0)
    return build.select(is_source, build.pad(source, low, high, gaps, 0), x)


@rule("select_scatter")
def _select_scatter(build: Builder, out: Type, x: Value, source: Value, dim: int, index: int) -> Value:
    dim %= len(x.shape)
    index %= x.shape[dim]
    row = build.reshape(source, replaced(x.shape, dim, 1))
    return _slice_scatter(build, out, x, row, dim, index, index + 1)


@rule("cat", "concat")
def _cat(build: Builder, out: Type, parts: Sequence[Value], dim: int = 0) -> Value:
    dim %= len(out.shape)
    with_elements = [build.convert(x, out.dtype) for x in parts if 0 not in x.shape]
    return build.concatenate(with_elements, dim) if with_elements else build.operand(0, out.dtype, out.shape)


@rule("stack")
def _stack(build: Builder, out: Type, parts: Sequence[Value], dim: int = 0) -> Value:
    dim %= len(out.shape)
    return build.concatenate([build.reshape(build.convert(x, out.dtype), replaced(out.shape, dim, 1))
                              for x in parts], dim)


@rule("split", "split_with_sizes", "chunk")
def _split(build: Builder, out: Sequence[Type], x: Value, _: Any, dim: int = 0) -> list[Value]:
    dim %= len(x.shape)
    ends = np.cumsum([part.shape[dim] for part in out]).tolist()
    return [build.cut(x, dim, end - part.shape[dim], end) for end, part in zip(ends, out, strict=True)]


@rule("unbind")
def _unbind(build: Builder, out: Sequence[Type], x: Value, dim: int = 0) -> list[Value]:
    return [_select(build, part, x, dim, i) for i, part in enumerate(out)]


@rule("repeat")
def _repeat(build: Builder, out: Type, x: Value, repeats: Sequence[int]) -> Value:
    shape = (1,) * (len(repeats) - len(x.shape)) + x.shape
    wide = tuple(n for pair in zip(repeats, shape, strict=True) for n in pair)
    spread = build.broadcast(build.reshape(x, shape), wide, range(1, 2 * len(shape), 2))
    return build.reshape(spread, out.shape)


@rule("flip")
def _flip(build: Builder, out: Type, x: Value, dims: Sequence[int]) -> Value:
    return build.reverse(x, sorted(d % len(x.shape) for d in dims))


@rule("roll")
def _roll(build: Builder, out: Type, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    if not dims:
        return build.reshape(_roll(build, out, build.reshape(x, (math.prod(x.shape),)), shifts, [0]), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        dim %= len(x.shape)
        cut = -shift % x.shape[dim]
        if cut:
            x = build.concatenate([build.cut(x, dim, cut, x.shape[dim]), build.cut(x, dim, 0, cut)], dim)
    return x


@rule("constant_pad_nd")
def _pad(build: Builder, out: Type, x: Value, pads: Sequence[int], number: Scalar = 0) -> Value:
    low, high = [0] * len(x.shape), [0] * len(x.shape)
    for i in range(len(pads) // 2):
        low[len(x.shape) - 1 - i], high[len(x.shape) - 1 - i] = pads[2 * i], pads[2 * i + 1]
    return build.padded(x, low, high, number)


@rule("diagonal")
def _diagonal(build: Builder, out: Type, x: Value, offset: int = 0, one: int = 0, other: int = 1) -> Value:
    one, other = one % len(x.shape), other % len(x.shape)
    rest = [d for d in range(len(x.shape)) if d not in (one, other)]
    rows = build.transpose(x, [*rest, one, other])
    last = len(out.shape) - 1
    along = build.iota("i64", out.shape, last)
    rows = build.cut(rows, last, max(0, -offset), max(0, -offset) + out.shape[-1])
    ids = build.reshape(build.binary("add", along, max(0, offset)), (*out.shape, 1))
    return build.reshape(build.take_along(rows, ids, last + 1), out.shape)


@rule("diagonal_scatter")
def _diagonal_scatter(build: Builder, out: Type, x: Value, source: Value, offset: int = 0, one: int = 0,
                      other: int = 1) -> Value:
    one, other = one % len(x.shape), other % len(x.shape)
    order = [*(d for d in range(len(x.shape)) if d not in (one, other)), one, other]
    matrices = build.transpose(x, order)
    shape, last = matrices.shape, len(order) - 1
    low, high = [0] * last, [0] * last
    low[-1] = max(0, -offset)
    high[-1] = shape[-2] - source.shape[-1] - low[-1]
    rows = build.broadcast(build.padded(source, low, high), shape, range(last))
    places = build.binary("sub", build.iota("i64", shape, last), build.iota("i64", shape, last - 1))
    made = build.select(build.binary("eq", places, offset), rows, matrices)
    return build.transpose(made, [order.index(d) for d in range(len(order))])


# Indexing.



@rule("embedding")
def _embedding(build: Builder, out: Type, table: Value, ids: Value, *_: Any) -> Value:
    return build.take(table, ids, 0)


@rule("embedding_dense_backward")
def _embedding_backward(build: Builder, out: Type, gradient: Value, ids: Value, extent: int, padding: int,
                        by_frequency: bool) -> Value:
    if by_frequency:
        counts = build.take(build.scatter_add(ids, Number(1.0, gradient.dtype, ids.shape), 0, extent), ids, 0)
        gradient = build.binary("div", gradient,
                                build.broadcast(counts, gradient.shape, range(len(ids.shape))))
    if padding >= 0:
        is_padding = build.broadcast(build.binary("eq", ids, padding), gradient.shape, range(len(ids.shape)))
        gradient = build.select(is_padding, build.full(gradient, 0), gradient)
    return build.scatter_add(ids, gradient, 0, extent)


@rule("index_select")
def _index_select(build: Builder, out: Type, x: Value, dim: int, ids: Value) -> Value:
    return build.take(x, ids, dim % len(x.shape)) if x.shape else build.broadcast(x, out.shape, [])


@rule("gather")
def _gather(build: Builder, out: Type, x: Value, dim: int, ids: Value, **_: Any) -> Value:
    if not x.shape:
        return build.broadcast(x, out.shape, [])
    if not ids.shape:
        return build.reshape(build.take_along(x, build.reshape(ids, (1,)), 0), ())
    dim %= len(x.shape)
    for d, extent in enumerate(ids.shape):
        if d != dim:
            x = build.cut(x, d, 0, extent)
    return build.take_along(x, ids, dim)


@rule("index", "_unsafe_index")
def _index(build: Builder, out: Type, x: Value, indices: Sequence[Value | None]) -> Value:
    dims, ids = _flat_ids(build, x, indices)
    first, last = dims[0], dims[-1]
    if dims != list(range(first, last + 1)):  # numpy then puts the indexed dims first
        rest = [d for d in range(len(x.shape)) if d not in dims]
        x, first = build.transpose(x, [*dims, *rest]), 0
    flat = x.shape[:first] + (math.prod(x.shape[first:first + len(dims)]),) + x.shape[first + len(dims):]
    return build.take(build.reshape(x, flat), ids, first)


def _flat_ids(build: Builder, x: Value, indices: Sequence[Value | None]) -> tuple[list[int], Value]:
    """Returns the indexed dims, and the indices in them as if they were one dim."""
    indexed = [(d, ids) for d, ids in enumerate(indices) if ids is not None]
    if any(ids.dtype == "bool" for _, ids in indexed):
        raise Refused("an index of booleans")
    shape = np.broadcast_shapes(*[ids.shape for _, ids in indexed])
    flat: Value | None = None
    for d, ids in indexed:
        wide = build.broadcast_to(build.convert(build.from_front(ids, x.shape[d]), "i64"), shape)
        flat = wide if flat is None else build.binary("add", build.binary("mul", flat, x.shape[d]), wide)
    assert flat is not None
    return [d for d, _ in indexed], flat


@rule("index_put", "_unsafe_index_put")
def _index_put(build: Builder, out: Type, x: Value, indices: Sequence[Value | None], values: Value,
               accumulate: bool = False) -> Value:
    present = [ids for ids in indices if ids is not None]
    if (len(present) == 1 and present[0].dtype == "bool" and indices[0] is not None and not accumulate
        and not values.shape):
        mask = build.broadcast(present[0], x.shape, range(len(present[0].shape)))
        return build.select(mask, build.operand(values, x.dtype, x.shape), x)
    dims, ids = _flat_ids(build, x, indices)
    rest = [d for d in range(len(x.shape)) if d not in dims]
    order = [*dims, *rest]
    rows = build.transpose(x, order)
    flat = build.reshape(rows, (math.prod(x.shape[d] for d in dims), *(x.shape[d] for d in rest)))
    is_adjacent = dims == list(range(dims[0], dims[-1] + 1))
    before = dims[0] if is_adjacent else 0  # the dims of the values before those of the ids
    shape = tuple(x.shape[d] for d in rest)
    values = build.operand(values, x.dtype, (*shape[:before], *ids.shape, *shape[before:]))
    after = before + len(ids.shape)
    values = build.transpose(values,
                             [*range(before, after), *range(before), *range(after, len(values.shape))])
    is_sum = accumulate and number_of(x) == 0 and len(flat.shape) == 1
    made = (added_in_windows(build, flat.shape[0], ids,
                             values) if is_sum else None) or _scattered(build, flat, ids, values, accumulate)
    inverse = [order.index(d) for d in range(len(x.shape))]
    return build.transpose(build.reshape(made, rows.shape), inverse)


def _scattered(build: Builder, x: Value, ids: Value, updates: Value, accumulate: bool) -> Value:
    """Sets or adds updates along the first dim."""
    if accumulate:
        return build.plus(x, build.scatter_add(ids, updates, 0, x.shape[0]))
    return build.node("scatter", (x, ids, updates), x.dtype, x.shape, " dims=[0] set")


@rule("scatter_add")
def _scatter_add(build: Builder, out: Type, x: Value, dim: int, ids: Value, source: Value) -> Value:
    if not x.shape:
        return build.binary("add", x,
                            build.reshape(build.reduce("reduce_sum", source, range(len(source.shape))), ()))
    dim %= len(x.shape)
    for d, extent in enumerate(ids.shape):
        source = build.cut(source, d, 0, extent)
    added = build.scatter_add_along(ids, source, dim, x.shape[dim])
    return build.plus(x, build.padded(added, [0] * len(x.shape),
                                      [a - b for a, b in zip(x.shape, added.shape, strict=True)]))


@rule("scatter")
def _scatter(build: Builder, out: Type, x: Value, dim: int, ids: Value, source: Value | Scalar, *,
             reduce: str | None = None) -> Value:
    """Sets updates at their ids. A single update in a row is written as a comparison with its place, which
    can be cut like other operations."""
    if not x.shape:
        x, ids = build.reshape(x, (1,)), build.reshape(ids, (1,))
        source = build.reshape(source, (1,)) if isinstance(source, Value) else source
        return build.reshape(_scatter(build, Type(out.dtype, (1,)), x, 0, ids, source, reduce=reduce), ())
    dim %= len(x.shape)
    updates = build.operand(source, x.dtype, ids.shape) if not isinstance(source, Value) else source
    for d, extent in enumerate(ids.shape):
        updates = build.cut(updates, d, 0, extent)
    if reduce or replaced(ids.shape, dim, 0) != replaced(x.shape, dim, 0):
        return _combined(build, x, dim, ids, updates, {None: "set", "add": "add", "multiply": "mul"}[reduce])
    if ids.shape[dim] == 1:
        hit = build.binary("eq", build.iota(ids.dtype, x.shape, dim), build.broadcast_to(ids, x.shape))
        return build.select(hit, build.broadcast_to(updates, x.shape), x)
    if not isinstance(source, Value):
        hits = build.scatter_add_along(ids, build.operand(1, "i32", ids.shape), dim, x.shape[dim])
        return build.select(build.binary("gt", hits, 0), build.operand(source, x.dtype, x.shape), x)
    return _combined(build, x, dim, ids, updates, "set")


def _combined(build: Builder, x: Value, dim: int, ids: Value, updates: Value, how: str) -> Value:
    """Returns x with each update set, added, .. at its id along the dim, in the rows of the other dims."""
    strides = [math.prod(x.shape[d + 1:]) for d in range(len(x.shape))]
    places: Value = build.convert(build.from_front(ids, x.shape[dim]), "i64")
    places = build.binary("mul", places, strides[dim]) if strides[dim] != 1 else places
    for d in range(len(x.shape)):
        if d != dim:
            places = build.binary("add", places,
                                  build.binary("mul", build.iota("i64", ids.shape, d), strides[d]))
    size, flat = math.prod(x.shape), math.prod(ids.shape)
    operands = (build.reshape(x, (size,)), build.reshape(places, (flat,)),
                build.reshape(build.convert(updates, x.dtype), (flat,)))
    return build.reshape(build.node("scatter", operands, x.dtype, (size,), f" dims=[0] {how}"), x.shape)


@rule("scatter_reduce")
def _scatter_reduce(build: Builder, out: Type, x: Value, dim: int, ids: Value, source: Value, reduce: str, *,
                    include_self: bool = True) -> Value:
    if not x.shape:
        x, ids, source = (build.reshape(one, (1,)) for one in (x, ids, source))
        return build.reshape(_scatter_reduce(build, Type(out.dtype, (1,)), x, 0, ids, source, reduce,
                                             include_self=include_self), ())
    dim %= len(x.shape)
    for d, extent in enumerate(ids.shape):
        source = build.cut(source, d, 0, extent)
    counts: Value | None = None
    if reduce == "mean" or not include_self:
        dtype = x.dtype if is_float(x) else "i64"
        counts = _combined(build, Number(0, dtype, x.shape), dim, ids, build.operand(1, dtype, ids.shape),
                           "add")
    if not include_self:
        assert counts is not None
        x = build.select(build.binary("gt", counts, 0), build.full(x, _nothing(reduce, x.dtype)), x)
    how = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}[reduce]
    made = _combined(build, x, dim, ids, source, how)
    if reduce != "mean":
        return made
    assert counts is not None
    divisor = build.binary("add", counts, 1) if include_self else build.binary("max", counts, 1)
    whole: Value = RULES["div"](build, out, made, build.convert(divisor, x.dtype),
                                None if is_float(made) else "floor")
    return whole


def _nothing(reduce: str, dtype: str) -> Scalar:
    """Returns the neutral element of a combination."""
    if reduce in ("amax", "amin"):
        if dtype in FLOATS:
            return -math.inf if reduce == "amax" else math.inf
        bounds = torch.iinfo(TORCH[dtype])
        return bounds.min if reduce == "amax" else bounds.max
    return 1 if reduce == "prod" else 0


@rule("topk")
def _topk(build: Builder, out: Sequence[Type], x: Value, k: int, dim: int = -1, largest: bool = True,
          _: bool = True) -> list[Value]:
    dim %= len(x.shape)
    order = build.cut(build.argsort(x, dim, largest), dim, 0, k)
    return [build.take_along(x, order, dim), build.as_index(order)]


@rule("sort")
def _sort(build: Builder, out: Sequence[Type], x: Value, dim: int = -1, descending: bool = False,
          **options: Any) -> list[Value]:
    dim %= len(x.shape)
    order = build.argsort(x, dim, options.get("descending", descending))
    return [build.take_along(x, order, dim), build.as_index(order)]


@rule("kthvalue")
def _kth_value(build: Builder, out: Sequence[Type], x: Value, k: int, dim: int = -1,
               keepdim: bool = False) -> list[Value]:
    return _at_place(build, x, dim % len(x.shape), k - 1, keepdim)


@rule("median")
def _median(build: Builder, out: Sequence[Type], x: Value, dim: int | None = None,
            keepdim: bool = False) -> list[Value] | Value:
    """Returns the median, the lower of two; NaN if an element is NaN."""
    if dim is None:
        return _at_place(build, build.reshape(x, (math.prod(x.shape),)), 0, (math.prod(x.shape) - 1) // 2,
                         False, is_nan_last=True)[0]
    dim = dim % len(x.shape)
    return _at_place(build, x, dim, (x.shape[dim] - 1) // 2, keepdim, is_nan_last=True)


def _at_place(build: Builder, x: Value, dim: int, place: int, keepdim: bool,
              is_nan_last: bool = False) -> list[Value]:
    """Returns the element at a place of the ascending order, and its index."""
    order = build.argsort(x, dim, False)
    ids = build.cut(order, dim, place, place + 1)
    value = build.take_along(x, ids, dim)
    if is_nan_last and is_float(x):
        last = build.cut(order, dim, x.shape[dim] - 1, x.shape[dim])
        has_nan = build.binary("ne", *[build.take_along(x, last, dim)] * 2)
        ids = build.select(has_nan, last, ids)
        value = build.take_along(x, ids, dim)
    shape = replaced(x.shape, dim, 1) if keepdim else x.shape[:dim] + x.shape[dim + 1:]
    return [build.reshape(value, shape), build.reshape(build.as_index(ids), shape)]


@rule("argsort")
def _argsort(build: Builder, out: Type, x: Value, dim: int = -1, descending: bool = False) -> Value:
    return build.as_index(build.argsort(x, dim % len(x.shape), descending))


@rule("nanmedian")
def _median_of_numbers(build: Builder, out: Sequence[Type], x: Value, dim: int | None = None,
                       keepdim: bool = False) -> list[Value] | Value:
    """Returns the median without NaN, which is last in ascending order."""
    if dim is None:
        flat = build.reshape(x, (math.prod(x.shape),))
        return _median_of_numbers(build, [], flat, 0)[0]  # type: ignore[index]
    if not x.shape:
        return [x, build.operand(0, "i64", ())]
    dim %= len(x.shape)
    order = build.argsort(x, dim, False)
    is_number = build.binary("eq", x, x)
    place = build.reduced("reduce_sum", build.convert(is_number, "i64"), [dim], keep=True)
    place = build.binary("div", build.binary("max", build.binary("sub", place, 1), 0), 2)
    ids = build.take_along(order, place, dim)
    shape = replaced(x.shape, dim, 1) if keepdim else x.shape[:dim] + x.shape[dim + 1:]
    return [build.reshape(build.take_along(x, ids, dim), shape), build.reshape(build.as_index(ids), shape)]


def _extreme_so_far(op: str) -> Callable[..., list[Value]]:
    """Returns the rule of a cumulative extreme, with the index of the last element that equals it or is
    NaN."""

    def of(build: Builder, out: Sequence[Type], x: Value, dim: int) -> list[Value]:
        if not x.shape:
            return [x, build.operand(0, "i64", ())]
        dim %= len(x.shape)
        made = build.along(op, x, dim)
        is_new = build.binary("eq", x, made)
        is_new = build.binary("logical_or", is_new, build.binary("ne", x, x)) if is_float(x) else is_new
        places = build.iota("i64", x.shape, dim)
        return [made, build.as_index(build.along("cummax",
                                                 build.select(is_new, places, build.full(places, -1)), dim))]

    return of


RULES["cummax"], RULES["cummin"] = _extreme_so_far("cummax"), _extreme_so_far("cummin")


def _triangle_ids(is_there: Callable[..., Any]) -> Callable[..., Value]:
    def of(build: Builder, out: Type, rows: int, columns: int, offset: int = 0, **_: Any) -> Value:
        return build.convert(build.array(np.stack(np.nonzero(is_there(np.ones((rows, columns)), offset)))),
                             out.dtype)

    return of


RULES["tril_indices"], RULES["triu_indices"] = _triangle_ids(np.tril), _triangle_ids(np.triu)
