"""Implements names of torch_xla.runtime, torch_xla.core.xla_model and torch_xla for processes, devices, steps
and files. There is one process, which has all devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..._argument_types import check_calls
from ..._errors import Unsupported
from . import tensors as _lazy
from .mesh import global_runtime_device_count
from .tensors import LazyTensor

_closures: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []


# Processes and devices.


def world_size() -> int:
    """Returns 1, as in SPMD mode, where one process has all devices."""
    return 1


def global_ordinal() -> int:
    """Returns 0, the ordinal of the only process, as local_ordinal(), process_index() and host_index() do."""
    return 0


def process_count() -> int:
    """Returns 1."""
    return 1


def addressable_runtime_device_count() -> int:
    """Returns the number of all devices, as global_runtime_device_count() does."""
    return global_runtime_device_count()


def device_type() -> str:
    """Returns "EMULATED"; PyTorch/XLA returns "TPU", for example."""
    return "EMULATED"


def xla_device_hw(device: Any) -> str:
    """Returns device_type()."""
    return device_type()


def is_bf16_supported() -> bool:
    """Returns True."""
    return True


def global_runtime_device_attributes() -> list[dict[str, object]]:
    """Returns the name of each device."""
    return [{"name": f"EMULATED:{number}"} for number in range(global_runtime_device_count())]


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Returns True if the tensor is on the emulated device."""
    return isinstance(tensor, LazyTensor)


def is_master_ordinal(local: bool = True) -> bool:
    """Returns True, as there is one process."""
    return True


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Calls print() with the file fd, or sys.stdout."""
    print(*args, file=fd, flush=flush)


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Returns the payload of each process: there is only this one."""
    return [payload]


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Returns reduce_fn of a list of each process's data on the CPU; there is one process."""
    return reduce_fn([_on_cpu(data)])


# Steps.


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Runs the recorded operations, which gives live tensors of the device their values, and then the
    closures of add_step_closure(). A step that has run before is not planned again. mark_step() is the same.
    Raises Unsupported for operations that no program has, each with its line."""
    _lazy.run()
    closures, _closures[:] = list(_closures), []
    for closure, args in closures:
        closure(*args)


def add_step_closure(closure: Callable[..., Any], args: tuple[Any, ...] = (),
                     run_async: bool = False) -> None:
    """Calls closure(*args) after the next step, when its tensors have their values."""
    _closures.append((closure, args))


@contextlib.contextmanager
def step() -> Iterator[None]:
    """Makes its block a step, with sync() before and after."""
    sync()
    try:
        yield
    finally:
        sync()


def compile(f: Callable[..., Any] | None = None, full_graph: bool = False, name: str | None = None,
            max_different_graphs: int | None = None) -> Any:
    """Returns step(), or a function that makes each call of f a step. full_graph, name and
    max_different_graphs have no effect."""
    return step() if f is None else step()(f)


def optimizer_step(optimizer: Any, barrier: bool = False, optimizer_args: dict[str, Any] | None = None,
                   groups: Any = None, pin_layout: bool = True) -> Any:
    """Calls optimizer.step(**optimizer_args), and sync() if `barrier` is true. Adds up nothing, as gradients
    are whole."""
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        sync()
    return loss


def reduce_gradients(optimizer: Any, groups: Any = None, pin_layout: bool = True) -> None:
    """Does nothing, as gradients are whole."""


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Does nothing, as sync() has waited."""


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Calls sync()."""
    sync()


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Does nothing, like apply_backward_optimization_barrier()."""


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Calls sync(), as there is one process."""
    sync()


def manual_seed(seed: int, device: Any = None) -> None:
    """Calls torch.manual_seed(), as the host draws random numbers. set_rng_state() is the same."""
    torch.manual_seed(seed)


def get_rng_state(device: Any = None) -> int:
    """Returns the seed of the host's generator."""
    return torch.initial_seed()


@contextlib.contextmanager
def fork_rng(device: Any = None, enabled: bool = True) -> Iterator[None]:
    """Restores the random states after its block."""
    with torch.random.fork_rng(devices=[], enabled=enabled):
        yield


# Files.


def _on_cpu(data: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, LazyTensor) else leaf, data)


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """Calls torch.save() with the data on the CPU."""
    torch.save(_on_cpu(data), file_or_path)


def send_cpu_data_to_device(datas: Any, device: Any = None, input_sharding: Any = None) -> list[Any]:
    """Returns the tensors on the device, each marked by the ShardingSpec if that fits."""
    placed = pytree.tree_map(lambda leaf: leaf.to(_lazy.DEVICE) if isinstance(leaf, torch.Tensor) else leaf,
                             [datas] if isinstance(datas, torch.Tensor) else datas)
    for leaf in pytree.tree_leaves(placed):
        if isinstance(leaf, LazyTensor) and input_sharding is not None and input_sharding.can_apply(leaf):
            input_sharding.apply(leaf)
    return placed  # type: ignore[no-any-return]


# Functions that emulated devices lack.

REFUSED = {
    "launch": "fn(0, *args): in SPMD mode one process has all devices, "
              "and PyTorch/XLA refuses launch() there, too",
    "spawn": "fn(0, *args): in SPMD mode one process has all devices",
    "send": "collective_permute() in a manual region",
    "recv": "collective_permute() in a manual region",
    "collective_broadcast": "nothing: a tensor is the same on all devices, unless it is of a manual region",
    "all_gather_bucketized": "all_gather() of each tensor",
    "reduce_scatter_bucketized": "reduce_scatter() of each tensor",
    "all_reduce_bucketized_gradients": "nothing: gradients are whole",
    "xla_replication_devices": "get_xla_supported_devices()",
    "set_replication": "use_spmd()",
    "get_stablehlo": "last_plan().report(), or shardwise.torch.capture() and Program.text",
    "get_stablehlo_bytecode": "last_plan().report(), or shardwise.torch.capture() and Program.text",
    "get_memory_info": "last_plan().peak_bytes, of a device in the step",
    "shard_as": "mark_sharding() of both with one spec",
    "xla_distribute_tensor": "mark_sharding(tensor, mesh, partition_spec)",
    "xla_distribute_module": "mark_sharding() of each parameter",
    "auto_policy": "use_spmd(auto=True)",
    "initialize_cache": "nothing: a step that was run before is not planned again",
    "get_num_cached_compilation_graph": "last_plan()",
    "get_master_ip": "nothing: there is one process",
    "set_device_type": "set_device_count()",
}


def refused(name: str) -> Callable[..., Any]:
    """Returns a stand-in for a function of PyTorch/XLA, which raises Unsupported with the code to write."""

    def call(*_: Any, **__: Any) -> Any:
        raise Unsupported(f"{name}: found a function that emulated devices lack, needed {REFUSED[name]}")

    return call

check_calls(__name__)
