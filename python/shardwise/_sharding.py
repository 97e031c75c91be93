"""Defines meshes, partition specs and shardings, which give each device its box of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _core
from ._errors import InvalidArgument

Entry = None | str | Sequence[str]


class Mesh:
    """A grid of devices with named axes.

    Mesh({"data": 4, "model": 2}) and Mesh("data=4,model=2") are equal. Mesh({"data": 2, "model": 2},
    [3, 1, 0, 2]) has its devices in another order, given row by row.
    """

    def __init__(self, axes: str | Mapping[str, int] | Sequence[tuple[str, int]],
                 devices: Sequence[int] | None = None) -> None:
        if isinstance(axes, str):
            self._mesh = _core.Mesh.parse(axes)
        else:
            pairs = axes.items() if isinstance(axes, Mapping) else axes
            self._mesh = _core.Mesh.of([(str(n), int(s)) for n, s in pairs],
                                       None if devices is None else list(devices))

    @staticmethod
    def from_jax(mesh: Any) -> Mesh:
        """Converts a jax.sharding.Mesh, with its device ids."""
        return Mesh([(name, mesh.shape[name]) for name in mesh.axis_names], [d.id for d in mesh.devices.flat])

    @staticmethod
    def from_torch(mesh: Any) -> Mesh:
        """Converts a DeviceMesh, whose devices are ranks. An axis without a name is called by its number."""
        names = mesh.mesh_dim_names or [str(d) for d in range(mesh.mesh.ndim)]
        return Mesh(list(zip(names, mesh.mesh.shape)), mesh.mesh.flatten().tolist())

    @property
    def shape(self) -> dict[str, int]:
        return dict(self._mesh.axes)

    @property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(self.shape)

    @property
    def size(self) -> int:
        size: int = self._mesh.size
        return size

    @property
    def devices(self) -> list[int]:
        """Devices by position, row by row."""
        return [self._mesh.device_at(position) for position in range(self.size)]

    def get_logical_mesh(self) -> Any:
        """Returns the device ids as a numpy array of the mesh's shape, as torch_xla's Mesh does."""
        import numpy as np

        return np.array(self.devices, dtype=np.int64).reshape(tuple(self.shape.values()))

    def __str__(self) -> str:
        return str(self._mesh)

    def __repr__(self) -> str:
        return f"Mesh({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and bool(self._mesh == other._mesh)

    def __hash__(self) -> int:
        return hash(str(self))


@dataclass(frozen=True)
class Device:
    """The place of a device, with JAX's names. Calls that take a Device also take a jax.Device. coords: the
    place of its chip in the torus that joins the chips of a slice; () without a torus. core_on_chip: its
    number among the devices of the chip."""

    id: int
    coords: tuple[int, ...] = ()
    slice_index: int | None = None
    process_index: int = 0
    core_on_chip: int = 0


def _places(devices: Sequence[Any]) -> list[tuple[int, list[int], int | None, int]]:
    cores = [getattr(device, "core_on_chip", None) or 0 for device in devices]
    places = []
    for device, core in zip(devices, cores):
        coords = list(getattr(device, "coords", None) or ())
        if coords and len(set(cores)) > 1:  # else each chip is one device
            coords.append(core)
        places.append((device.id, coords, getattr(device, "slice_index", None),
                       getattr(device, "process_index", 0)))
    return places


def device_mesh(axes: Mapping[str, int], devices: Sequence[Any], *, split_physical_axes: bool = False,
                contiguous_submeshes: bool = False, device_kind: str = "") -> Mesh:
    """Returns a mesh whose neighbours are near each other in the torus, in the order of jax's
    mesh_utils.create_device_mesh. axes: extents by name, in the order of rising communication. devices:
    Device or jax.Device. Raises InvalidArgument if axes and devices do not fit."""
    mesh = Mesh.__new__(Mesh)
    mesh._mesh = _core.device_mesh(list(axes.items()), _places(devices), split_physical_axes,
                                   contiguous_submeshes, device_kind)
    return mesh


class HybridMesh(Mesh):
    """A mesh over several slices, like torch_xla's HybridMesh. Axis i has ici_mesh_shape[i] devices inside a
    slice (fast links) times dcn_mesh_shape[i] slices.

    HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1), axis_names=("data", "model"), devices=devices)

    devices: Device or jax.Device. process_is_granule: True if the slow network joins processes, not slices,
    as in jax's create_hybrid_device_mesh. Raises InvalidArgument if sizes and devices do not fit.
    """

    def __init__(self, ici_mesh_shape: Sequence[int], dcn_mesh_shape: Sequence[int] | None = None,
                 axis_names: Sequence[str] | None = None, *, devices: Sequence[Any],
                 process_is_granule: bool = False, split_physical_axes: bool = True) -> None:
        outer = [1] * len(ici_mesh_shape) if dcn_mesh_shape is None else list(dcn_mesh_shape)
        names = [str(d) for d in range(len(ici_mesh_shape))] if axis_names is None else list(axis_names)
        if not len(ici_mesh_shape) == len(outer) == len(names):
            raise InvalidArgument(f"hybrid mesh: found {len(ici_mesh_shape)} ici sizes, {len(outer)} dcn "
                                  f"sizes and {len(names)} axis names, needed as many of each")
        axes = [(n, int(i), int(o)) for n, i, o in zip(names, ici_mesh_shape, outer)]
        self._mesh = _core.hybrid_mesh(axes, _places(devices), process_is_granule, split_physical_axes)


class PartitionSpec:
    """The mesh axes that cut each dim, as in jax.sharding.PartitionSpec: PartitionSpec("data", None,
    ("model", "seq"))."""

    def __init__(self, *entries: Entry) -> None:
        self._spec = _core.PartitionSpec.parse(",".join(self._text(e) for e in entries)) if entries else \
            _core.PartitionSpec.parse("")
        self.entries: tuple[Entry, ...] = tuple(tuple(e) if isinstance(e, list) else e for e in entries)

    @staticmethod
    def _text(entry: Entry) -> str:
        if entry is None or isinstance(entry, (tuple, list)) and not entry:
            return "-"
        return entry if isinstance(entry, str) else "+".join(entry)

    @classmethod
    def parse(cls, text: str) -> PartitionSpec:
        """Parses a text such as "data,-,model+seq"."""
        if not text:
            return cls()
        return cls(*[None if e.strip() == "-" else tuple(e.strip().split("+")) if "+" in e else e.strip()
                     for e in text.split(",")])

    @classmethod
    def from_jax(cls, spec: Any) -> PartitionSpec:
        """Converts a jax.sharding.PartitionSpec. Raises InvalidArgument for UNCONSTRAINED."""
        for entry in spec:
            if entry is not None and not isinstance(entry, (str, tuple)):
                raise InvalidArgument(f"{spec}: {entry} says nothing of where the elements are")
        return cls(*spec)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Any:
        return iter(self.entries)

    def __getitem__(self, dim: int) -> Entry:
        return self.entries[dim]

    def __str__(self) -> str:
        return str(self._spec)

    def __repr__(self) -> str:
        return f"PartitionSpec({', '.join(map(repr, self.entries))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSpec) and bool(self._spec == other._spec)

    def __hash__(self) -> int:
        return hash(str(self))


Box = tuple[slice, ...]


def _box(bounds: Sequence[tuple[int, int]]) -> Box:
    return tuple(slice(begin, end) for begin, end in bounds)


@dataclass(frozen=True)
class Minibatch:
    """The rows that one process brings to a global batch, and the boxes of its devices in them."""

    global_shape: tuple[int, ...]
    index: int  # the number of the process's share of the rows: processes with equal numbers bring equal rows
    count: int  # the number of shares
    local: dict[int, Box]  # the box of each device in the rows of the process
    boxes: dict[int, Box]  # the box of each device in the global batch


class Sharding:
    """A mesh and a spec, which give each device its box. policy: the rule that cuts dims that do not divide:
    "ceil" (XLA pads so), "strict" (JAX refuses them), "nested_chunk" (DTensor) or "balanced"."""

    def __init__(self, mesh: Mesh | str, spec: PartitionSpec | str, policy: str = "ceil") -> None:
        self.mesh = mesh if isinstance(mesh, Mesh) else Mesh(mesh)
        self.spec = spec if isinstance(spec, PartitionSpec) else PartitionSpec.parse(spec)
        self.policy = policy
        self._sharding = _core.Sharding(self.mesh._mesh, self.spec._spec, policy)

    @classmethod
    def from_jax(cls, sharding: Any, rank: int) -> Sharding:
        """Converts a jax.sharding.NamedSharding of a tensor of `rank` dims."""
        spec = PartitionSpec.from_jax([*sharding.spec, *[None] * (rank - len(sharding.spec))])
        return cls(Mesh.from_jax(sharding.mesh), spec, "strict")

    @classmethod
    def from_torch(cls, mesh: Any, placements: Any, shape: Sequence[int]) -> Sharding:
        """Converts the device_mesh, placements and shape of a DTensor. Raises Unsupported, with the reason,
        if no spec gives the same boxes."""
        ours = Mesh.from_torch(mesh)
        found, reason = _core.from_placements(ours._mesh, placement_text(placements, len(shape)), list(shape))
        if found is None:
            from ._errors import Unsupported

            raise Unsupported(f"{placements} of {list(shape)}: {reason}")
        return cls(ours, PartitionSpec.parse(str(found.spec)), found.policy)

    def to_jax(self, devices: Sequence[Any] | None = None) -> Any:
        """Returns a jax.sharding.NamedSharding on jax.devices() with these ids."""
        import jax
        import numpy as np

        by_id = {d.id: d for d in (jax.devices() if devices is None else devices)}
        grid = np.array([by_id[i] for i in self.mesh.devices]).reshape(tuple(self.mesh.shape.values()))
        spec: Any = jax.sharding.PartitionSpec
        return jax.sharding.NamedSharding(jax.sharding.Mesh(grid, self.mesh.axis_names),
                                          spec(*self.spec.entries))

    def to_placements(self, shape: Sequence[int]) -> str:
        """Returns DTensor's placements in words, one per mesh axis: "S(0),R". Raises Unsupported."""
        text: str = _core.to_placements(self._sharding, list(shape))
        return text

    def shard_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the largest box. Raises InvalidArgument if the policy does not allow the
        shape."""
        return tuple(self._sharding.shard_shape(list(shape)))

    def box(self, device: int, shape: Sequence[int]) -> Box:
        """Returns the box of a device, as slices. Raises NotFound."""
        return _box(self._sharding.box(device, list(shape)))

    def boxes(self, shape: Sequence[int]) -> dict[int, Box]:
        """Returns the box of each device."""
        return {device: self.box(device, shape) for device in self.mesh.devices}

    def minibatch(self, local_shape: Sequence[int], process: int,
                  process_of: Callable[[int], int]) -> Minibatch:
        """Places the rows that a process brings, an array of local_shape, along dim 0 of a global batch, as
        torch_xla does for minibatch=True. process_of: returns the process of a device. Raises NotFound if the
        process has no devices, InvalidArgument if no division of the rows lets every process hold as many as
        it brings."""
        processes = [process_of(device) for device in self.mesh.devices]
        shape, (index, count), parts = _core.minibatch(self._sharding, processes, process, list(local_shape))
        return Minibatch(tuple(shape), index, count, {d: _box(local) for d, local, _ in parts},
                         {d: _box(whole) for d, _, whole in parts})

    def replica_id(self, device: int) -> int:
        """Returns the number of a device, from 0 on, among those that have the same box."""
        replica: int = self._sharding.replica_id(device)
        return replica

    @property
    def num_replicas(self) -> int:
        count: int = self._sharding.num_replicas
        return count

    @property
    def is_fully_replicated(self) -> bool:
        return bool(self._sharding.is_fully_replicated)

    def picture(self, shape: Sequence[int]) -> Picture:
        """Returns a picture of a tensor of this shape; a notebook shows it."""
        return Picture(self._sharding.svg(list(shape)))

    def _repr_svg_(self) -> str:
        """Shows a small tensor that divides evenly, in a notebook."""
        ways = {dim: 1 for dim in range(len(self.spec))}
        for dim, entry in enumerate(self.spec.entries):
            for axis in (entry,) if isinstance(entry, str) else entry or ():
                ways[dim] *= self.mesh.shape.get(axis, 1)
        return self.picture([4 * w for w in ways.values()]).svg

    def __str__(self) -> str:
        return str(self._sharding)

    def __repr__(self) -> str:
        return f"Sharding({str(self.mesh)!r}, {str(self.spec)!r}, {self.policy!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sharding) and bool(self._sharding == other._sharding)

    def __hash__(self) -> int:
        return hash((self.mesh, self.spec))


class Picture:
    """An SVG image; `svg` is its text."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg


class TransferPlan:
    """Every copy that turns one placement of a tensor into another."""

    def __init__(self, before: Sharding, after: Sharding, shape: Sequence[int]) -> None:
        self._plan = _core.TransferPlan.reshard(before._sharding, after._sharding, list(shape))
        self._before, self._after = before.mesh.devices, after.mesh.devices

    def __repr__(self) -> str:
        return (f"<shardwise.TransferPlan: {self.classify()}, {len(self._plan.copies)} copies, "
                f"{self.moved_elements} elements move>")

    @property
    def copies(self) -> list[tuple[int, int, Box]]:
        """Source device, target device and elements of each copy, sorted by target, then by source."""
        return [(self._before[source], self._after[target], _box(box))
                for source, target, box in self._plan.copies]

    @property
    def moved_elements(self) -> int:
        """Number of elements that change devices."""
        moved: int = self._plan.moved_elements
        return moved

    def classify(self) -> str:
        """Returns the kind of the transfer: "all_gather", "slice", "all_to_all", ..."""
        name: str = self._plan.classify()
        return name


def explain_reshard(before: Sharding, after: Sharding, shape: Sequence[int], dtype: str = "f32") -> str:
    """Returns a text that lists the elements that each device keeps, fetches and drops."""
    text: str = _core.explain_reshard(before._sharding, after._sharding, list(shape), dtype)
    return text


def placement_text(placements: Any, rank: int) -> str:
    """Returns DTensor's placements as text for the C++ core, with negative dims counted from the end."""
    words = []
    for p in placements:
        kind = type(p).__name__
        if p.is_replicate():
            words.append("R")
        elif kind == "_StridedShard" or hasattr(p, "split_factor"):
            words.append(f"StridedShard({p.dim % max(rank, 1)}, split={p.split_factor})")
        elif p.is_shard():
            words.append(f"S({p.dim % max(rank, 1)})")
        else:
            words.append("P(sum)")
    return ",".join(words)
