"""Writes primitives that look up or change elements by index. XLA's gather and scatter take windows at
places; a program looks up one dim, so several indices become one index in the merged dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...._dtypes import NUMPY
from ...._programs.text import FLOATS, Number, ProgramText, Refused, Shape, Value
from .rules import RULES, Call, Rule, rule


def _index(text: ProgramText, ids: Value) -> Value:
    return ids if ids.dtype in ("i32", "i64") else text.convert(ids, "i32")


def _starts(text: ProgramText, starts: Sequence[Value]) -> list[Value]:
    return [_index(text, start) for start in starts]


@rule("dynamic_slice")
def _dynamic_slice(call: Call, x: Value, *starts: Value) -> Value:
    return call.text.dynamic_slice(x, _starts(call.text, starts), call.shape)


@rule("dynamic_update_slice")
def _dynamic_update_slice(call: Call, x: Value, update: Value, *starts: Value) -> Value:
    return call.text.dynamic_update_slice(x, update, _starts(call.text, starts))


class _Places:
    """The places of the windows of a gather or scatter. Each place (an element of the dims `batch` of the
    ids) has a start in some dims of x, and a window has an extent in each dim. Dims of x that pair with dims
    of the ids (`paired`: dim of x to dim of the ids) also have an index, the place itself. Windows have no
    dim for `dropped` ones."""

    def __init__(self, text: ProgramText, x: Shape, ids: Value, dims: Sequence[int], sizes: Sequence[int],
                 dropped: Sequence[int], paired: dict[int, int], mode: Any) -> None:
        self.text, self.x, self.sizes = text, x, list(sizes)
        self.batch = ids.shape[:-1]
        self.paired = paired
        self.dtype = "i64" if ids.dtype == "i64" else "i32"
        self.inside: Value | None = None  #: whether each place is inside x; None if all are
        self.start: dict[int, Value] = {}  #: starts, of the shape of batch, by dim of x
        ids = _index(text, ids)
        for column, dim in enumerate(dims):
            start = text.reshape(text.part(ids, len(self.batch), column, column + 1), self.batch)
            self.start[dim] = self._bounded(start, x[dim] - self.sizes[dim], str(mode))
        for dim, extent in enumerate(x):
            if dim not in self.start and dim not in paired and (self.sizes[dim] != extent or dim in dropped):
                self.start[dim] = Number(0, self.dtype, self.batch)

    def _bounded(self, start: Value, last: int, mode: str) -> Value:
        """Returns the starts of windows, clamped to be inside x, and notes which were inside. If a gather
        promises that all are inside, a start that is not is clamped, as in XLA."""
        text = self.text
        bounded = text.elementwise("min", text.elementwise("max", start, text.full(start, 0)),
                                   text.full(start, last))
        if "FILL" in mode:
            inside = text.elementwise("eq", bounded, start)
            self.inside = inside if self.inside is None else text.elementwise("logical_and", self.inside,
                                                                              inside)
        return bounded

    @property
    def is_one(self) -> bool:
        return not self.batch and not self.paired

    def starts(self) -> list[Value]:
        """Returns the start of the single window in each dim."""
        return [self.start.get(dim, Number(0, self.dtype, ())) for dim in range(len(self.x))]

    def looked_up(self) -> list[int]:
        """Returns the dims of x that need an index; a window that covers a dim begins at 0."""
        dims = sorted(dim for dim in self.start if self.sizes[dim] != self.x[dim] or self.x[dim] == 1)
        return dims or (sorted(self.start)[:1] if not self.paired else [])

    def windows(self, dims: Sequence[int]) -> list[int]:
        """Returns the dims whose windows have several elements: each becomes a dim of the ids."""
        return [dim for dim in dims if self.sizes[dim] > 1]

    def ids(self, dim: int, windows: Sequence[int]) -> Value:
        """Returns the index in a dim of x, with the shape of batch and these windows."""
        text = self.text
        shape = (*self.batch, *(self.sizes[window] for window in windows))
        if dim in self.paired:
            return text.iota(self.dtype, shape, self.paired[dim])
        start = text.broadcast(self.start[dim], shape, range(len(self.batch)))
        if dim not in windows:
            return start
        return text.elementwise("add", start,
                                text.iota(self.dtype, shape, len(self.batch) + list(windows).index(dim)))

    def flat_ids(self, dims: Sequence[int], windows: Sequence[int]) -> Value:
        """Returns the row-major index in these dims merged."""
        text, flat = self.text, self.ids(dims[0], windows)
        for dim in dims[1:]:
            flat = text.elementwise("add", text.elementwise("mul", flat, text.full(flat, self.x[dim])),
                                    self.ids(dim, windows))
        return flat

    def along(self, dim: int) -> tuple[Value, list[int]]:
        """Returns the index in one dim, and the dims of the ids that it covers. The index has the shape of x,
        but along `dim` an element for each place of the paired dims."""
        text, windows = self.text, self.windows([dim])
        ids = self.ids(dim, windows)
        free = [number for number in range(len(ids.shape)) if number not in self.paired.values()]
        dims = sorted([*self.paired, dim])
        order: list[int] = []
        for d in dims:
            order += free if d == dim else [self.paired[d]]
        count = math.prod(ids.shape[number] for number in free)
        ids = text.reshape(text.transpose(ids, order), [count if d == dim else self.x[d] for d in dims])
        return text.broadcast(ids, tuple(count if d == dim else extent
                                         for d, extent in enumerate(self.x)), dims), free


# Gather. The dims of its result have names: ("batch", dim of the ids) or ("x", dim of x).


def _fill_value(dtype: str, value: Any) -> float | int:
    if value is not None:
        return float(value) if dtype in FLOATS else int(value)
    if dtype in FLOATS:
        return math.nan
    limits = np.iinfo(NUMPY[dtype]) if dtype != "bool" else None
    return 1 if limits is None else int(limits.min if dtype.startswith("i") else limits.max)


@rule("gather")
def _gather(call: Call, x: Value, ids: Value) -> Value:
    text, numbers = call.text, call.params["dimension_numbers"]
    sizes = call.params["slice_sizes"]
    paired = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims))
    places = _Places(text, x.shape, ids, numbers.start_index_map, sizes,
                     numbers.collapsed_slice_dims, paired, call.params["mode"])
    kept = [dim for dim in range(len(x.shape)) if dim not in numbers.collapsed_slice_dims
            and dim not in paired]
    at_batch = [dim for dim in range(len(call.shape)) if dim not in numbers.offset_dims]
    if places.is_one:
        elements = text.reshape(text.dynamic_slice(x, places.starts(), sizes), call.shape)
    else:
        looked_up, names = _looked_up(text, x, places)
        wanted: dict[int, Any] = {at: ("batch", number) for number, at in enumerate(at_batch)}
        wanted.update({at: ("x", dim) for at, dim in zip(numbers.offset_dims, kept)})
        # A window of one element has no dim yet.
        order = [names.index(wanted[at]) for at in range(len(call.shape)) if wanted[at] in names]
        elements = text.reshape(text.transpose(looked_up, order), call.shape)
    if places.inside is None:
        return elements
    inside = text.broadcast(places.inside, call.shape, at_batch)
    fill = text.full(elements, _fill_value(call.dtype, call.params["fill_value"]))
    return text.select(inside, elements, fill)


def _looked_up(text: ProgramText, x: Value, places: _Places) -> tuple[Value, list[Any]]:
    """Looks up elements, and returns them with the names of their dims."""
    dims = places.looked_up()
    batch = [("batch", number) for number in range(len(places.batch))]
    if places.paired and len(dims) == 1:
        (dim,) = dims
        ids, free = places.along(dim)
        elements = text.take_along(x, ids, dim)
        windows = places.windows([dim])
        along = [*places.batch, *(places.sizes[window] for window in windows)]
        shape, names = [], []
        for d, extent in enumerate(x.shape):
            if d == dim:
                shape += [along[number] for number in free]
                names += [([*batch, *(("x", window) for window in windows)])[number] for number in free]
            else:
                shape.append(extent)
                names.append(("batch", places.paired[d]) if d in places.paired else ("x", d))
        return text.reshape(elements, shape), names
    dims = sorted([*dims, *places.paired])
    windows = places.windows(dims)
    rest = [dim for dim in range(len(x.shape)) if dim not in dims]
    ids = places.flat_ids(dims, windows)
    before = [dim for dim in rest if dim < dims[0]] if len(dims) == 1 else []
    after = [dim for dim in rest if dim not in before]
    names = [*(("x", dim) for dim in before), *batch, *(("x", window) for window in windows),
             *(("x", dim) for dim in after)]
    if len(dims) == 1:
        return text.take(x, ids, dims[0]), names
    together = text.transpose(x, [*dims, *rest])
    rows = math.prod(x.shape[dim] for dim in dims)
    return text.take(text.reshape(together, (rows, *(x.shape[dim] for dim in rest))), ids, 0), names


# Scatter.


def _scatter(combination: str, call: Call, x: Value, ids: Value, updates: Value) -> Value:
    text, numbers = call.text, call.params["dimension_numbers"]
    paired = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims))
    kept = [dim for dim in range(len(x.shape)) if dim not in numbers.inserted_window_dims
            and dim not in paired]
    size_of = dict(zip(kept, (updates.shape[dim] for dim in numbers.update_window_dims)))
    sizes = [size_of.get(dim, 1) for dim in range(len(x.shape))]
    # XLA drops updates outside x, also in the gradient of a clipped scatter.
    mode = "FILL" if "PROMISE" in str(call.params["mode"]) else call.params["mode"]
    places = _Places(text, x.shape, ids, numbers.scatter_dims_to_operand_dims, sizes,
                     numbers.inserted_window_dims, paired, mode)
    at_batch = [dim for dim in range(len(updates.shape)) if dim not in numbers.update_window_dims]
    if places.is_one:
        return _at_one_place(text, combination, x, text.reshape(updates, sizes), places)
    is_sum = combination == "add" and x.dtype != "bool"
    if places.inside is not None and is_sum:  # adds zeros outside x
        updates = text.select(text.broadcast(places.inside, updates.shape, at_batch), updates,
                              text.full(updates, 0))
    names: list[Any] = [None] * len(updates.shape)
    for number, at in enumerate(at_batch):
        names[at] = ("batch", number)
    for at, dim in zip(numbers.update_window_dims, kept):
        names[at] = ("x", dim)
    return _changed(text, combination if not is_sum else "sum", x, updates, names, places)


def _at_one_place(text: ProgramText, combination: str, x: Value, update: Value, places: _Places) -> Value:
    starts = places.starts()
    if combination != "set":
        update = text.elementwise(combination, text.dynamic_slice(x, starts, update.shape), update)
    changed = text.dynamic_update_slice(x, update, starts)
    return changed if places.inside is None else text.select(text.broadcast(places.inside, x.shape, ()),
                                                             changed, x)


def _changed(text: ProgramText, combination: str, x: Value, updates: Value, names: list[Any],
             places: _Places) -> Value:
    """Returns x with the updates, whose dims have these names."""
    dims = places.looked_up()
    batch = [("batch", number) for number in range(len(places.batch))]

    def ordered(order: list[Any]) -> Value:
        """Returns the updates with their dims in this order; windows of one element have no dim."""
        present = [name for name in names if name in order]
        shape = [updates.shape[number] for number, name in enumerate(names) if name in order]
        return text.transpose(text.reshape(updates, shape), [present.index(name) for name in order])

    if combination == "sum" and places.paired and len(dims) == 1:
        (dim,) = dims
        ids, free = places.along(dim)
        along = [([*batch, *(("x", window) for window in places.windows([dim]))])[number] for number in free]
        order: list[Any] = []
        for d in range(len(x.shape)):
            order += along if d == dim else [("batch", places.paired[d]) if d in places.paired else ("x", d)]
        rows = text.reshape(ordered(order), ids.shape)
        return text.plus(x, text.scatter_add_along(ids, rows, dim, x.shape[dim]))
    dims = sorted([*dims, *places.paired])
    windows = places.windows(dims)
    rest = [dim for dim in range(len(x.shape)) if dim not in dims]
    before = [dim for dim in rest if dim < dims[0]] if len(dims) == 1 else []
    rows = ordered([*(("x", dim) for dim in before), *batch, *(("x", window) for window in windows),
                    *(("x", dim) for dim in rest if dim not in before)])
    ids = places.flat_ids(dims, windows)
    if len(dims) == 1:
        return _scattered(text, combination, x, ids, rows, dims[0], places)
    order = [*dims, *rest]
    extents = [x.shape[dim] for dim in order]
    flat = text.reshape(text.transpose(x, order), [math.prod(extents[: len(dims)]), *extents[len(dims):]])
    changed = text.reshape(_scattered(text, combination, flat, ids, rows, 0, places), extents)
    return text.transpose(changed, [order.index(dim) for dim in range(len(order))])


def _scattered(text: ProgramText, combination: str, x: Value, ids: Value, rows: Value, dim: int,
               places: _Places) -> Value:
    if combination == "sum":
        return text.plus(x, text.scatter_add(ids, rows, dim, x.shape[dim]))
    if places.inside is not None:
        inside = text.broadcast(places.inside, ids.shape, range(len(places.batch)))
        ids = text.select(inside, ids, text.full(ids, -1))
    return text.node("scatter", [x, ids, rows], x.dtype, x.shape, f" dims=[{dim}] {combination} drop")


def _scatter_rule(combination: str) -> Rule:
    def scatter(call: Call, x: Value, ids: Value, updates: Value) -> Value:
        body = call.params.get("update_jaxpr")
        if combination == "set" and body is not None and (body.eqns
                                                          or list(body.outvars) != list(body.invars[1:])):
            raise Refused("found a function that is applied to the old elements, as at[ids].apply, "
                          "needed one to set, add, multiply, or take the least or largest")
        return _scatter(combination, call, x, ids, updates)

    return scatter


RULES.update({f"scatter-{combination}": _scatter_rule(combination)
              for combination in ("add", "mul", "min", "max")})
RULES["scatter"] = _scatter_rule("set")
RULES["scatter-sub"] = lambda call, x, ids, updates: _scatter("add", call, x, ids,
                                                              call.text.elementwise("neg", updates))
