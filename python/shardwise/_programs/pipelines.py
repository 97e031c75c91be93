"""Checks the arguments of pipeline(), which is written for JAX and for PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._errors import InvalidArgument


def fail(found_and_needed: str) -> InvalidArgument:
    return InvalidArgument(f"pipeline: {found_and_needed}")


def sizes(params: Mapping[str, Any], x: Mapping[str, Any], stages: int,
          micro_batches: int) -> tuple[int, int]:
    """Returns the number of layers of a stage, and of rows of a micro-batch. params, x: the leaves by their
    names in messages. Raises InvalidArgument for sizes that do not go together."""
    for name, value in (("stages", stages), ("micro_batches", micro_batches)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise fail(f"found {name}={value!r}, needed an int")
    layers, rows = _common_extent("params", params), _common_extent("x", x)
    if stages < 1 or layers % stages:
        raise fail(f"found {stages} stages for {layers} layers, needed a number that divides them")
    if micro_batches < 1 or rows % micro_batches:
        raise fail(f"found {micro_batches} micro-batches of a batch of {rows}, "
                   "needed a number that divides it")
    if micro_batches < stages:
        raise fail(f"found {micro_batches} micro-batches for {stages} stages, needed as many or more")
    return layers // stages, rows // micro_batches


def need_same(needed: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raises InvalidArgument if the block does not give the types that it gets. Both are by the names of the
    leaves."""
    if list(found) != list(needed):
        raise fail(f"found a block that gives {', '.join(found) or 'no tensor'}, "
                   f"needed {', '.join(needed)} as it gets it")
    for name, type_ in needed.items():
        if found[name] != type_:
            raise fail(f"found a block that gives {name} as {found[name]}, needed {type_} as it gets it")


def _common_extent(what: str, leaves: Mapping[str, Any]) -> int:
    """Returns the extent of dim 0 of all leaves."""
    if not leaves:
        raise fail(f"found no tensor in {what}, needed one or more")
    for name, leaf in leaves.items():
        if not hasattr(leaf, "shape"):
            raise fail(f"found {name} of {type(leaf).__name__}, needed a tensor")
    extents = {name: int(leaf.shape[0]) if len(leaf.shape) else None for name, leaf in leaves.items()}
    first, extent = next(iter(extents.items()))
    for name, own in extents.items():
        if own is None or own != extent:
            shape = list(leaves[name].shape)
            raise fail(f"found {name} of shape {shape}, needed " + (
                "a dim to go along" if own is None else f"{extent} along dim 0, as {first} has"))
    assert extent is not None
    return extent
