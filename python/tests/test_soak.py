"""Many asynchronous saves of one job, with retention, increments and parity: memory, descriptors, threads and
files stay as they were after the first saves. Each kind of job runs in its own processes; nightly: 1,000
saves."""

import gc
import importlib.util
import os
import pathlib
from typing import Any, Callable, Iterator

import numpy as np
import pytest

import shardwise as sw
from processes import free_port, run_ranks

FIRST_SAVES = 20
MOST_GROWTH_MIB = {"numpy": 8, "torch": 16, "jax": 16}
Use = dict[str, float]


def use_of_process(root: pathlib.Path) -> Use:
    gc.collect()
    status = pathlib.Path("/proc/self/status").read_text()
    kib = int(status.split("VmRSS:")[1].split()[0])
    return {"MiB": kib / 1024, "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "files": sum(len(files) for _, _, files in os.walk(root))}


def uses_of(manager: Any, root: pathlib.Path, states: Iterator[Any], saves: int) -> list[Use]:
    """Measures after each save of a manager."""
    uses = []
    with manager:
        for step in range(1, saves + 1):
            manager.save_async(step, next(states))
            manager.wait()
            uses.append(use_of_process(root))
    return uses


def changing(make: Callable[[np.ndarray[Any, Any]], Any]) -> Iterator[Any]:
    """One chunk of one tensor changes from save to save."""
    tensors = {name: np.random.default_rng(ord(name)).random((3, 1 << 18), np.float32) for name in "ab"}
    step = 0
    while True:
        step += 1
        tensors["ab"[step % 2]][0, 7] = step
        yield {**{name: make(tensor.copy()) for name, tensor in tensors.items()}, "step": step}


def numpy_job(rank: int, size: int, root: pathlib.Path, saves: int) -> list[Use]:
    manager = sw.CheckpointManager(root, keep_last=3, parity_blocks=1)
    return uses_of(manager, root, changing(lambda x: x), saves)


def torch_job(rank: int, size: int, root: pathlib.Path, saves: int, port: int) -> list[Use]:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard

    import shardwise.torch as swt

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    states = changing(lambda x: DTensor.from_local(torch.from_numpy(x), mesh, [Shard(0)], run_check=False))
    return uses_of(swt.CheckpointManager(root, keep_last=3, parity_blocks=1), root, states, saves)


def jax_job(rank: int, size: int, root: pathlib.Path, saves: int) -> list[Use]:
    os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=8")
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import shardwise.jax as swj

    cut = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec(None, "x"))
    manager = swj.CheckpointManager(root, keep_last=3, parity_blocks=1)
    return uses_of(manager, root, changing(lambda x: jax.device_put(x, cut)), saves)


def curve(values: list[float], columns: int = 60) -> str:
    low, high = min(values), max(values)
    picked = [values[i * len(values) // columns] for i in range(columns)] if len(values) > columns else values
    span = max(high - low, 1e-9)
    return "".join("▁▂▃▄▅▆▇█"[int((value - low) / span * 7)] for value in picked)


def soak(root: pathlib.Path, kind: str, saves: int) -> None:
    if kind == "numpy":
        ranks = run_ranks(numpy_job, 1, root, saves, seconds=saves)
    elif importlib.util.find_spec(kind) is None:
        pytest.skip(f"needs {kind}, which this environment has not")
    elif kind == "torch":
        ranks = run_ranks(torch_job, 4, root, saves, free_port(), seconds=10 * saves)
    else:
        ranks = run_ranks(jax_job, 1, root, saves, seconds=10 * saves)
    for rank, uses in enumerate(ranks):
        for name in uses[0]:
            values = [use[name] for use in uses]
            later = sorted(values[FIRST_SAVES:])
            # A thread that ends may still be there.
            growth = later[len(later) * 95 // 100] - max(values[:FIRST_SAVES])
            print(f"{kind}, rank {rank}: {name:11} {curve(values)} {values[0]:.0f} to {values[-1]:.0f}")
            assert growth <= (MOST_GROWTH_MIB[kind] if name == "MiB" else 0), (kind, rank, name, values)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_fifty_saves_use_what_twenty_do(tmp_path, kind):
    soak(tmp_path / "root", kind, 50)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_a_thousand_saves_use_what_twenty_do(tmp_path, kind):
    soak(tmp_path / "root", kind, 1000)
