"""A rank that is killed in the middle of a save of a job: the others hear of it, and the next job goes on."""

import os
import pathlib
import re
import signal
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

import shardwise as sw  # noqa: E402
import shardwise.torch as swt  # noqa: E402
from processes import free_port, run_ranks  # noqa: E402
from shardwise._jobs import links as _links  # noqa: E402

SIZE = 3
KILLED = 1
PATIENT = 240.0  # the deadline for points that all ranks come to
# On a busy machine another rank may not come in time, or the killed rank may not reach its place.
LATE = re.compile("(rank [02]|ranks .*) of 3 did not come|rank 0 of 3 said nothing")


def join(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=SIZE, init_method=f"tcp://127.0.0.1:{port}")


def whole(step: int) -> Any:
    """Returns a state of several chunks on each rank."""
    return torch.from_numpy(np.random.default_rng(step).integers(0, 1 << 30, (2 * SIZE, 1 << 17)))


def state_of(step: int) -> dict[str, Any]:
    return {"w": distribute_tensor(whole(step), init_device_mesh("cpu", (SIZE,)), [Shard(0)]), "step": step}


def manager_of(kind: str, folder: str, rank: int, deadline: float = PATIENT) -> Any:
    if kind == "plain":
        return swt.CheckpointManager(folder, threads=1, deadline=deadline)
    return swt.TieredManager(f"{folder}/host{rank}", f"{folder}/durable", copies=1, processes_per_host=1, drain_every=1, threads=1,
                             deadline=deadline, address="127.0.0.1")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(rank: int, size: int, port: int, folder: str, kind: str, door: str, deadline: float) -> tuple[str, str]:
    """Step 1 is saved, if it is not there; in the next one a rank dies as it comes to the door."""
    join(rank, port)
    with manager_of(kind, folder, rank) as manager:
        if manager.restore(state_of(0)) is None:
            manager.save(1, state_of(1))

    def in_the_middle(done: int, total: int) -> None:  # called by a write that waits for it
        die()

    if rank == KILLED and door == "sends a copy":
        send = _links._Sender.send

        def last(self: Any, to: int, channel: int, number: int, message: bytes) -> None:
            if len(message) > 1 << 18:
                die()
            send(self, to, channel, number, message)

        _links._Sender.send = last  # type: ignore[method-assign]
    try:
        manager = manager_of(kind, folder, rank, deadline)
        manager.save(2, state_of(2), progress=in_the_middle if rank == KILLED and door == "writes" else None)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", "was raised"


def going_on(rank: int, size: int, port: int, folder: str, kind: str) -> None:
    join(rank, port)
    with manager_of(kind, folder, rank) as manager:
        for step in (1, 2):
            state = {"w": distribute_tensor(torch.zeros_like(whole(0)), init_device_mesh("cpu", (SIZE,)), [Shard(0)]), "step": 0}
            found = manager.restore(state)
            assert found is not None and found.step == step and found.value["step"] == step, found
            assert torch.equal(found.value["w"].full_tensor(), whole(step))
            manager.save(step + 1, state_of(step + 1))


@pytest.mark.parametrize("kind, doors", [("plain", ["writes"]), ("tiers", ["writes", "sends a copy"])])
def test_a_rank_is_killed_in_the_middle_of_a_save(tmp_path: pathlib.Path, kind: str, doors: list[str]) -> None:
    root = tmp_path if kind == "plain" else tmp_path / "durable"
    for door in doors:
        for deadline in (5.0, 30.0, 120.0):
            said = run_ranks(killed, SIZE, free_port(), str(tmp_path), kind, door, deadline, may_die=True)
            others = [text for _, text in said[:KILLED] + said[KILLED + 1 :]]
            if said[KILLED] is None and not any(LATE.search(text) for text in others):
                break
        assert said.pop(KILLED) is None
        for name, text in said:
            assert name == "GroupError" and f"rank {KILLED}" in text, said
        with sw.CheckpointManager(root) as manager:
            assert manager.steps() == [1]
        assert sw.verify(root / "step-00000001")
        for folder in tmp_path.glob("host*/process-*"):
            assert [path.name for path in folder.glob("step-*")] == ["step-00000001"]
    run_ranks(going_on, SIZE, free_port(), str(tmp_path), kind)
    with sw.CheckpointManager(root) as manager:
        assert manager.steps() == [1, 2, 3]
    assert all(sw.verify(root / f"step-{step:08d}") for step in (1, 2, 3))
    assert not [name for name in os.listdir(root) if name.startswith(".")]
    assert not list(tmp_path.glob("host*/process-*/.step*"))
