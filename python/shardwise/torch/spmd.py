"""Gives the names of PyTorch/XLA SPMD: a program written for it runs on emulated devices with other imports.

    import shardwise.torch.spmd as xm       # was torch_xla.core.xla_model
    import shardwise.torch.spmd as xr       # was torch_xla.runtime
    import shardwise.torch.spmd as xs       # was torch_xla.distributed.spmd
    from shardwise.torch.spmd import Mesh

    xr.use_spmd()
    mesh = Mesh(np.arange(8), (4, 2), ("data", "model"))
    t = torch.randn(8, 4).to(xm.xla_device())
    xs.mark_sharding(t, mesh, ("data", "model"))
    xm.mark_step()

docs/spmd.md describes how it works, and lists the names that are missing.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .._argument_types import check_calls
from .._errors import InvalidArgument
from .._interpreter import imported
from ..programs import Plan
from ._spmd import autocast as _spmd_autocast
from ._spmd import dispatch as _lazy_dispatch
from ._spmd import program as _lazy_program
from ._spmd import tensors as _lazy
from ._spmd.collectives import REDUCE_AND as REDUCE_AND
from ._spmd.collectives import REDUCE_MAX as REDUCE_MAX
from ._spmd.collectives import REDUCE_MIN as REDUCE_MIN
from ._spmd.collectives import REDUCE_MUL as REDUCE_MUL
from ._spmd.collectives import REDUCE_OR as REDUCE_OR
from ._spmd.collectives import REDUCE_SUM as REDUCE_SUM
from ._spmd.collectives import all_gather as all_gather
from ._spmd.collectives import all_reduce as all_reduce
from ._spmd.collectives import all_to_all as all_to_all
from ._spmd.collectives import collective_permute as collective_permute
from ._spmd.collectives import reduce_scatter as reduce_scatter
from ._spmd.fsdp import SpmdFullyShardedDataParallel as SpmdFullyShardedDataParallel
from ._spmd.marks import get_global_mesh as get_global_mesh
from ._spmd.marks import is_spmd as is_spmd
from ._spmd.marks import mark_sharding as mark_sharding
from ._spmd.marks import placement_of
from ._spmd.marks import set_global_mesh as set_global_mesh
from ._spmd.marks import use_spmd as use_spmd
from ._spmd.mesh import Entry
from ._spmd.mesh import HybridMesh as HybridMesh
from ._spmd.mesh import Mesh as Mesh
from ._spmd.mesh import ShardingType as ShardingType
from ._spmd.mesh import global_runtime_device_count as global_runtime_device_count
from ._spmd.mesh import set_device_count as set_device_count
from ._spmd.mesh import tiles_of_text
from ._spmd.runtime import REFUSED, refused
from ._spmd.runtime import add_step_closure as add_step_closure
from ._spmd.runtime import addressable_runtime_device_count as addressable_runtime_device_count
from ._spmd.runtime import broadcast_master_param as broadcast_master_param
from ._spmd.runtime import compile as compile
from ._spmd.runtime import device_type as device_type
from ._spmd.runtime import fork_rng as fork_rng
from ._spmd.runtime import get_rng_state as get_rng_state
from ._spmd.runtime import global_ordinal as global_ordinal
from ._spmd.runtime import global_runtime_device_attributes as global_runtime_device_attributes
from ._spmd.runtime import is_bf16_supported as is_bf16_supported
from ._spmd.runtime import is_master_ordinal as is_master_ordinal
from ._spmd.runtime import is_xla_tensor as is_xla_tensor
from ._spmd.runtime import manual_seed as manual_seed
from ._spmd.runtime import master_print as master_print
from ._spmd.runtime import mesh_reduce as mesh_reduce
from ._spmd.runtime import optimization_barrier_ as optimization_barrier_
from ._spmd.runtime import optimizer_step as optimizer_step
from ._spmd.runtime import process_count as process_count
from ._spmd.runtime import reduce_gradients as reduce_gradients
from ._spmd.runtime import rendezvous as rendezvous
from ._spmd.runtime import save as save
from ._spmd.runtime import send_cpu_data_to_device as send_cpu_data_to_device
from ._spmd.runtime import step as step
from ._spmd.runtime import sync as sync
from ._spmd.runtime import unlazy as unlazy
from ._spmd.runtime import wait_device_ops as wait_device_ops
from ._spmd.runtime import world_size as world_size
from ._spmd.runtime import xla_device_hw as xla_device_hw
from ._spmd.shards import XLAShard as XLAShard
from ._spmd.shards import sharding_text
from ._spmd.shards import sharding_type as get_xla_sharding_type
from ._spmd.tensors import LazyTensor
from ._spmd.tensors import XLAShardedTensor as XLAShardedTensor

runtime = imported(__name__)  # torch_xla.runtime.use_spmd(), if this module is torch_xla

_lazy_dispatch.install()
_spmd_autocast.install()


def __getattr__(name: str) -> Any:
    if name not in REFUSED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return refused(name)


# Device and steps.


def xla_device() -> torch.device:
    """Returns the emulated device, which stands for all devices. .to(xla_device()) or device=xla_device()
    puts a tensor there."""
    return _lazy.DEVICE


def device() -> torch.device:
    """Returns xla_device(), as torch_xla.device() does."""
    return _lazy.DEVICE


def get_xla_supported_devices() -> list[str]:
    """Returns a name for each emulated device, as "EMULATED:0"."""
    return [f"EMULATED:{number}" for number in range(global_runtime_device_count())]


mark_step = sync
local_ordinal = get_local_ordinal = process_index = host_index = global_ordinal
set_rng_state = manual_seed


def devices() -> list[torch.device]:
    """Returns xla_device(), which stands for all devices, in a list."""
    return [_lazy.DEVICE]


def device_count() -> int:
    """Returns the number of emulated devices."""
    return global_runtime_device_count()


def last_plan() -> Plan | None:
    """Returns the plan that ran last, for report(), explain() and traffic; None before the first run."""
    return next(iter(_lazy_program.last), None)


# Meshes.


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """Returns a mesh of all devices along one axis."""
    devices = global_runtime_device_count()
    return Mesh(np.arange(devices), (devices,), None if axis_name is None else (axis_name,))


# Marks.


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Removes the mark in place, and returns t."""
    if isinstance(t, LazyTensor):
        t._root.mark = t._root.placement = None
    return t


class MarkShardingFunction(torch.autograd.Function):
    """The autograd function of mark_sharding_with_gradients(): MarkShardingFunction.apply(t, mesh,
    partition_spec)."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Entry]) -> Any:
        ctx.mesh, ctx.partition_spec = mesh, partition_spec
        return mark_sharding(t.clone(), mesh, partition_spec)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return mark_sharding(grad_output.clone(), ctx.mesh, ctx.partition_spec), None, None


def mark_sharding_with_gradients(t: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Entry]) -> Any:
    """Returns a marked copy of t, whose gradient is marked, too; t keeps its own mark. Raises
    InvalidArgument."""
    return MarkShardingFunction.apply(t, mesh, partition_spec)


def annotate_custom_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Entry]) -> Any:
    """Changes the cut of a tensor for the rest of the step, in place; its mark stays. Raises
    InvalidArgument."""
    placement = placement_of("annotate_custom_sharding", t, mesh, partition_spec)
    with torch.no_grad():
        t.detach().copy_(_lazy.call(torch.ops.shardwise.mark_sharding.default, t,  # type: ignore[arg-type]
                                    placement))
    return t


def wrap_if_sharded(x: Any) -> Any:
    """Returns x, as a marked tensor is itself an XLAShardedTensor."""
    return x


def wrap_as_sharded_tensor(t: torch.Tensor) -> Any:
    """Returns t, like wrap_if_sharded()."""
    return t


def unwrap_sharded_tensor(t: torch.Tensor) -> Any:
    """Returns t, as marks need no wrapper."""
    return t


@dataclass
class ShardingSpec:
    """A mesh and a spec for later tensors: MpDeviceLoader(.., input_sharding=ShardingSpec(mesh, ("data",
    None))). minibatch: each process brings a part of the batch; the only process here brings all of it."""

    mesh: Mesh
    partition_spec: Sequence[Entry]
    minibatch: bool = False

    def __post_init__(self) -> None:
        self.mesh.spec_of(self.partition_spec)

    def can_apply(self, t: torch.Tensor) -> bool:
        """Returns True if t has as many dims as the spec."""
        return t.dim() == len(self.partition_spec)

    def apply(self, t: torch.Tensor) -> None:
        """Marks t in place."""
        mark_sharding(t, self.mesh, self.partition_spec)


def get_xla_sharding_spec(t: torch.Tensor) -> str:
    """Returns the cut of a tensor as XLA writes it (torch_xla._XLAC._get_xla_sharding_spec):
    "{devices=[4,2]0,1,2,3,4,5,6,7}", "{replicated}"; "" for a pending tensor without a mark."""
    return sharding_text(t)


# Serves torch_xla._XLAC._get_xla_sharding_spec(t) in a program that imports this module as torch_xla.
_XLAC = types.SimpleNamespace(_get_xla_sharding_spec=get_xla_sharding_spec,
                              _get_xla_sharding_type=get_xla_sharding_type, _xla_spmd_all_reduce=all_reduce,
                              _xla_spmd_reduce_scatter=reduce_scatter)


# Manual sharding.


def enable_manual_sharding(t: torch.Tensor, partition_spec: Sequence[Entry], *,
                           mesh: Mesh | None = None) -> Any:
    """Returns the part of t on each device, a tensor of the shape of one part. Each device applies operations
    to its own part until disable_manual_sharding(). Dims must divide evenly. Raises InvalidArgument."""
    whole = _manual_mesh("enable_manual_sharding", mesh)
    placement = placement_of("enable_manual_sharding", t, whole, partition_spec)
    if any(extent % tiles for extent, tiles in zip(t.shape, placement.tiles)):
        raise InvalidArgument(f"enable_manual_sharding: found {list(t.shape)} cut {placement.tiles} ways, "
                              "needed dims that divide")
    if t._root.mark is None and not t._path:  # type: ignore[attr-defined]
        mark_sharding(t, whole, partition_spec)
    shape = [extent // tiles for extent, tiles in zip(t.shape, placement.tiles)]
    return _lazy.call(torch.ops.shardwise.enter_manual.default, t, placement, shape)  # type: ignore[arg-type]


def disable_manual_sharding(t: torch.Tensor, partition_spec: Sequence[Entry], full_shape: Sequence[int], *,
                            mesh: Mesh | None = None) -> Any:
    """Returns the whole tensor of these parts. Raises InvalidArgument."""
    whole = _manual_mesh("disable_manual_sharding", mesh)
    placement = placement_of("disable_manual_sharding", t, whole, partition_spec)
    shape = [extent * tiles for extent, tiles in zip(t.shape, placement.tiles)]
    if shape != list(full_shape):
        raise InvalidArgument(f"disable_manual_sharding: found the shape {list(full_shape)}, needed {shape}: "
                              f"parts of {list(t.shape)} {placement.tiles} ways")
    return _lazy.call(torch.ops.shardwise.leave_manual.default, t, placement, shape)  # type: ignore[arg-type]


def _manual_mesh(operation: str, mesh: Mesh | None) -> Mesh:
    manual = mesh or get_global_mesh()
    if manual is None:
        raise InvalidArgument(f"{operation}: found no mesh, needed mesh= or set_global_mesh()")
    return manual


# Modules and loaders.


class XLAPatchedLinear(torch.autograd.Function):
    """torch.nn.functional.linear as an einsum, which keeps the dims of its input apart. Our programs can also
    cut torch's own linear."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor,
                bias: torch.Tensor | None = None) -> torch.Tensor:
        ctx.save_for_backward(input, weight, bias)
        with torch.no_grad():
            product = torch.einsum("...n,mn->...m", input, weight)
            return product if bias is None else product + bias

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        input, weight, bias = ctx.saved_tensors
        needs = ctx.needs_input_grad
        grad_input = torch.einsum("...m,mn->...n", grad_output, weight) if needs[0] else None
        grad_weight = torch.einsum("...m,...n->mn", grad_output, input) if needs[1] else None
        grad_bias = torch.einsum("...m->m", grad_output) if bias is not None and needs[2] else None
        return grad_input, grad_weight, grad_bias


def xla_patched_nn_linear_forward(m: torch.nn.Linear, input: torch.Tensor) -> Any:
    """Applies XLAPatchedLinear with a layer's weight and bias: layer.forward =
    MethodType(xla_patched_nn_linear_forward, layer)."""
    return XLAPatchedLinear.apply(input, m.weight, m.bias)


def apply_backward_optimization_barrier(m: torch.nn.Module) -> None:
    """Does nothing: it keeps XLA from fusing the gradients of modules, and our programs fuse no products."""


class MpDeviceLoader:
    """Puts batches of a loader on the device. input_sharding marks every tensor in them: a ShardingSpec, or a
    dict with a spec for each key of a dict batch. Each next batch first runs mark_step() for the operations
    on the batch before. Raises InvalidArgument for a dict of specs if a batch is no dict or has other
    keys."""

    def __init__(self, loader: Any, device: torch.device, input_sharding: ShardingSpec
                 | Mapping[str, ShardingSpec | None] | None = None, **options: Any) -> None:
        self._loader, self._device, self._input_sharding = loader, device, input_sharding
        self._steps = int(options.get("batches_per_execution", 1))

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._loader):
            if number and number % self._steps == 0:
                mark_step()
            yield self._placed(batch)
        mark_step()

    def _placed(self, batch: Any) -> Any:
        sharding = self._input_sharding
        if not isinstance(sharding, Mapping):
            return torch.utils._pytree.tree_map(lambda leaf: self._on_device(leaf, sharding), batch)
        if not isinstance(batch, Mapping) or not set(batch) <= set(sharding):
            content = sorted(map(str, set(batch)
                                 - set(sharding))) if isinstance(batch, Mapping) else type(batch).__name__
            raise InvalidArgument(f"MpDeviceLoader: found a batch with {content} and a dict of specs, "
                                  "needed a spec for each key")
        return {key: torch.utils._pytree.tree_map(lambda leaf, key=key: self._on_device(leaf, sharding[key]),
                                                  value) for key, value in batch.items()}

    def _on_device(self, leaf: Any, spec: ShardingSpec | None) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        placed = leaf.to(self._device)
        if spec is not None and spec.can_apply(placed):
            spec.apply(placed)
        return placed


# Pictures.


def visualize_sharding(sharding: str, **_: Any) -> str:
    """Prints and returns a table of the devices of each part, with the first dim down and the second across.
    sharding: as XLA writes it. Raises InvalidArgument if more than two dims are cut."""
    dims, groups = tiles_of_text(sharding, global_runtime_device_count())
    cut = [dim for dim, tiles in enumerate(dims) if tiles > 1]
    if len(cut) > 2 or any(dim > 1 for dim in cut):
        raise InvalidArgument(f"visualize_sharding: found {sharding}, "
                              "needed one that cuts the first two dims at most")
    rows = dims[0] if dims else 1
    cells = [" ".join(map(str, group)) for group in groups]
    width = max(map(len, cells))
    across = len(cells) // rows
    lines = [" | ".join(cell.center(width) for cell in cells[begin:begin + across])
             for begin in range(0, len(cells), across)]
    text = f"\n{'-' * len(lines[0])}\n".join(lines)
    print(text)
    return text


def visualize_tensor_sharding(t: torch.Tensor, **_: Any) -> str:
    """Calls visualize_sharding() for a tensor. Raises InvalidArgument for a pending tensor without a mark."""
    text = get_xla_sharding_spec(t)
    if not text:
        raise InvalidArgument("visualize_tensor_sharding: found a tensor that is pending and not marked, "
                              "needed one after mark_step()")
    return visualize_sharding(text)

check_calls(__name__)
