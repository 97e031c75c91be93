"""Implements FSDPv2, SpmdFullyShardedDataParallel of
torch_xla.experimental.spmd_fully_sharded_data_parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..._errors import InvalidArgument, warn
from . import tensors as _lazy
from .marks import get_global_mesh, mark_sharding
from .mesh import Mesh
from .shards import sharding_text


def _spec(tensor: torch.Tensor, extra_data_axis: str | None = None,
          by_largest: bool = False) -> tuple[Any, ...]:
    """Returns a spec that cuts the first dim, or the largest, over "fsdp"."""
    if tensor.dim() == 0:
        return ()
    dim = max(range(tensor.dim()), key=lambda d: tensor.shape[d]) if by_largest else 0
    axes = (extra_data_axis, "fsdp") if extra_data_axis else "fsdp"
    return tuple(axes if d == dim else None for d in range(tensor.dim()))


class SpmdFullyShardedDataParallel(nn.Module):
    """A module whose parameters without a mark are cut over the axis "fsdp" of a mesh, each in its largest
    dim, and whose output is cut in its first dim. mesh: the global mesh by default. shard_output: a function
    of output and mesh that marks the output in another way. auto_wrap_policy: wraps parts of the module, like
    the policies of torch.distributed.fsdp.wrap. Raises InvalidArgument."""

    def __init__(self, module: nn.Module, *, mesh: Mesh | None = None,
                 shard_output: Callable[[Any, Mesh], None] | None = None, auto_wrap_policy: Callable[..., Any]
                 | None = None, auto_wrapper_callable: Callable[..., Any] | None = None,
                 extra_data_axis: str | None = None) -> None:
        whole = get_global_mesh() if mesh is None else mesh
        if isinstance(module, SpmdFullyShardedDataParallel):
            raise InvalidArgument("FSDPv2: found a module that is wrapped already, needed one that is not: "
                                  "its parts are wrapped before it")
        if type(module).forward is nn.Module.forward:
            raise InvalidArgument(f"FSDPv2: found a {type(module).__name__}, which has no forward, "
                                  "needed a module that is called")
        if whole is None:
            raise InvalidArgument("FSDPv2: found no mesh, needed mesh= or set_global_mesh()")
        for axis in ("fsdp", *([extra_data_axis] if extra_data_axis else [])):
            if axis not in (whole.axis_names or ()):
                raise InvalidArgument(f"FSDPv2: found the axes {whole.axis_names}, "
                                      f"needed one called {axis!r}")
        super().__init__()
        if auto_wrap_policy is not None:
            from torch.distributed.fsdp.wrap import _recursive_wrap

            _recursive_wrap(module, auto_wrap_policy, auto_wrapper_callable or SpmdFullyShardedDataParallel,
                            set(), set(), only_wrap_children=True, mesh=whole, shard_output=shard_output)
        self._orig_module, self._mesh = module.to(_lazy.DEVICE), whole
        for parameter in module.parameters():
            if not sharding_text(parameter).startswith("{devices"):
                mark_sharding(parameter, whole, _spec(parameter, by_largest=True))
        self._extra_data_axis = extra_data_axis
        self._shard_output = shard_output or self._first_is_cut

    def _first_is_cut(self, output: Any, mesh: Mesh) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(output, tuple):
            warn("FSDPv2: the output is a tuple, and only its first tensor is cut; "
                 "shard_output= cuts others")
        if not isinstance(first, torch.Tensor):
            raise InvalidArgument(f"FSDPv2: found an output of {type(first).__name__}, needed a tensor, "
                                  "or shard_output=")
        mark_sharding(first, mesh, _spec(first, self._extra_data_axis))

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._orig_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module, and marks its output."""
        output = self._orig_module(*args, **kwargs)
        self._shard_output(output, self._mesh)
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_module"), name)

    def __getitem__(self, key: int) -> Any:
        return self._orig_module[key]  # type: ignore[index]
