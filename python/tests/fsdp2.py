"""FSDP2 of accelerate and of the Trainer on CPUs: accelerate turns FSDP on for accelerators alone, though all it calls runs on CPUs."""

import functools
import os
from typing import Any

import accelerate
from accelerate.state import AcceleratorState


def start(rank: int, size: int, port: int) -> None:
    """Prepares a process of the job: FSDP is on if a plugin is given."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank),
                      OMP_NUM_THREADS="1")
    own = AcceleratorState.__init__

    @functools.wraps(own)
    def with_fsdp(state: Any, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        own(state, *args, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            state.distributed_type, state.fsdp_plugin = accelerate.DistributedType.FSDP, fsdp_plugin

    setattr(AcceleratorState, "__init__", with_fsdp)


def full(value: Any) -> Any:
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().numpy().copy()


def values_of(model: Any, optimizer: Any) -> dict[str, Any]:
    """Returns whole values of the weights and of their optimizer state, by name."""
    found = {}
    state = getattr(optimizer, "optimizer", optimizer).state
    for name, parameter in model.named_parameters():
        found[name] = full(parameter)
        found.update({f"{name}.{key}": full(value) for key, value in state.get(parameter, {}).items()})
    return found
