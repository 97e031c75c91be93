"""Implements collectives of torch_xla.core.xla_model in a manual region. The parts of all devices become one
tensor with a dim for each axis of the mesh. A collective is a sum, slice or transpose of these dims, and each
device takes its part of the result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..._argument_types import check_calls
from ..._errors import InvalidArgument
from . import tensors as _lazy
from .mesh import Mesh, Placement
from .tensors import LazyTensor

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR, REDUCE_MIN, REDUCE_MAX = ("sum", "mul", "and", "or", "min",
                                                                         "max")

Groups = Sequence[Sequence[int]] | None


def _product(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    for dim in dims:
        x = x.prod(dim, keepdim=True)
    return x


_REDUCTIONS: dict[str, Callable[[torch.Tensor, list[int]], torch.Tensor]] = {
    REDUCE_SUM: lambda x, dims: x.sum(dims, keepdim=True, dtype=x.dtype), REDUCE_MUL: _product,
    REDUCE_MIN: lambda x, dims: x.amin(dims, keepdim=True),
    REDUCE_MAX: lambda x, dims: x.amax(dims, keepdim=True),
    REDUCE_AND: lambda x, dims: x.bool().all(dims, keepdim=True).to(x.dtype),
    REDUCE_OR: lambda x, dims: x.bool().any(dims, keepdim=True).to(x.dtype),
}


class _Parts:
    """The parts of all devices of a tensor in a region. `whole` has dims for the devices, then the dims of a
    part."""

    def __init__(self, operation: str, x: Any, groups: Groups) -> None:
        self.operation = operation
        self.mesh = _region_of(operation, x)
        shape, rank = self.mesh.mesh_shape, len(self.mesh.mesh_shape)
        spec = tuple((axis,) for axis in range(rank)) + ((),) * x.dim()
        one = x.reshape(*[1] * rank, *x.shape)
        self.whole = _lazy.call(torch.ops.shardwise.leave_manual.default, one, Placement(self.mesh, spec),
                                [*shape, *x.shape])
        self.order: list[int] | None = None
        self.members = _axes_of(self.mesh, groups)  # the dims of the devices of a group
        if self.members is None:
            groups = groups or [range(self.mesh.size())]
            self.order = _order_of(operation, self.mesh, groups)
            size = len(groups[0])
            flat = self.whole.flatten(0, rank - 1).index_select(0, torch.tensor(self.order))
            self.whole, self.members = flat.reshape(-1, size, *x.shape), (1,)  # type: ignore[assignment]
        self.rank = self.whole.dim() - x.dim()
        self.sizes = [self.whole.shape[dim] for dim in self.members]
        self.size = math.prod(self.sizes)

    def given(self, whole: torch.Tensor) -> Any:
        """Returns a tensor of the region: each device has its part of the whole tensor."""
        shape = list(whole.shape[self.rank:])
        if self.order is not None:
            back = np.argsort(self.order).tolist()
            whole = whole.flatten(0, 1).index_select(0, torch.tensor(back)).reshape(*self.mesh.mesh_shape,
                                                                                    *shape)
        rank = len(self.mesh.mesh_shape)
        spec = tuple((axis,) for axis in range(rank)) + ((),) * len(shape)
        given: Any = (whole, Placement(self.mesh, spec), [*[1] * rank, *shape])
        made: Any = _lazy.call(torch.ops.shardwise.enter_manual.default, *given)
        return made.reshape(shape)

    def reduced(self, reduce_type: str, scale: float) -> torch.Tensor:
        """Returns the reduction over the group, whose dims become 1."""
        if reduce_type not in _REDUCTIONS:
            raise InvalidArgument(f"{self.operation}: found the reduction {reduce_type!r}, "
                                  f"needed one of {', '.join(_REDUCTIONS)}")
        total = _REDUCTIONS[reduce_type](self.whole, list(self.members or ()))
        return total if scale == 1.0 else total * scale

    def dim_of(self, dim: int) -> int:
        """Returns a dim of a part, counted from the first."""
        dims: int = self.whole.dim() - self.rank
        if not -dims <= dim < dims:
            raise InvalidArgument(f"{self.operation}: found the dim {dim}, needed one of a tensor of {dims}")
        return int(dim % dims)

    def split(self, whole: torch.Tensor, dim: int, count: int) -> torch.Tensor:
        """Returns the tensor with a dim of parts cut among the devices, whose group's dims come before it."""
        extent = whole.shape[self.rank + dim]
        if count != self.size or extent % self.size:
            raise InvalidArgument(f"{self.operation}: "
                                  f"found {extent} rows cut {count} ways in groups of {self.size} devices, "
                                  "needed as many parts as a group has devices, and rows that divide")
        at = self.rank + dim
        return whole.reshape(*whole.shape[:at], *self.sizes, extent // self.size, *whole.shape[at + 1:])

    def merged(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        """Returns the tensor with the dims of the group merged into the dim of parts that follows them."""
        at = self.rank + dim
        return whole.reshape(*whole.shape[:at], -1, *whole.shape[at + len(self.sizes) + 1:])


def is_of_region(x: Any) -> bool:
    """Returns True if each device has its own tensor."""
    return isinstance(x, LazyTensor) and x._root.region is not None


def _region_of(operation: str, x: Any) -> Mesh:
    if not isinstance(x, LazyTensor) or x._root.region is None:
        raise InvalidArgument(f"{operation}: found a tensor that is whole, needed one of a manual region: "
                              "enable_manual_sharding()")
    return x._root.region


def _axes_of(mesh: Mesh, groups: Groups) -> tuple[int, ...] | None:
    """Returns the axes along which the devices of each group are, in their order; None if no axes fit."""
    axes = range(len(mesh.mesh_shape))
    wanted = {tuple(group) for group in groups} if groups else {tuple(range(mesh.size()))}
    for count in range(len(mesh.mesh_shape) + 1):
        for own in itertools.combinations(axes, count):
            others = [axis for axis in axes if axis not in own]
            lines = mesh.get_logical_mesh().transpose(*others, *own).reshape(
                -1, math.prod(mesh.mesh_shape[axis] for axis in own))
            if {tuple(line) for line in lines.tolist()} == wanted:
                return own
    return None


def _order_of(operation: str, mesh: Mesh, groups: Sequence[Sequence[int]]) -> list[int]:
    """Positions in the mesh, a group after the other. Raises InvalidArgument."""
    ids = [device for group in groups for device in group]
    if sorted(ids) != list(range(mesh.size())) or len({len(group) for group in groups}) > 1:
        raise InvalidArgument(f"{operation}: found the groups {[list(group) for group in groups]}, "
                              f"needed groups of as many devices each, with all {mesh.size()} devices once")
    positions = np.argsort(mesh.device_ids)
    return [int(positions[device]) for device in ids]


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Groups = None,
               pin_layout: bool = True) -> Any:
    """Returns the sum over the devices of a group (or product, minimum, ..), on each; groups: lists of device
    ids; all devices by default. Changes a list of tensors in place. A whole tensor is returned times the
    scale, as in SPMD mode of PyTorch/XLA, where there is one of it. Raises InvalidArgument."""
    if not isinstance(inputs, torch.Tensor):
        for one in inputs:
            one.copy_(all_reduce(reduce_type, one, scale, groups))
        return inputs
    if not is_of_region(inputs):
        return inputs.clone() if scale == 1.0 else inputs * scale
    parts = _Parts("all_reduce", inputs, groups)
    return parts.given(parts.reduced(reduce_type, scale).expand_as(parts.whole))


def all_gather(value: torch.Tensor, dim: int = 0, groups: Groups = None, output: torch.Tensor | None = None,
               pin_layout: bool = True, channel_id: Any = None, use_global_device_ids: Any = None) -> Any:
    """Returns the parts of a group concatenated along a dim, on each of its devices. Raises
    InvalidArgument."""
    parts = _Parts("all_gather", value, groups)
    dim = parts.dim_of(dim)
    own = list(parts.members or ())
    left = [axis for axis in range(parts.rank) if axis not in own]
    local = [parts.rank + axis for axis in range(value.dim())]
    moved = parts.whole.permute(*left, *local[:dim], *own, *local[dim:])
    at = len(left) + dim
    whole = moved.reshape(*moved.shape[:at], -1, *moved.shape[at + len(own) + 1:])
    for axis in own:
        whole = whole.unsqueeze(axis)
    made = parts.given(whole.expand(*parts.whole.shape[:parts.rank], *whole.shape[parts.rank:]))
    return made if output is None else output.copy_(made)


def reduce_scatter(reduce_type: str, input: torch.Tensor, scale: float, scatter_dim: int, shard_count: int,
                   groups: Groups = None, output: torch.Tensor | None = None, pin_layout: bool = True,
                   channel_id: Any = None, use_global_device_ids: Any = None) -> Any:
    """Reduces as all_reduce() does, but each device of a group keeps only its part along a dim. Raises
    InvalidArgument."""
    parts = _Parts("reduce_scatter", input, groups)
    dim = parts.dim_of(scatter_dim)
    made = parts.given(_exchanged(parts, parts.split(parts.reduced(reduce_type, scale), dim, shard_count),
                                  dim, dim, is_summed=True))
    return made if output is None else output.copy_(made)


def all_to_all(value: torch.Tensor, split_dimension: int, concat_dimension: int, split_count: int,
               groups: Groups = None, pin_layout: bool = True) -> Any:
    """Each device of a group sends the parts of a dim to the others, and concatenates those that it receives
    along another dim. Raises InvalidArgument."""
    parts = _Parts("all_to_all", value, groups)
    dim, to = parts.dim_of(split_dimension), parts.dim_of(concat_dimension)
    return parts.given(_exchanged(parts, parts.split(parts.whole, dim, split_count), dim, to,
                                  is_summed=False))


def _exchanged(parts: _Parts, whole: torch.Tensor, dim: int, to: int, is_summed: bool) -> torch.Tensor:
    """Exchanges the dims of the group that precede a dim of a part with the dims of the devices, which go
    before the dim `to`."""
    own, count = list(parts.members or ()), len(parts.sizes)
    new = list(range(parts.rank + dim, parts.rank + dim + count))
    devices = [new[own.index(axis)] if axis in own else axis for axis in range(parts.rank)]
    local = [axis for axis in range(parts.rank, whole.dim()) if axis not in new]
    moved = whole.permute(*devices, *local[:to], *own, *local[to:])
    return parts.merged(moved, to) if not is_summed else moved.reshape(*moved.shape[:parts.rank],
                                                                       *(whole.shape[axis] for axis in local))


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> Any:
    """Sends the value of the first device of each pair to the second; devices without a sender get zeros.
    Raises InvalidArgument."""
    parts = _Parts("collective_permute", value, [_region_of("collective_permute", value).device_ids.tolist()])
    sources: dict[int, int] = {}
    count = parts.mesh.size()
    for source, target in pairs:
        if not (0 <= source < count and 0 <= target < count) or target in sources:
            raise InvalidArgument(f"collective_permute: found the pairs {[list(pair) for pair in pairs]}, "
                                  f"needed devices from 0 to {count - 1}, each sent to at most once")
        sources[target] = source
    positions = np.argsort(parts.mesh.device_ids)
    ids = parts.mesh.device_ids.tolist()
    flat = parts.whole.flatten(0, parts.rank - 1)
    moved = flat.index_select(0,
                              torch.tensor([int(positions[sources.get(device, device)]) for device in ids]))
    if len(sources) < count:
        is_sent = torch.tensor([device in sources for device in ids]).reshape(-1, *[1] * value.dim())
        moved = torch.where(_lazy.uploaded(is_sent), moved, torch.zeros_like(moved))
    return parts.given(moved.reshape(parts.whole.shape))

check_calls(__name__)
