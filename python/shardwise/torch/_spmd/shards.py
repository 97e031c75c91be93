"""Reads the cuts of tensors of the emulated device, and reads and writes the shard of each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

import torch

from ..._errors import InvalidArgument, WrongType
from .mesh import Placement, ShardingType, global_runtime_device_count
from .tensors import LazyTensor, value_of


def placement_of(tensor: torch.Tensor) -> Placement | None:
    """Returns the cut of a tensor; None if it is unknown, or if the tensor is whole on each device. A view
    has the cut of its root if it only permutes the dims."""
    if not isinstance(tensor, LazyTensor):
        return None
    root = tensor._root
    placement = root.mark or root.placement
    if placement is None or not tensor._path:
        return placement
    by_stride = {dim: axes for dim, axes in zip(zip(root.meta.shape, root.meta.stride()), placement.spec)
                 if dim[0] > 1}
    own = [dim if dim[0] > 1 else None for dim in zip(tensor._meta.shape, tensor._meta.stride())]
    if {dim for dim in own if dim} != by_stride.keys() or tensor._meta.numel() != root.meta.numel():
        return None
    return Placement(placement.mesh, tuple(by_stride[dim] if dim else () for dim in own))


def sharding_text(tensor: torch.Tensor) -> str:
    """Returns the sharding of a tensor as XLA writes it; "" if it is unknown."""
    placement = placement_of(tensor)
    if placement is not None:
        return placement.text
    if not isinstance(tensor, LazyTensor) or tensor._root.value is None:
        return ""
    return "{replicated}" if not tensor._path or tensor._root.placement is None else ""


def sharding_type(tensor: torch.Tensor) -> ShardingType | None:
    """Returns the type of the sharding; None if it is unknown."""
    placement = placement_of(tensor)
    return (placement.type if placement is not None else ShardingType.REPLICATED if sharding_text(tensor)
            else None)


@dataclass
class XLAShard:
    """The part of a tensor on a device, padded with zeros to the size of the largest part. indices: a slice
    of the whole tensor for each dim; ... for a whole tensor. replica_id: the number of the device, by id,
    among those with this part."""

    data: torch.Tensor
    indices: list[slice] | EllipsisType
    shard_device: str
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """Returns the data without the padding."""
        if isinstance(self.indices, EllipsisType):
            return self.data
        return self.data[tuple(slice(0, part.stop - part.start) for part in self.indices)]

    @unpadded_data.setter
    def unpadded_data(self, value: torch.Tensor) -> None:
        self.unpadded_data.copy_(value)


def shards_of(tensor: LazyTensor) -> list[XLAShard]:
    """Runs the pending calls, and returns the present shards, by device."""
    value, placement = value_of(tensor), placement_of(tensor)
    if placement is None or max(placement.tiles, default=1) == 1:
        return [XLAShard(value.clone(), ..., f"EMULATED:{number}", number)
                for number in range(global_runtime_device_count())]
    replicas = {int(device): place for group in placement.groups for place, device in enumerate(group)}
    shards = []
    for number in sorted(replicas):
        box = placement.sharding.box(number, value.shape)
        data = torch.zeros(placement.sharding.shard_shape(value.shape), dtype=value.dtype)
        data[tuple(slice(0, part.stop - part.start) for part in box)] = value[box]
        shards.append(XLAShard(data, [slice(part.start, part.stop, 1) for part in box], f"EMULATED:{number}",
                               replicas[number]))
    return shards


def _bits(data: torch.Tensor) -> torch.Tensor:
    return data.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def load_shards(tensor: LazyTensor, shards: Sequence[XLAShard]) -> None:
    """Sets a tensor from shards. The device of a shard gives its place, not its indices. Raises
    InvalidArgument before anything changes."""
    if isinstance(shards, str) or not isinstance(shards, Sequence) or not all(isinstance(shard, XLAShard)
                                                                              for shard in shards):
        raise WrongType(f"load_local_shards_: shards is a {type(shards).__name__} of other things than "
                        "parts, needed are those of local_shards, with their data changed")
    known = {shard.shard_device: shard for shard in shards_of(tensor)}
    devices = [shard.shard_device for shard in shards]
    if sorted(devices) != sorted(known):
        raise InvalidArgument(f"load_local_shards_: found parts of {len(devices)} devices "
                              f"({', '.join(map(str, devices))}), needed one of each of the {len(known)}")
    value = value_of(tensor)
    for shard in shards:
        own = known[shard.shard_device]
        if shard.data.shape != own.data.shape or shard.data.dtype != own.data.dtype:
            raise InvalidArgument("load_local_shards_: found a part of "
                                  f"{shard.data.dtype}{list(shard.data.shape)} of {shard.shard_device}, "
                                  f"needed one of {own.data.dtype}{list(own.data.shape)}")
    whole: dict[str, XLAShard] = {}
    for shard in shards:
        same = whole.setdefault(str(known[shard.shard_device].indices), shard)
        if not same.data.equal(shard.data) and not torch.equal(_bits(same.data), _bits(shard.data)):
            raise InvalidArgument(f"load_local_shards_: found other values of {shard.shard_device} than of "
                                  f"{same.shard_device}, which hold the same part, needed equal ones")
    for shard in shards:
        own = known[shard.shard_device]
        place = ... if isinstance(own.indices, EllipsisType) else tuple(own.indices)
        own.data = shard.data.detach().cpu()
        value[place] = own.unpadded_data
    with torch.no_grad():
        tensor.detach().copy_(value)
