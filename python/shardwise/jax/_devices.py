"""Gives JAX's devices and shardings to the core, which divides the writes among processes by device numbers
alone."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from .._errors import Error
from .._sharding import Mesh, PartitionSpec


@dataclass(frozen=True)
class Numbering:
    """A numbering of devices: process p has the numbers [starts[p], starts[p + 1])."""

    starts: tuple[int, ...]
    numbers: dict[Any, int]

    @staticmethod
    def of_job() -> Numbering:
        """Returns JAX's ids if each process has a separate range of them; else (on hosts of a TPU pod) new
        numbers, process by process."""
        return _numbering(jax.process_count(), tuple(jax.devices()))

    def even(self) -> Numbering:
        """Returns a numbering of the same devices that gives all processes ranges of one length, as groups of
        the core need."""
        by_process: dict[int, list[Any]] = {}
        for device in self.numbers:  # ascending
            by_process.setdefault(device.process_index, []).append(device)
        each = max(map(len, by_process.values()))
        return Numbering(tuple(each * process for process in range(len(self.starts))),
                         {device: each * process + at for process, devices in by_process.items()
                          for at, device in enumerate(devices)})

    def renumbered(self, other: Numbering, mesh: str) -> str:
        """Returns a mesh of this numbering as text in another numbering."""
        parsed = Mesh(mesh)
        numbers = {number: other.numbers[device] for device, number in self.numbers.items()}
        return str(Mesh(list(parsed.shape.items()), [numbers[device] for device in parsed.devices]))


@functools.lru_cache(maxsize=4)
def _numbering(processes: int, devices: tuple[Any, ...]) -> Numbering:
    by_process: list[list[Any]] = [[] for _ in range(processes)]
    for device in sorted(devices, key=lambda d: d.id):
        by_process[device.process_index].append(device)
    ordered = [device for of_one in by_process for device in of_one]
    ids = [device.id for device in ordered]
    if ids != sorted(ids):
        ids = list(range(len(ordered)))
    numbers = dict(zip(ordered, ids))
    starts, end = [0], 0
    for of_one in by_process:
        end = max([end, *(numbers[device] + 1 for device in of_one)])
        starts.append(end)
    return Numbering(tuple(starts), numbers)


@functools.lru_cache(maxsize=256)
def _mesh_text(mesh: Any, processes: int) -> str:
    """Returns a mesh as text for the core; empty for odd axis names, or for devices of a backend other than
    the job's."""
    try:
        if processes == 1:
            return str(Mesh.from_jax(mesh))
        numbers = Numbering.of_job().numbers
        return str(Mesh([(name, mesh.shape[name]) for name in mesh.axis_names],
                        [numbers[device] for device in mesh.devices.flat]))
    except (Error, KeyError, TypeError, ValueError):
        return ""


def described(sharding: Any, shape: tuple[int, ...]) -> tuple[str, str] | None:
    """Returns mesh and spec as text, if the core's formula gives every device the same box as JAX does."""
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, jax.sharding.Mesh):
        return None
    if 0 in shape or sharding.mesh.empty or getattr(sharding.spec, "unreduced", None):
        return None
    entries = [*sharding.spec, *[None] * (len(shape) - len(sharding.spec))]
    for extent, entry in zip(shape, entries):
        axes = (entry,) if isinstance(entry, str) else () if entry is None else entry
        if not isinstance(axes, tuple) or extent % math.prod(sharding.mesh.shape[axis] for axis in axes):
            return None
    mesh = _mesh_text(sharding.mesh, jax.process_count())
    return (mesh, str(PartitionSpec(*entries))) if mesh else None
