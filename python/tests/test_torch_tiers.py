"""Runs two tiers in real processes, on hosts that are folders."""

import os
import pathlib
import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

import shardwise as sw  # noqa: E402
import shardwise.torch as swt  # noqa: E402
from processes import free_port, run_ranks  # noqa: E402


def join(rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"tcp://127.0.0.1:{port}")


def tiers(folder: str, rank: int, **options: Any) -> swt.TieredManager:
    given: dict[str, Any] = {"copies": 1, "processes_per_host": 1, "drain_every": 2, "threads": 1, "deadline": 60.0, "address": "127.0.0.1"}
    return swt.TieredManager(f"{folder}/host{rank}", f"{folder}/durable", **{**given, **options})


def whole(step: int) -> Any:
    return torch.arange(40 * 600, dtype=torch.float32).reshape(40, 600) + 1_000_000 * step


def state_of(step: int, rank: int, size: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (size,))
    model = torch.nn.Linear(6, 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(step)
    return {"w": distribute_tensor(whole(step), mesh, [Shard(0)]), "plain": whole(step)[:, :300] + 0.5, "model": model, "step": step,
            "rng": swt.PerRank(torch.tensor([rank, step]))}


def empty_state(size: int, placements: Any) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (size,))
    return {"w": distribute_tensor(torch.zeros(40, 600), mesh, placements), "plain": torch.zeros(40, 300), "model": torch.nn.Linear(6, 4),
            "step": -1, "rng": swt.PerRank(None)}


def expect(value: dict[str, Any], step: int) -> None:
    assert torch.equal(value["w"].full_tensor(), whole(step)) and torch.equal(value["plain"], whole(step)[:, :300] + 0.5)
    assert value["step"] == step and all((p == step).all() for p in value["model"].parameters())


def saving(rank: int, size: int, port: int, folder: str, steps: int) -> list[str]:
    join(rank, size, port)
    with tiers(folder, rank) as manager:
        for step in range(1, steps + 1):
            if step % 2:
                stats = manager.save(step, state_of(step, rank, size), user={"step": step})
                assert stats.path.endswith(f"step-{step:08d}") and stats.logical_bytes > whole(0).numel() * 4
            else:
                state = state_of(step, rank, size)
                pending = manager.save_async(step, state)
                state["plain"].zero_()  # it was copied
                pending.result()
    return sorted(os.listdir(f"{folder}/host{rank}/process-{rank:05}"))


def restoring(rank: int, size: int, port: int, folder: str, step: int, tier: str) -> tuple[str, list[str], list[str]]:
    join(rank, size, port)
    placements = [Shard(1)] if rank % 2 == 0 or size > 1 else [Replicate()]
    with tiers(folder, rank, copies=min(1, size - 1)) as manager:
        found = manager.restore(empty_state(size, placements))
        assert found is not None and (found.step, found.tier) == (step, tier), found
        expect(found.value, step)
        assert found.value["rng"].tolist() == [rank, step] and found.value.tensors == 5
        manager.save(step + 1, state_of(step + 1, rank, size))
        manager.close()
    return str(found), found.damaged, found.mended


def restored(size: int, folder: pathlib.Path, step: int, tier: str = "fast") -> list[Any]:
    return run_ranks(restoring, size, free_port(), str(folder), step, tier)


def step_of(folder: pathlib.Path, rank: int, step: int) -> pathlib.Path:
    return folder / f"host{rank}" / f"process-{rank:05}" / f"step-{step:08d}"


def spoil(path: pathlib.Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Three hosts with steps 3 and 4, each file on two; steps 1 and 3 are in the durable root."""
    folder = tmp_path_factory.mktemp("tiers")
    for listed in run_ranks(saving, 3, free_port(), str(folder), 4):
        assert listed == ["step-00000003", "step-00000004"]
    return folder


@pytest.fixture
def folder(saved: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    shutil.copytree(saved, tmp_path / "job")
    return tmp_path / "job"


def test_the_durable_root_has_ordinary_checkpoints(saved: pathlib.Path) -> None:
    assert sorted(path.name for path in (saved / "durable").glob("step-*")) == ["step-00000001", "step-00000003"]
    with sw.open(saved / "durable/step-00000003") as checkpoint:
        assert checkpoint.user == {"step": 3} and (checkpoint["plain"][:] == (whole(3)[:, :300] + 0.5).numpy()).all()
    value = swt.load_state_dict(saved / "durable/step-00000001")
    assert torch.equal(value["w"], whole(1))


def reshaping(rank: int, size: int, port: int, folder: str, step: int) -> tuple[str]:
    join(rank, size, port)
    mesh = init_device_mesh("cpu", (size,))
    state = {"t": distribute_tensor(torch.zeros(600, 40, dtype=torch.float64), mesh, [Shard(0)]), "a": torch.zeros(40, 150),
             "b": torch.zeros(30, 150), "c": torch.full((2, 3), 7.0), "step": -1}
    with tiers(folder, rank) as manager:
        found = manager.restore(state, names=["w", "plain", "step", "model.bias"], rename={"w": "t", "model.bias": "c"}, transpose={"w": (1, 0)},
                                cast={"w": torch.float64}, split={"plain": "a,b@1"}, resize={"b": "slice"}, skip_mismatched=True)
        assert found is not None and found.step == step
        with pytest.raises(sw.NameNotFound, match="there is no tensor 'ww'"):
            manager.restore(state, names="ww")
        with pytest.raises(sw.InvalidArgument, match='step 4 of the fast tier: 1 edit does not fit: rename "nothing'):
            manager.restore(state, rename={"nothing*": "x"})
    value, plain = found.value, whole(step)[:, :300] + 0.5
    assert torch.equal(value["t"].full_tensor(), whole(step).T.double()) and value["step"] == step and value.skipped == ["c"]
    assert torch.equal(value["a"], plain[:, :150]) and torch.equal(value["b"], plain[:30, 150:]) and (value["c"] == 7).all()
    return (str(found),)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_lost_host_is_made_up_for_by_copies(folder: pathlib.Path, lost: int) -> None:
    shutil.rmtree(folder / f"host{lost}")
    said = restored(3, folder, 4) if lost else run_ranks(reshaping, 3, free_port(), str(folder), 4)
    assert any("from other processes" in text for text, *_ in said), said


def test_another_number_of_processes_restores(folder: pathlib.Path) -> None:
    shutil.copytree(folder / "host2", folder / "host1", dirs_exist_ok=True)  # rank 2's files are on rank 1's host now
    restored(2, folder, 4)


def test_bad_chunks_are_taken_from_elsewhere_and_told(folder: pathlib.Path) -> None:
    name = "shards-00001-of-00003.h5"
    holders = [rank for rank in range(3) if (step_of(folder, rank, 4) / name).exists()]
    assert len(holders) == 2
    good = (step_of(folder, 1, 4) / name).read_bytes()
    spoil(step_of(folder, holders[0], 4) / name, 5000)
    spoil(step_of(folder, holders[1], 4) / name, 70_000)  # in another chunk
    said = restored(3, folder, 4)
    assert (step_of(folder, 1, 4) / name).read_bytes() == good
    for text, damaged, _ in said:
        assert len(damaged) == 2 and all(name in problem for problem in damaged) and "damaged: " in text
    assert any(f"1 chunk of {name} from" in source for _, _, mended in said for source in mended), said


def test_a_step_of_which_a_chunk_is_nowhere_is_passed_over(folder: pathlib.Path) -> None:
    name = "shards-00001-of-00003.h5"
    for rank in range(3):
        if (step_of(folder, rank, 4) / name).exists():
            spoil(step_of(folder, rank, 4) / name, 5000)
    for text, _, _ in restored(3, folder, 3):
        assert "not step 4 of the fast tier: no good copy of " + name in text
    for rank in range(3):
        shutil.rmtree(folder / f"host{rank}")
    restored(3, folder, 4, "durable")  # as it was saved again


def misfitting(rank: int, size: int, port: int, folder: str) -> str:
    join(rank, size, port)
    with tiers(folder, rank) as manager:
        state = empty_state(size, [Shard(0)])
        del state["model"]
        state["more"] = torch.zeros(3)
        with pytest.raises(sw.InvalidArgument) as caught:
            manager.restore(state)
        with pytest.raises(sw.Error, match="is already there"):
            manager.save(4, state_of(4, rank, size))
        with pytest.raises(sw.InvalidArgument, match="step -1"):
            manager.save(-1, {})
    with pytest.raises(sw.InvalidArgument, match="closed"):
        manager.save(9, state_of(9, rank, size))
    return str(caught.value)


def test_errors_are_those_of_load_and_save(folder: pathlib.Path) -> None:
    for text in run_ranks(misfitting, 3, free_port(), str(folder)):
        assert "step 4 of the fast tier does not fit the state" in text and "'more'" in text and "model.weight" in text


def test_one_process(tmp_path: pathlib.Path) -> None:
    state = {"x": torch.arange(50_000.0), "note": "a"}
    with swt.TieredManager(tmp_path / "fast", tmp_path / "durable", copies=0, threads=1) as manager:
        assert manager.restore({"x": torch.zeros(50_000), "note": ""}) is None
        manager.save(7, state)
        found = manager.restore({"x": torch.zeros(50_000), "note": ""})
        assert found is not None and found.tier == "fast" and torch.equal(found.value["x"], state["x"]) and found.value["note"] == "a"
        assert manager.save(8, state).unchanged_bytes == 200_000
    assert torch.equal(swt.load_state_dict(tmp_path / "durable/step-00000007")["x"], state["x"])
    with pytest.raises(sw.InvalidArgument, match="drain_every is 0"):
        swt.TieredManager(tmp_path / "fast", tmp_path / "durable", copies=0, drain_every=0)
    with pytest.raises(sw.InvalidArgument, match="copies"):
        swt.TieredManager(tmp_path / "fast", tmp_path / "durable", copies=1)


def refusing(rank: int, size: int, port: int, folder: str) -> None:
    """A stranger that does not know the key is no rank."""
    from multiprocessing import AuthenticationError, connection

    join(rank, size, port)
    manager = tiers(folder, rank)
    links = manager._links
    assert links is not None
    address = links._listener.getsockname()
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        connection.Client(address, authkey=b"guess").close()
    manager.save(1, state_of(1, rank, size))
    manager.close()


def test_strangers_are_not_heard(tmp_path: pathlib.Path) -> None:
    run_ranks(refusing, 2, free_port(), str(tmp_path))
