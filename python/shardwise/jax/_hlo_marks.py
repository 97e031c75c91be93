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


class GspmdMesh:
    """The mesh over which GSPMD's texts, "{devices=[4,1,2]<=[8] last_tile_dim_replicate}", are read. Without one that is given: the
    coarsest that all of them cut along whole axes, called axis_0, axis_1, .."""

    def __init__(self, mesh: Mesh | None, texts: Sequence[tuple[str, int]], devices: int) -> None:
        """texts: with the ranks of their tensors. devices: of the module, or 0."""
        self._texts = texts
        self._devices = devices
        self._mesh = mesh

    def spec(self, text: str, rank: int) -> str | None:
        """Raises Refused; InvalidArgument if texts and mesh do not fit each other."""
        if text.startswith("{{"):
            raise Refused(f"found the sharding {_short(text)} of a tuple, needed one of a tensor")
        if self._mesh is None:
            self._mesh = self._coarsest()
        kind, spec = _parsed(text, self._mesh, rank)
        if kind == "UNKNOWN":
            return None
        if spec is None:
            raise Refused(f"found the sharding {_short(text)}, needed one that a mesh cuts")
        if ":" in spec:
            raise Refused(f"found the sharding {_short(text)}, which is {spec} on {self._mesh}, needed whole axes of the mesh")
        return spec

    def _coarsest(self) -> Mesh:
        count = self._devices
        for text, _ in self._texts:
            if found := re.search(r"devices=\[([\d,]+)\]", text):
                count = max(count, math.prod(int(n) for n in found[1].split(",")))
        line, bounds = Mesh({"d": max(count, 1)}), {1: "", max(count, 1): ""}
        for text, rank in self._texts:
            if text.startswith("{{"):
                continue
            for before, size in re.findall(r"d:\((\d+)\)(\d+)", _parsed(text, line, rank)[1] or ""):
                bounds.setdefault(int(before), text)
                bounds.setdefault(int(before) * int(size), text)
        ordered = sorted(bounds)
        for low, high in zip(ordered, ordered[1:]):
            if high % low:
                raise InvalidArgument(f"read StableHLO: found the shardings {_short(bounds[low])} and {_short(bounds[high])}, which "
                                      f"cut no one mesh along its axes, needed mesh=")
        sizes = [high // low for low, high in zip(ordered, ordered[1:])] or [1]
        return Mesh({f"axis_{number}": size for number, size in enumerate(sizes)})


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + ".."


def _parsed(text: str, mesh: Mesh, rank: int) -> tuple[str, str | None]:
    try:
        kind, spec = _core.xla_spec(text, mesh._mesh, rank)
    except Error as error:
        raise type(error)(f"read StableHLO: {error}") from None
    return kind, spec
