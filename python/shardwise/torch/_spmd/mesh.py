"""Defines meshes and specs of PyTorch/XLA SPMD, their names in XLA, and the single mesh of a program with
marks over several meshes."""

from __future__ import annotations

import functools
import math
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from ..._argument_types import check_calls
from ..._errors import InvalidArgument
from ..._sharding import Device, PartitionSpec, Sharding
from ..._sharding import HybridMesh as CoreHybridMesh
from ..._sharding import Mesh as CoreMesh

#: The axes that cut a dim: None, an axis by name or number, or several axes.
Entry = None | int | str | tuple[int | str, ...]
Spec = tuple[tuple[int, ...], ...]  #: the numbers of axes for each dim

_AXIS = re.compile(r"[A-Za-z_]\w*")


def devices_of(text: str) -> int:
    """Returns the number of devices in CPU_NUM_DEVICES. Raises InvalidArgument."""
    if not text.isdigit() or int(text) < 1:
        raise InvalidArgument(f"CPU_NUM_DEVICES: found {text!r}, needed a number of devices, such as 8")
    return int(text)


_devices = devices_of(os.environ.get("CPU_NUM_DEVICES", "8"))


def global_runtime_device_count() -> int:
    """Returns the number of emulated devices: that of set_device_count(), else CPU_NUM_DEVICES of the
    environment, else 8."""
    return _devices


def set_device_count(devices: int) -> None:
    """Sets the number of emulated devices. Meshes of another size are then refused. Raises InvalidArgument
    for a number below 1."""
    global _devices
    if devices < 1:
        raise InvalidArgument(f"set_device_count: found {devices}, needed 1 or more")
    _devices = devices


class ShardingType(IntEnum):
    """The types of a sharding, with torch_xla's numbers."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6


class Mesh:
    """All devices as a grid: Mesh(np.arange(8), (4, 2), ("data", "model")). device_ids fill the grid row by
    row; an axis without a name is called by its number. Raises InvalidArgument if device_ids does not have
    each device once."""

    def __init__(self, device_ids: np.ndarray | Sequence[int], mesh_shape: Sequence[int],
                 axis_names: Sequence[str] | None = None) -> None:
        self.device_ids = np.asarray(device_ids).reshape(-1)
        self.mesh_shape = tuple(int(size) for size in mesh_shape)
        self.axis_names = None if axis_names is None else tuple(axis_names)
        if self.axis_names is not None and not len(self.axis_names) == len(set(self.axis_names)) == len(
                self.mesh_shape):
            raise InvalidArgument(f"mesh: found the axis names {self.axis_names}, "
                                  f"needed {len(self.mesh_shape)} different ones")
        if min(self.mesh_shape, default=1) < 1 or math.prod(self.mesh_shape) != len(self.device_ids):
            raise InvalidArgument(f"mesh: found {len(self.device_ids)} devices for the shape "
                                  f"{self.mesh_shape}, needed its product")
        if sorted(self.device_ids.tolist()) != list(range(len(self.device_ids))):
            raise InvalidArgument(f"mesh: found the devices {self.device_ids.tolist()}, "
                                  f"needed 0 to {len(self.device_ids) - 1}, once each")

    def size(self) -> int:
        """Returns the number of devices."""
        return len(self.device_ids)

    def shape(self) -> OrderedDict[str | int, int]:
        """Returns the size of each axis by its name or number."""
        return OrderedDict(zip(self.axis_names or range(len(self.mesh_shape)), self.mesh_shape))

    def get_logical_mesh(self) -> np.ndarray:
        """Returns the device ids as an array of the mesh's shape."""
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """Returns the number of an axis; None if no axis has that name."""
        return self.axis_names.index(name) if self.axis_names and name in self.axis_names else None

    def get_op_sharding(self, partition_spec: Sequence[Entry]) -> str:
        """Returns the sharding as XLA writes it: "{devices=[4,1,2]0,1,2,3,4,5,6,7
        last_tile_dim_replicate}"."""
        return Placement(self, self.spec_of(partition_spec)).text

    def spec_of(self, partition_spec: Sequence[Entry]) -> Spec:
        """Returns a spec with the numbers of axes. Raises InvalidArgument for an unknown axis, and for an
        axis that is there twice."""
        spec = tuple(self._axes_of(entry) for entry in partition_spec)
        flat = [axis for axes in spec for axis in axes]
        if len(set(flat)) != len(flat):
            raise InvalidArgument(f"partition spec {tuple(partition_spec)}: found an axis twice, "
                                  "needed each at most once")
        return spec

    def _axes_of(self, entry: Any) -> tuple[int, ...]:
        if entry is None:
            return ()
        axes = []
        for axis in entry if isinstance(entry, tuple) else (entry,):
            number = (axis if type(axis) is int else self.get_axis_name_idx(axis) if isinstance(axis, str)
                      else None)
            if number is None or not 0 <= number < len(self.mesh_shape):
                raise InvalidArgument(f"partition spec: found {axis!r}, "
                                      f"needed None or an axis of {dict(self.shape())}")
            axes.append(number)
        return tuple(axes)

    def _key(self) -> tuple[Any, ...]:
        return self.device_ids.tobytes(), self.mesh_shape, self.axis_names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.device_ids.tolist()}, {self.mesh_shape}, {self.axis_names})"


@dataclass(frozen=True)
class Placement:
    """The cut of a tensor: a mesh, and the axes that cut each dim."""

    mesh: Mesh
    spec: Spec

    @functools.cached_property
    def tiles(self) -> tuple[int, ...]:
        """Returns the number of parts of each dim."""
        return tuple(math.prod(self.mesh.mesh_shape[axis] for axis in axes) for axes in self.spec)

    @property
    def type(self) -> ShardingType:
        """Returns the type in XLA, where axes of one device cut nothing."""
        parts = math.prod(self.tiles)
        if parts == 1:
            return ShardingType.REPLICATED
        return ShardingType.TILED if parts == self.mesh.size() else ShardingType.PARTIAL

    @functools.cached_property
    def text(self) -> str:
        """Returns the full text of XLA, with devices that have the same part ordered by id."""
        if self.type is ShardingType.REPLICATED:
            return "{replicated}"
        groups = self.groups
        dims = [*self.tiles, groups.shape[1]] if groups.shape[1] > 1 else self.tiles
        last = " last_tile_dim_replicate" if groups.shape[1] > 1 else ""
        return f"{{devices=[{','.join(map(str, dims))}]{','.join(map(str, groups.reshape(-1)))}{last}}}"

    @functools.cached_property
    def groups(self) -> np.ndarray:
        """Returns the ids of the devices that have each part, in a row for each part."""
        used = [axis for axes in self.spec for axis in axes]
        order = used + [axis for axis in range(len(self.mesh.mesh_shape)) if axis not in used]
        return np.sort(self.mesh.get_logical_mesh().transpose(order).reshape(math.prod(self.tiles), -1),
                       axis=1)

    @property
    def sharding(self) -> Sharding:
        """Returns the cut as a shardwise.Sharding."""
        mesh = ProgramMesh((self.mesh,))
        return Sharding(mesh.core, ",".join(mesh.entries_of(self)))


def tiles_of_text(text: str, devices: int) -> tuple[list[int], list[list[int]]]:
    """Returns the number of parts of each dim, and the devices of each part, for the text of a sharding in
    XLA. Raises InvalidArgument for another text."""
    if text == "{replicated}":
        return [], [list(range(devices))]
    match = re.fullmatch(r"\{devices=\[([\d,]+)\]([\d,]+)( last_tile_dim_replicate)?\}", text)
    if not match:
        raise InvalidArgument(f"visualize_sharding: found {text!r}, "
                              f"needed a sharding such as {{devices=[4,2]0,1,2,3,4,5,6,7}}")
    dims, ids = ([int(number) for number in part.split(",")] for part in match.groups()[:2])
    each = dims.pop() if match[3] else 1
    return dims, [ids[begin:begin + each] for begin in range(0, len(ids), each)]


class HybridMesh(Mesh):
    """A mesh over several slices: each axis has ici_mesh_shape devices inside a slice times dcn_mesh_shape
    slices. An emulated slice is a run of device ids. Raises InvalidArgument if the shapes do not take all
    devices."""

    def __init__(self, *, ici_mesh_shape: Sequence[int], dcn_mesh_shape: Sequence[int] | None = None,
                 axis_names: Sequence[str] | None = None) -> None:
        self.ici_mesh_shape = tuple(ici_mesh_shape)
        self.dcn_mesh_shape = (1,) * len(self.ici_mesh_shape) if dcn_mesh_shape is None else tuple(
            dcn_mesh_shape)
        in_slice = math.prod(self.ici_mesh_shape)
        places = [Device(number, slice_index=number // in_slice)
                  for number in range(global_runtime_device_count())]
        devices = CoreHybridMesh(self.ici_mesh_shape, self.dcn_mesh_shape, devices=places).devices
        super().__init__(devices, [inner * outer for inner, outer in zip(self.ici_mesh_shape,
                                                                         self.dcn_mesh_shape)], axis_names)


class ProgramMesh:
    """The mesh of a program with marks over several meshes of the same devices. Its axes are parts of their
    axes: marks over (4, 2) and over (2, 4) become marks over (2, 2, 2). Raises InvalidArgument if no such
    mesh exists."""

    def __init__(self, meshes: Iterable[Mesh]) -> None:
        known = list(dict.fromkeys(meshes))
        self._first = known[0]
        for mesh in known:
            if not np.array_equal(mesh.device_ids, self._first.device_ids):
                raise InvalidArgument(f"mark_sharding: found marks over {self._first} and {mesh} in one "
                                      "step, needed the same devices in the same order")
        # The number of parts after each axis.
        self._ends = sorted({end for mesh in known for end in _ends(mesh)} - {1})
        sizes = [end // begin for begin, end in zip([1, *self._ends], self._ends)]
        if any(end % begin for begin, end in zip([1, *self._ends], self._ends)):
            raise InvalidArgument(f"mark_sharding: found marks over {' and '.join(map(repr, known))} in one "
                                  "step, needed meshes whose axes divide each other")
        self.names = [f"axis{number}" for number in range(len(sizes))]
        if len(known) == 1:
            self._name_after(self._first)
        self.core = CoreMesh(list(zip(self.names, sizes)) or [("axis0", 1)], self._first.device_ids.tolist())
        self.mesh = Mesh(self._first.device_ids, tuple(self.core.shape.values()), tuple(self.core.shape))

    def _name_after(self, mesh: Mesh) -> None:
        own = [name for name, size in zip(mesh.axis_names or (), mesh.mesh_shape) if size > 1]
        if own and all(_AXIS.fullmatch(name) for name in own):
            self.names = own

    def entries_of(self, placement: Placement) -> list[str]:
        """Returns an entry for each dim, over the axes of this mesh: ["data", "-"]."""
        ends = _ends(placement.mesh)
        entries = []
        for axes in placement.spec:
            names: list[str] = []
            for axis in axes:
                begin = ends[axis - 1] if axis else 1
                names += [name for name, end in zip(self.names, self._ends) if begin < end <= ends[axis]]
            entries.append("+".join(names) or "-")
        return entries

    def placement(self, spec: PartitionSpec, rank: int) -> Placement:
        """Returns the placement of the first `rank` dims of a spec over the axes of this mesh."""
        names = [() if entry is None else (entry,) if isinstance(entry, str) else entry
                 for entry in spec.entries[:rank]]
        return Placement(self.mesh, self.mesh.spec_of([tuple(entry) for entry in names]))


def _ends(mesh: Mesh) -> list[int]:
    """Returns, for each axis, the number of parts into which it and the axes before it cut all devices."""
    ends, parts = [], 1
    for size in mesh.mesh_shape:
        parts *= size
        ends.append(parts)
    return ends

check_calls(__name__)
