"""The state of a job as names and leaves: modules, optimizers, Stateful objects, DTensors, tensors, plain objects."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .. import _core
from .._errors import InvalidArgument, Unsupported
from .._sharding import Mesh, placement_text

Path = tuple[str | int, ...]


class PerRank:
    """A value that each rank has of its own, such as the state of its random generator. In a target, PerRank(None) is
    filled with the value that this rank has saved; where there are other ranks now, ranks without one keep theirs."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @staticmethod
    def name(name: str, rank: int) -> str:
        return f"{name}@rank{rank}"


def is_stateful(value: Any) -> bool:
    return (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
            and not isinstance(value, (torch.Tensor, Mapping)))


def optimizer_owner(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
    """The module of the state whose parameters the optimizer has, if it is one."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    owners = [m for m in state.values() if isinstance(m, torch.nn.Module) and own <= {id(p) for p in m.parameters()}]
    return owners[0] if len(owners) == 1 else None


def state_of(name: str, value: Any, state: Mapping[str, Any]) -> Any:
    """What a Stateful object gives; an optimizer's by the names of its module's parameters."""
    if isinstance(value, torch.optim.Optimizer):
        owner = optimizer_owner(state, value)
        if owner is not None:
            from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

            return get_optimizer_state_dict(owner, value)
    if is_stateful(value):
        return value.state_dict()
    return value


def give_state(value: Any, filled: Any, state: Mapping[str, Any], strict: bool) -> None:
    """Inverse of state_of()."""
    if isinstance(value, torch.optim.Optimizer):
        owner = optimizer_owner(state, value)
        if owner is not None:
            from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

            set_optimizer_state_dict(owner, value, filled)
            return
    if isinstance(value, torch.nn.Module):
        value.load_state_dict(filled, strict=strict)
    else:
        value.load_state_dict(filled)


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Of dicts, and of lists and tuples that hold a tensor; an empty one is a leaf itself."""
    if isinstance(tree, Mapping) and tree and all(type(k) in (str, int) for k in tree):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif type(tree) in (list, tuple) and _holds_tensor(tree):
        for i, value in enumerate(tree):
            yield from leaves(value, (*path, i))
    else:
        yield path, tree


def _holds_tensor(tree: Any) -> bool:
    if isinstance(tree, (torch.Tensor, PerRank)):
        return True
    if isinstance(tree, Mapping):
        return any(map(_holds_tensor, tree.values()))
    return isinstance(tree, (list, tuple)) and any(map(_holds_tensor, tree))


def named_leaves(state: Mapping[str, Any]) -> dict[str, tuple[Path, Any]]:
    """By name, its path's keys joined with dots, as DCP's. Raises InvalidArgument where two paths have one name."""
    found: dict[str, tuple[Path, Any]] = {}
    for name, value in state.items():
        if not isinstance(name, str):
            raise InvalidArgument(f"the state's names are str, not {type(name).__name__}: {name!r}")
        for path, leaf in leaves(state_of(name, value, state), (name,)):
            text = ".".join(map(str, path))
            if text in found:
                raise InvalidArgument(f"the state has two values called {text!r}: {found[text][0]} and {path}")
            found[text] = (path, leaf)
    return found


@dataclass
class Shard:
    """A box of a tensor that this process holds: where it begins, and its elements."""

    begin: tuple[int, ...]
    local: torch.Tensor


@dataclass
class Layout:
    """How a DTensor is cut."""

    shape: tuple[int, ...]
    local: torch.Tensor
    shards: list[Shard]
    how: dict[str, Any]  # of Sources.add: mesh, spec and policy, or listed
    is_owner: bool  # of listed boxes, of those that hold the same


@dataclass
class _Cut:
    """What all DTensors of one mesh, placements and shape have in common."""

    how: dict[str, Any]
    is_owner: bool
    pieces: list[tuple[tuple[int, ...], tuple[slice, ...]]]  # where each begins, and where the local tensor has it


class Layouts:
    """Of the DTensors of one state. Many are cut alike, and torch takes its time to say how."""

    def __init__(self) -> None:
        self._meshes: dict[Any, Mesh] = {}
        self._cuts: dict[Any, _Cut] = {}

    def of(self, tensor: Any, name: str) -> Layout:
        """Of a DTensor. Raises Unsupported where its values are still to be reduced."""
        mesh, placements, shape = key = tensor.device_mesh, tensor.placements, tuple(tensor.shape)
        if any(p.is_partial() for p in placements):
            raise Unsupported(f"tensor {name!r} has placements {placements}: its values are still to be reduced; "
                              f"redistribute() it first")
        cut = self._cuts.get(key)
        if cut is None:
            cut = self._cuts[key] = self._cut(mesh, placements, shape)
        local = tensor.to_local()
        shards = [Shard(begin, local if len(cut.pieces) == 1 else local[at]) for begin, at in cut.pieces]
        return Layout(shape, local, shards, cut.how, cut.is_owner)

    def _cut(self, mesh: Any, placements: Any, shape: tuple[int, ...]) -> _Cut:
        """Boxes come from the placements' runs of indices, of which a strided one has several."""
        if mesh not in self._meshes:
            self._meshes[mesh] = Mesh.from_torch(mesh)
        ours = self._meshes[mesh]
        coordinate = mesh.get_coordinate()
        text = placement_text(placements, len(shape))
        sharding, _ = _core.from_placements(ours._mesh, text, list(shape))
        how: dict[str, Any] = {"listed": True} if sharding is None else {
            "mesh": str(sharding.mesh), "spec": str(sharding.spec), "policy": sharding.policy}
        if coordinate is None:  # this rank is not of the mesh
            return _Cut(how, False, [])
        position = 0
        for at, size in zip(coordinate, ours.shape.values()):
            position = position * size + at
        # The local tensor has the runs of each dim one after the other.
        of_dims = []
        for dim in _core.placement_runs(ours._mesh, text, list(shape), position):
            at, pieces = 0, []
            for begin, end in dim:
                pieces.append((begin, slice(at, at + end - begin)))
                at += end - begin
            of_dims.append(pieces)
        owner = all(at == 0 for at, p in zip(coordinate, placements) if p.is_replicate())
        return _Cut(how, owner, [(tuple(b for b, _ in combination), tuple(s for _, s in combination))
                                 for combination in itertools.product(*of_dims)])
