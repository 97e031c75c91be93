"""sdy.manual_computation, which says what each device does, as shard_map has it: a manual region of the program. A collective leaves it, as a
tensor with a dim for each axis of the region, is a sum, a slice or a transpose of these dims, and enters it again."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._program_text import Number, Refused, Shape, Value
from . import _hlo_bodies
from ._hlo_marks import shardy_specs
from ._hlo_writer import Op, rule, tensor_type


@dataclass(frozen=True)
class Region:
    """The axes of the mesh, with their sizes, and those that the region is of."""

    mesh: tuple[tuple[str, int], ...]
    axes: tuple[str, ...]

    @property
    def sizes(self) -> Shape:
        return tuple(size for axis, size in self.mesh if axis in self.axes)

    def groups(self, own: Sequence[str]) -> np.ndarray:
        """The devices that differ along these axes alone, a row each."""
        names = [axis for axis, _ in self.mesh]
        ids = np.arange(math.prod(size for _, size in self.mesh)).reshape([size for _, size in self.mesh])
        order = [names.index(axis) for axis in names if axis not in own] + [names.index(axis) for axis in own]
        return ids.transpose(order).reshape(-1, math.prod(ids.shape[names.index(axis)] for axis in own))


@rule("sdy.manual_computation")
def _manual_computation(op: Op, *operands: Value) -> Sequence[Value]:
    """On meshes of the sizes that the module has it for."""
    (block,), attributes, text, writer = op.operation.regions[0].blocks, op.operation.attributes, op.text, op.writer
    inside = [tensor_type(argument.type) for argument in block.arguments]
    given = _whole_specs(attributes["in_shardings"], [len(shape) for _, shape in inside])
    wanted = _whole_specs(attributes["out_shardings"], [len(shape) for _, shape in op.results])
    used = set(re.findall(r"[^,+\-?]+", ",".join([*given, *wanted])))
    axes = re.findall(r'"([^"]+)"', str(attributes["manual_axes"]))
    others = sorted(used - set(axes))
    if others:
        raise Refused(f"found the axes {', '.join(others)} beside those of the region, needed a region of all axes")
    mesh = re.search(r"<@([\w.]+)", f"{attributes['in_shardings']}{attributes['out_shardings']}")
    known = writer.meshes.get(mesh[1], ()) if mesh else ()
    parts = [text.node("enter_manual", [x], dtype, shape, f' "{spec}" dims=[1]') for x, spec, (dtype, shape) in zip(operands, given, inside)]
    outside, writer.region = writer.region, Region(known, tuple(axis for axis, _ in known if axis in axes))
    try:
        made = writer.block(block, dict(zip(block.arguments, parts)), op.path)
    finally:
        writer.region = outside
    return [text.node("leave_manual", [x], dtype, shape, f' "{spec}" dims=[1]') for x, spec, (dtype, shape) in zip(made, wanted, op.results)]


def _whole_specs(attribute: Any, ranks: Sequence[int]) -> list[str]:
    """What is open is whole on each device."""
    return [",".join(["-"] * rank) if spec is None else spec for spec, rank in zip(shardy_specs(attribute, ranks), ranks)]


# ---- Collectives.


def _region(op: Op) -> Region:
    region: Region | None = op.writer.region
    if region is None or not region.axes:
        raise Refused("found one outside a sdy.manual_computation over a mesh that the module names, needed one inside")
    if op.text.body:
        raise Refused("found one in a loop or branch of a sdy.manual_computation, needed one outside them; capture() takes the step itself")
    return region


def _along(op: Op) -> list[int]:
    """The places, among the axes of the region, of those that the groups of the collective are along."""
    region = _region(op)
    groups = np.asarray(op.operation.attributes["replica_groups"])
    for count in range(len(region.axes) + 1):
        for own in itertools.permutations(region.axes, count):
            if np.array_equal(sorted(region.groups(own).tolist()), sorted(groups.tolist())):
                return [region.axes.index(axis) for axis in own]
    raise Refused(f"found groups of devices, {str(groups.tolist())[:60]}, needed those along axes of the region")


def _spec(region: Region, rank: int) -> str:
    return ",".join([*region.axes, *["-"] * rank])


def _outside(op: Op, x: Value) -> Value:
    """With a dim for each axis."""
    region = _region(op)
    tile = op.text.reshape(x, (*(1 for _ in region.axes), *x.shape))
    return op.text.node("leave_manual", [tile], x.dtype, (*region.sizes, *x.shape), f' "{_spec(region, len(x.shape))}" dims=[1]')


def _inside(op: Op, x: Value) -> Value:
    """The other way."""
    region = _region(op)
    shape = x.shape[len(region.axes):]
    tile = op.text.node("enter_manual", [x], x.dtype, (*(1 for _ in region.axes), *shape), f' "{_spec(region, len(shape))}" dims=[1]')
    return op.text.reshape(tile, shape)


_REDUCTIONS = {"add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min"}


def _reduced(op: Op, x: Value, along: Sequence[int]) -> Value:
    """Over the devices along these axes, without their dims."""
    kind = _hlo_bodies.combination(op.operation.regions[0])
    kind = {"or": "max", "and": "min"}.get(kind, kind) if x.dtype == "bool" else kind
    if kind not in _REDUCTIONS:
        raise Refused(f"found the combination {kind}, needed a sum, a product, a maximum or a minimum")
    return op.text.reduce(_REDUCTIONS[kind], _outside(op, x), along)


def _on_all(op: Op, x: Value, along: Sequence[int]) -> Value:
    """Of what has no dims of these axes: the same on each device along them."""
    count = len(_region(op).axes)
    kept = [axis for axis in range(count) if axis not in along]
    shape = (*_region(op).sizes, *x.shape[len(kept):])
    return _inside(op, op.text.broadcast(x, shape, [*kept, *range(count, len(shape))]))


@rule("stablehlo.all_reduce")
def _all_reduce(op: Op, *operands: Value) -> list[Value]:
    along = _along(op)
    return [_on_all(op, _reduced(op, x, along), along) for x in operands]


@rule("stablehlo.all_gather")
def _all_gather(op: Op, *operands: Value) -> list[Value]:
    along, dim = _along(op), op.integer("all_gather_dim")
    return [_gathered(op, x, along, dim) for x in operands]


def _gathered(op: Op, x: Value, along: Sequence[int], dim: int) -> Value:
    count = len(_region(op).axes)
    kept = [axis for axis in range(count) if axis not in along]
    order = [*kept, *range(count, count + dim), *along, *range(count + dim, count + len(x.shape))]
    wide = op.text.transpose(_outside(op, x), order)
    size = x.shape[dim] * math.prod(_region(op).sizes[axis] for axis in along)
    whole = op.text.reshape(wide, (*(_region(op).sizes[axis] for axis in kept), *x.shape[:dim], size, *x.shape[dim + 1:]))
    spec = ",".join([*(_region(op).axes[axis] for axis in kept), *["-"] * len(x.shape)])
    return _on_all(op, op.text.marked(whole, spec), along)


def _cut(op: Op, x: Value, along: Sequence[int], dim: int, axes: Sequence[int]) -> Value:
    """A dim in as many parts as there are devices along these axes, and each device's part. x has dims of the axes `axes` first."""
    sizes = _region(op).sizes
    place = len(axes) + dim
    parts = [sizes[axis] for axis in along]
    wide = op.text.reshape(x, (*x.shape[:place], *parts, x.shape[place] // math.prod(parts), *x.shape[place + 1:]))
    of_axis = {axis: number for number, axis in enumerate(axes)} | {axis: place + number for number, axis in enumerate(along)}
    first = [of_axis[axis] for axis in range(len(sizes))]
    return op.text.transpose(wide, [*first, *(d for d in range(len(wide.shape)) if d not in first)])


@rule("stablehlo.reduce_scatter")
def _reduce_scatter(op: Op, *operands: Value) -> list[Value]:
    along, dim = _along(op), op.integer("scatter_dimension")
    kept = [axis for axis in range(len(_region(op).axes)) if axis not in along]
    return [_inside(op, _cut(op, _reduced(op, x, along), along, dim, kept)) for x in operands]


@rule("stablehlo.all_to_all")
def _all_to_all(op: Op, *operands: Value) -> list[Value]:
    """Where a device was goes to the dim that is put together, and what the other dim is cut in says to which it goes."""
    along, split, joined = _along(op), op.integer("split_dimension"), op.integer("concat_dimension")
    count, text, sizes = len(_region(op).axes), op.text, _region(op).sizes
    kept = [axis for axis in range(count) if axis not in along]
    made: list[Value] = []
    for x in operands:
        parts = [sizes[axis] for axis in along]
        wide = text.reshape(_outside(op, x), (*sizes, *x.shape[:split], *parts, x.shape[split] // math.prod(parts), *x.shape[split + 1:]))
        after = {axis: axis for axis in kept} | {axis: count + split + number for number, axis in enumerate(along)}
        own = [count + dim + (len(along) if dim >= split else 0) for dim in range(len(x.shape))]
        order = [*(after[axis] for axis in range(count)), *own[:joined], *along, *own[joined:]]
        made.append(_inside(op, text.reshape(text.transpose(wide, order), (*sizes, *op.results[len(made)][1]))))
    return made


@rule("stablehlo.collective_permute")
def _collective_permute(op: Op, x: Value) -> Value:
    """Along one axis: runs of devices that take from neighbours. What takes from none is 0."""
    region, text = _region(op), op.text
    pairs = {int(target): int(source) for source, target in np.asarray(op.operation.attributes["source_target_pairs"])}
    for place, axis in enumerate(region.axes):
        rows = region.groups([axis])
        known = [[int(np.flatnonzero(row == pairs[device])[0]) if pairs.get(device) in row else None if device not in pairs else -1 for device in row]
                 for row in rows]
        if all(one == known[0] and -1 not in one for one in known):
            wide = _outside(op, x)
            nothing = Number(0, x.dtype, (*wide.shape[:place], 1, *wide.shape[place + 1:]))
            parts: list[Value] = []
            sources = known[0]
            for at, source in enumerate(sources):
                if at and source is not None and sources[at - 1] == source - 1:
                    continue  # it is in the run
                end = at
                while source is not None and end + 1 < len(sources) and sources[end + 1] == source + end + 1 - at:
                    end += 1
                parts.append(nothing if source is None else text.part(wide, place, source, source + end + 1 - at))
            return _inside(op, text.concatenate(parts, place))
    raise Refused("found pairs of devices that are along no axis of the region, needed those along one")


@rule("stablehlo.partition_id")
def _partition_id(op: Op) -> Value:
    """The number of a device in the order of the mesh."""
    region, text = _region(op), op.text
    ids: Value | None = None
    stride = math.prod(size for _, size in region.mesh)
    for axis, size in region.mesh:
        stride //= size
        if axis in region.axes:
            along = text.iota(op.dtype, region.sizes, region.axes.index(axis))
            one = text.elementwise("mul", along, text.full(along, stride))
            ids = one if ids is None else text.elementwise("add", ids, one)
    assert ids is not None
    return _inside(op, ids)

