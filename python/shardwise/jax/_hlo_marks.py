"""Annotations of StableHLO as marks: Shardy's name the axes of a mesh, GSPMD's count devices, and are read over a mesh."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir.dialects import sdy

from .. import _core
from .._errors import Error, InvalidArgument
from .._program_text import Refused
from .._sharding import Mesh


MOST_DEVICES = 1 << 16  #: of a mesh that nobody names


def _shardy_spec(sharding: Any, rank: int) -> str | None:
    """Of #sdy.sharding<@mesh, [{"data"}, {?}]>. Open dims are taken as they are now; one that is open everywhere and cut nowhere
    is no mark."""
    sharding = sdy.TensorShardingAttr(sharding)
    if len(list(sharding.unreduced_axes)):
        raise Refused(f"found {sharding}, needed a sharding without parts of a sum")
    dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
    entries = []
    for dim in dims:
        axes = [sdy.AxisRefAttr(axis) for axis in dim.axes]
        if any(axis.sub_axis_info is not None for axis in axes):
            raise Refused(f"found {sharding}, needed whole axes of the mesh")
        entries.append("+".join(str(axis.name) for axis in axes) or "-")
    if dims and set(entries) == {"-"} and not any(dim.is_closed for dim in dims) and not list(sharding.replicated_axes):
        return None
    return ",".join(entries + ["-"] * (rank - len(entries)))


def shardy_specs(attribute: Any, ranks: Sequence[int]) -> list[str | None]:
    """Of #sdy.sharding or #sdy.sharding_per_value, for tensors of these ranks."""
    if str(attribute).startswith("#sdy.sharding_per_value"):
        shardings = sdy.TensorShardingPerValueAttr(attribute).shardings
        return [_shardy_spec(sharding, rank) for sharding, rank in zip(shardings, ranks)]
    return [_shardy_spec(attribute, rank) for rank in ranks]


def shardy_meshes(module: Any) -> dict[str, tuple[tuple[str, int], ...]]:
    """The axes of each, with their sizes. Devices are in the order of the mesh, or it is left out."""
    found = {}
    for op in (one.operation for one in module.body.operations if one.operation.name == "sdy.mesh"):
        mesh = sdy.MeshAttr(op.attributes["mesh"])
        if not list(mesh.device_ids):
            found[str(op.attributes["sym_name"].value)] = tuple((str(axis.name), int(axis.size)) for axis in map(sdy.MeshAxisAttr, mesh.axes))
    return found


class GspmdMesh:
    """The mesh over which GSPMD's texts, "{devices=[4,1,2]<=[8] last_tile_dim_replicate}", are read. Without one that is given: the
    coarsest that all of them cut along whole axes, called axis_0, axis_1, .."""

    def __init__(self, mesh: Mesh | None, texts: Sequence[tuple[str, int]], devices: int) -> None:
        """texts: with the ranks of their tensors. devices: of the module, or 0."""
        self._texts, self._devices, self._mesh = texts, devices, mesh
        self._specs: dict[tuple[str, int], str | None] = {}

    def spec(self, text: str, rank: int) -> str | None:
        """Raises Refused; InvalidArgument if text and mesh do not fit each other."""
        if (text, rank) not in self._specs:
            self._specs[text, rank] = self._spec(text, rank)
        return self._specs[text, rank]

    def _spec(self, text: str, rank: int) -> str | None:
        if text.startswith("{{"):
            raise Refused(f"found the sharding {_short(text)} of a tuple, needed one of a tensor")
        self._mesh = self._mesh or self._coarsest()
        kind, sharding = _parsed(text, self._mesh, rank)
        if kind == "UNKNOWN":
            return None
        if sharding is None:
            raise Refused(f"found the sharding {_short(text)}, needed one that a mesh cuts")
        spec = _over(self._mesh, sharding, rank)
        if spec is None:
            raise Refused(f"found the sharding {_short(text)}, needed one of whole axes of {self._mesh}: mesh= says which")
        return spec

    def _coarsest(self) -> Mesh:
        """The axes are between the strides, in devices, with which the texts count."""
        count = max(self._devices, 1)
        for text, _ in self._texts:
            if found := re.search(r"devices=\[([\d,]+)\]", text):
                count = max(count, math.prod(int(n) for n in found[1].split(",")))
        if count > MOST_DEVICES:
            raise InvalidArgument(f"read StableHLO: found a sharding over {count} devices, needed at most {MOST_DEVICES}")
        line, strides = Mesh({"d": count}), {1: "", count: ""}
        for text, rank in self._texts:
            sharding = None if text.startswith("{{") else _parsed(text, line, rank)[1]
            for runs in _runs(line, sharding).values() if sharding is not None else ():
                for stride, size in runs:
                    strides.setdefault(stride, text)
                    strides.setdefault(stride * size, text)
        ordered = sorted(strides)
        for low, high in zip(ordered, ordered[1:]):
            if high % low:
                raise InvalidArgument(f"read StableHLO: found the shardings {_short(strides[low])} and {_short(strides[high])}, which cut "
                                      f"no mesh along its axes, needed mesh=")
        sizes = [high // low for low, high in zip(ordered, ordered[1:])][::-1] or [1]
        return Mesh({f"axis_{number}": size for number, size in enumerate(sizes)})


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + ".."


def _parsed(text: str, mesh: Mesh, rank: int) -> tuple[str, Any]:
    try:
        kind, sharding = _core.xla_sharding(text, mesh._mesh, rank)
    except Error as error:
        raise type(error)(f"read StableHLO: {error}") from None
    return kind, sharding


def _runs(mesh: Mesh, sharding: Any) -> dict[str, list[tuple[int, int]]]:
    """Of each axis of a sharding's own mesh: with which strides it counts the places of the other mesh, and how far, the last first."""
    found: dict[str, list[tuple[int, int]]] = {}
    size = sharding.mesh.size
    for axis, extent in sharding.mesh.axes:
        size //= extent
        at = [mesh._mesh.position_of(sharding.mesh.device_at(index * size)) or 0 for index in range(extent)]
        origin, runs, width = at[0], [], 1
        while width < extent:
            stride, count = at[width] - origin, 1
            while (count + 1) * width <= extent and at[count * width] - origin == count * stride:
                count += 1
            if stride < 1 or extent % (width * count):
                break
            runs.append((stride, count))
            width *= count
        found[axis] = runs
    return found


def _over(mesh: Mesh, sharding: Any, rank: int) -> str | None:
    """A sharding as a spec of whole axes of the mesh; None if there is none."""
    axes_of: dict[str, list[str]] = {}
    for own, runs in _runs(mesh, sharding).items():
        axes_of[own] = []
        for first, count in runs:
            stride, axes = mesh.size, []
            for axis, size in mesh.shape.items():
                stride //= size
                if size > 1 and first <= stride < first * count:
                    axes.append(axis)
            axes_of[own] = axes + axes_of[own]
    entries = []
    for entry in str(sharding.spec.padded(rank)).split(",") if rank else []:
        owns = [] if entry.strip() == "-" else entry.strip().split("+")
        if any(own not in axes_of for own in owns):
            return None  # a part of an axis
        entries.append("+".join(axis for own in owns for axis in axes_of[own]) or "-")
    spec = ",".join(entries)
    ours, shape = _core.Sharding(mesh._mesh, _core.PartitionSpec.parse(spec)), sharding.shard_shape([sharding.mesh.size] * rank)
    whole = [sharding.mesh.size] * rank
    same = ours.shard_shape(whole) == shape and all(ours.box(d, whole) == sharding.box(d, whole) for d in mesh.devices)
    return spec if same else None
