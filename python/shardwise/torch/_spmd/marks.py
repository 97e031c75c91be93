"""Marks tensors of the emulated device, and holds the global mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..._argument_types import check_calls
from ..._errors import InvalidArgument
from . import program as _program, tensors as _tensors
from .mesh import Entry, Mesh, Placement, global_runtime_device_count
from .tensors import LazyTensor

_is_spmd = False
_global_mesh: Mesh | None = None


def use_spmd(auto: bool = False) -> None:
    """Declares that tensors of xla_device() are on all devices, which mark_sharding() requires. auto: a step
    with parameters and without marks gets the marks that Program.search() finds fastest on TPU v4, over the
    present global mesh, or a mesh of (devices, 1) with the axes "data" and "model"."""
    global _is_spmd
    _is_spmd = True
    devices = global_runtime_device_count()
    whole = _global_mesh or Mesh(np.arange(devices), (devices, 1), ("data", "model"))
    _program.auto.mesh = whole if auto else None


def is_spmd() -> bool:
    """Returns True if use_spmd() has been called."""
    return _is_spmd


def set_global_mesh(mesh: Mesh) -> None:
    """Sets the mesh that enable_manual_sharding() and disable_manual_sharding() take by default."""
    global _global_mesh
    _global_mesh = mesh


def get_global_mesh() -> Mesh | None:
    """Returns the mesh of set_global_mesh(); None before its call."""
    return _global_mesh


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Entry]) -> Any:
    """Marks the cut of a tensor of the device, in place. The spec has for each dim an axis of the mesh (name
    or number), several in a tuple, or None. Returns t, which then is an XLAShardedTensor. A weight keeps its
    cut when a step replaces it. Raises InvalidArgument for a spec that does not fit the tensor or the mesh,
    and for a tensor with another mark."""
    placement = placement_of("mark_sharding", t, mesh, partition_spec)
    before = t._root.mark if not t._path else None  # type: ignore[attr-defined]
    if before is not None and before.text not in (placement.text, "{replicated}"):
        raise InvalidArgument(f"mark_sharding: found the mark {before.text}, needed none, "
                              f"or {placement.text}: clear_sharding() removes it")
    _tensors.mark(t, placement)  # type: ignore[arg-type]
    return t


def placement_of(operation: str, t: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Entry]) -> Placement:
    """Returns the placement of a tensor by a spec. Raises InvalidArgument."""
    if not isinstance(t, torch.Tensor):
        raise InvalidArgument(f"{operation}: found a {type(t).__name__}, needed a tensor of the device")
    if not isinstance(t, LazyTensor):
        raise InvalidArgument(f"{operation}: found a tensor on {t.device}, needed one of the device: "
                              "t.to(xla_device())")
    if not _is_spmd:
        raise InvalidArgument(f"{operation}: found one device, needed all of them: use_spmd()")
    if not isinstance(mesh, Mesh):
        raise InvalidArgument(f"{operation}: found a {type(mesh).__name__} for the mesh, needed a Mesh")
    if not isinstance(partition_spec, (tuple, list)):
        raise InvalidArgument(f"{operation}: found {partition_spec!r} for the partition spec, "
                              f"needed a tuple with one entry for each dim of {list(t.shape)}, "
                              f"such as {(None,) * t.dim()} for whole on each device")
    if mesh.size() != global_runtime_device_count():
        raise InvalidArgument(f"{operation}: found a mesh of {mesh.size()} devices, "
                              f"needed all {global_runtime_device_count()}")
    if len(partition_spec) != t.dim():
        raise InvalidArgument(f"{operation}: found {len(partition_spec)} entries of {tuple(partition_spec)}, "
                              f"needed one for each dim of {list(t.shape)}")
    return Placement(mesh, mesh.spec_of(partition_spec))


check_calls(__name__)
