"""Describes the cuts of DTensors: the boxes, and the parts that this process has."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from .. import _core
from .._arrays.torch_tensors import address_of, settled
from .._errors import InvalidArgument, Unsupported
from .._sharding import Mesh, placement_text


@dataclass
class Shard:
    """A box of a tensor that this process holds: its begin and its elements."""

    begin: tuple[int, ...]
    local: torch.Tensor


@dataclass
class Layout:
    """The cut of a DTensor."""

    shape: tuple[int, ...]
    local: torch.Tensor
    shards: list[Shard]
    how: dict[str, Any]  # arguments of Sources.add: mesh, spec and policy, or listed
    is_owner: bool  # True on the rank that writes listed boxes, of those ranks that hold the same


@dataclass
class _Cut:
    """The properties that all DTensors of one mesh, placements and shape share."""

    how: dict[str, Any]
    is_owner: bool
    # the begin of each piece, and its place in the local tensor
    pieces: list[tuple[tuple[int, ...], tuple[slice, ...]]]
    # the shape of the local tensor; None if this rank is not in the mesh
    local: tuple[int, ...] | None = None


class Layouts:
    """A cache of the layouts of one state's DTensors: many share a cut, and torch is slow to describe a
    cut."""

    def __init__(self) -> None:
        self._meshes: dict[Any, Mesh] = {}
        self._cuts: dict[Any, _Cut] = {}

    def of(self, tensor: Any, name: str) -> Layout:
        """Returns the layout of a DTensor. Raises Unsupported if its values are still to be reduced,
        InvalidArgument if its local tensor lacks the shape that its placements give this rank."""
        mesh, placements, shape = key = tensor.device_mesh, tensor.placements, tuple(tensor.shape)
        if any(p.is_partial() for p in placements):
            raise Unsupported(f"tensor {name!r} has placements {placements}: "
                              "its values are still to be reduced; redistribute() it first")
        cut = self._cuts.get(key)
        if cut is None:
            cut = self._cuts[key] = self._cut(mesh, placements, shape)
        local = settled(tensor.to_local())
        if cut.local is not None and cut.local != tuple(local.shape) and (local.numel()
                                                                          or 0 not in cut.local):
            box = ""
            if len(cut.pieces) == 1:
                of_dims = [f"{begin}:{begin + extent}" for begin, extent in zip(cut.pieces[0][0], cut.local)]
                box = f", the box [{', '.join(of_dims)}]"
            raise InvalidArgument(f"tensor {name!r} {list(shape)} over {mesh} as {placements}: "
                                  f"this rank has a local tensor of shape {list(local.shape)}, "
                                  f"needed is {list(cut.local)}{box}")
        shards = [Shard(begin, local if len(cut.pieces) == 1 else local[at]) for begin, at in cut.pieces]
        return Layout(shape, local, shards, cut.how, cut.is_owner)

    def _cut(self, mesh: Any, placements: Any, shape: tuple[int, ...]) -> _Cut:
        """Returns a cut with the boxes that follow from the placements' runs of indices; a strided placement
        has several runs."""
        if mesh not in self._meshes:
            self._meshes[mesh] = Mesh.from_torch(mesh)
        ours = self._meshes[mesh]
        coordinate = mesh.get_coordinate()
        text = placement_text(placements, len(shape))
        sharding, _ = _core.from_placements(ours._mesh, text, list(shape))
        how: dict[str, Any] = {"listed": True} if sharding is None else {
            "mesh": str(sharding.mesh), "spec": str(sharding.spec), "policy": sharding.policy}
        if coordinate is None:  # this rank is not in the mesh
            return _Cut(how, False, [])
        position = 0
        for at, size in zip(coordinate, ours.shape.values()):
            position = position * size + at
        # The local tensor has the runs of each dim one after another.
        of_dims = []
        for dim in _core.placement_runs(ours._mesh, text, list(shape), position):
            at, pieces = 0, []
            for begin, end in dim:
                pieces.append((begin, slice(at, at + end - begin)))
                at += end - begin
            of_dims.append(pieces)
        owner = all(at == 0 for at, p in zip(coordinate, placements) if p.is_replicate())
        return _Cut(how, owner, [(tuple(b for b, _ in combination), tuple(s for _, s in combination))
                                 for combination in itertools.product(*of_dims)],
                    tuple(dim[-1][1].stop if dim else 0 for dim in of_dims))


MemoryKey = tuple[Any, ...]


def memory_key(local: torch.Tensor, layout: Layout | None) -> MemoryKey | None:
    """Returns a key that is equal for tied tensors, which are the same elements of the same memory and are
    stored once; None without memory."""
    if local.is_nested or local.numel() == 0 or local.layout != torch.strided or local.is_meta:
        return None
    address = address_of(settled(local))
    if address == 0:
        return None
    cut = None if layout is None else id(layout.how)  # all tensors of one cut share this object
    return (local.device, address, local.dtype, local.shape, local.stride(), local.is_conj(), local.is_neg(),
            cut)
