"""Writes shard_map, the work of each device, as one program. Tiles have a dim for each axis of the mesh,
which that axis cuts. The body is a vmap over these dims, whose collectives are sums, slices and transposes of
them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core
import numpy as np

from ...._dtypes import NUMPY
from ...._programs.text import ProgramText, Refused, Value
from .rules import RULES, Call, rule


def _over_dims(op: str) -> Any:
    """Returns the rule of a collective that vmap has turned into a reduction over dims."""

    def reduced(call: Call, *operands: Value) -> list[Value]:
        dims = call.params["axes"]
        if any(not isinstance(dim, int) for dim in dims) or call.params.get("axis_index_groups") is not None:
            raise Refused("found one over an axis, or over parts of one, "
                          "needed one over whole axes in a shard_map")
        return [call.text.reduce(op, x, dims) if dims else x for x in operands]

    return reduced


RULES.update({"psum": _over_dims("reduce_sum"), "pmax": _over_dims("reduce_max"),
              "pmin": _over_dims("reduce_min")})


@rule("shard_map")
def _shard_map(call: Call, *operands: Value) -> Sequence[Value]:
    params, text = call.params, call.text
    mesh, jaxpr = params["mesh"], params["jaxpr"]
    manual = params.get("manual_axes", params.get("newly_manual_axes"))
    sizes = {axis: size for axis, size in zip(mesh.axis_names, mesh.axis_sizes) if axis in manual}
    in_axes = [_axes_by_dim(spec, len(x.shape)) for spec, x in zip(params["in_specs"], operands)]
    out_axes = [_axes_by_dim(spec, len(shape)) for spec, (_, shape) in zip(params["out_specs"], call.results)]
    tiles = [_split(text, x, axes, sizes) for x, axes in zip(operands, in_axes)]

    jaxpr = _with_plain_sums(jaxpr)

    def of_device(*parts: Any) -> Any:
        return tuple(jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(jaxpr, ()))(*parts))

    def of_all(are_kept: Sequence[frozenset[str]]) -> Any:
        """Returns the jaxpr of all devices. are_kept: the axes for which each result has a dim."""
        function: Any = of_device
        for axis, size in reversed(sizes.items()):
            function = jax.vmap(function, tuple(0 if axis in sum(axes, ()) else None for axes in in_axes),
                                tuple(0 if axis in kept else None for kept in are_kept), axis_name=axis,
                                axis_size=size)
        return jax.make_jaxpr(function)(*(np.empty(x.shape, NUMPY[x.dtype]) for x in tiles))

    kept = [frozenset(sum(axes, ())) for axes in out_axes]
    try:
        try:
            closed = of_all(kept)
        except ValueError:  # the body returns a result for each device, and claims that they are equal
            kept = [frozenset(sizes)] * len(kept)
            closed = of_all(kept)
    except NotImplementedError as error:
        raise Refused(str(error).splitlines()[0]) from None
    except AssertionError as error:
        raise Refused(f"found a collective that vmap does not know ({error}), needed one over one axis, "
                      "and a ppermute of all its devices") from None
    return [_joined(text, x, axes, sizes, own, shape)
            for x, axes, own, (_, shape) in zip(call.inlined(closed, tiles), out_axes, kept, call.results)]


def _with_plain_sums(jaxpr: Any) -> Any:
    """Replaces sums that claim to be equal on all devices, which vmap does not know, by plain sums."""

    def plain(value: Any) -> Any:
        if isinstance(value, jax.extend.core.ClosedJaxpr):
            return jax.extend.core.ClosedJaxpr(plain(value.jaxpr), value.consts)
        if isinstance(value, jax.extend.core.Jaxpr):
            equations = [equation_of(equation) for equation in value.eqns]
            return value.replace(eqns=equations)  # type: ignore[no-untyped-call]
        return type(value)(plain(item) for item in value) if type(value) in (list, tuple) else value

    def equation_of(equation: Any) -> Any:
        if equation.primitive.name == "psum_invariant":
            return equation.replace(primitive=jax.lax.psum_p,
                                    params={"axes": equation.params["axes"], "axis_index_groups": None})
        return equation.replace(params={name: plain(value) for name, value in equation.params.items()})

    return plain(jaxpr)


def _axes_by_dim(spec: Any, rank: int) -> list[tuple[str, ...]]:
    entries = [() if entry is None else entry if isinstance(entry, tuple) else (entry,) for entry in spec]
    return entries + [()] * (rank - len(entries))


def _split(text: ProgramText, x: Value, axes: Sequence[tuple[str, ...]], sizes: dict[str, int]) -> Value:
    """Returns x with a dim for each axis that cuts it, in the order of the mesh, before its own dims."""
    shape: list[int] = []
    places: dict[str, int] = {}
    for extent, names in zip(x.shape, axes):
        for axis in names:
            places[axis] = len(shape)
            shape.append(sizes[axis])
        shape.append(extent // math.prod(sizes[axis] for axis in names))
    if not places:
        return x
    first = [places[axis] for axis in sizes if axis in places]
    order = [*first, *(dim for dim in range(len(shape)) if dim not in first)]
    return _marked(text, text.transpose(text.reshape(x, shape), order),
                   [axis for axis in sizes if axis in places])


def _joined(text: ProgramText, x: Value, axes: Sequence[tuple[str, ...]], sizes: dict[str, int],
            kept: frozenset[str], shape: Sequence[int]) -> Value:
    """Reverses _split(). Takes the first tile of axes that cut nothing."""
    own = [axis for axis in sizes if axis in kept]
    used = sum(axes, ())
    if used:
        x = _marked(text, x, own)
    for dim in reversed([dim for dim, axis in enumerate(own) if axis not in used]):
        x = text.reshape(text.part(x, dim, 0, 1), (*x.shape[:dim], *x.shape[dim + 1:]))
    own = [axis for axis in own if axis in used]
    order: list[int] = []
    for dim, names in enumerate(axes):
        order += [own.index(axis) for axis in names] + [len(own) + dim]
    return text.reshape(text.transpose(x, order), shape)


def _marked(text: ProgramText, x: Value, axes: Sequence[str]) -> Value:
    return text.marked(x, ",".join([*axes, *["-"] * (len(x.shape) - len(axes))]))
