"""shardwise.jax.TieredManager, on hosts that are folders, in jobs of several processes of 4 CPU devices each."""

import os
import pathlib
import shutil
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from processes import free_port, run_ranks

import shardwise as sw
import shardwise.jax as swj


def start(rank: int, size: int, port: int) -> None:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)


def tiers(folder: str, rank: int, **options: Any) -> swj.TieredManager:
    given: dict[str, Any] = {"copies": 1, "drain_every": 2, "threads": 1, "deadline": 60.0}
    return swj.TieredManager(f"{folder}/host{rank}", f"{folder}/durable", **{**given, **options})


def whole(step: int) -> np.ndarray:
    return np.arange(48 * 600, dtype=np.float32).reshape(48, 600) + 1_000_000 * step


def placed(value: Any, spec: P) -> jax.Array:
    sharding = NamedSharding(Mesh(np.array(jax.devices()).reshape(-1, 2), ("data", "model")), spec)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index], dtype=value.dtype)


def tree_of(step: int) -> dict[str, Any]:
    return {"w": placed(whole(step), P("data", "model")), "all": placed(whole(step)[:, :300] + 0.5, P()), "numpy": np.full(3, step),
            "step": step, "note": "a"}


def target() -> dict[str, Any]:
    """Returns the tree on other shardings."""
    devices = Mesh(np.array(jax.devices())[::-1], ("x",))
    return {"w": jax.ShapeDtypeStruct((48, 600), np.float32, sharding=NamedSharding(devices, P(None, "x"))),
            "all": jax.ShapeDtypeStruct((48, 300), np.float32, sharding=NamedSharding(devices, P("x"))), "numpy": np.zeros(3, np.int64),
            "step": 0, "note": ""}


def expect(value: dict[str, Any], step: int) -> None:
    for name, array in (("w", whole(step)), ("all", whole(step)[:, :300] + 0.5)):
        for shard in value[name].addressable_shards:
            assert np.array_equal(np.asarray(shard.data), array[shard.index]), name
    assert value["numpy"].tolist() == [step] * 3 and value["step"] == step and value["note"] == "a"


def saving(rank: int, size: int, port: int, folder: str) -> list[str]:
    start(rank, size, port)
    with tiers(folder, rank) as manager:
        assert manager.restore(target()) is None
        for step in (1, 2, 3):
            stats = manager.save(step, tree_of(step), user={"step": step})
            assert stats.path.endswith(f"step-{step:08d}") and stats.logical_bytes > whole(0).nbytes
        tree = tree_of(4)
        pending = manager.save_async(4, tree)
        tree["numpy"][:] = 0  # it was copied
        pending.result()
        with pytest.raises(sw.Error, match="is already there"):
            manager.save(4, tree_of(4))
        wrong = {**tree_of(5), "note": rank}
        with pytest.raises(sw.InvalidArgument, match="'note', which each process has for itself, differs"):
            manager.save(5, wrong)
        with pytest.raises(sw.InvalidArgument, match="save step -1"):
            manager.save(-1, {})
        with pytest.raises(sw.InvalidArgument) as caught:
            manager.restore({**target(), "more": swj.ANY})
        assert "step 4 of the fast tier" in str(caught.value) and "'more' is not in the checkpoint" in str(caught.value)
    return sorted(os.listdir(f"{folder}/host{rank}/process-{rank:05}"))


def restoring(rank: int, size: int, port: int, folder: str, step: int, tier: str) -> tuple[str, list[str], list[str]]:
    start(rank, size, port)
    with tiers(folder, rank, copies=min(1, size - 1)) as manager:
        found = manager.restore(target())
        assert found is not None and (found.step, found.tier) == (step, tier), found
        expect(found.value, step)
        manager.save(step + 1, tree_of(step + 1))
    return str(found), found.damaged, found.mended


def restored(size: int, folder: pathlib.Path, step: int, tier: str = "fast") -> list[Any]:
    return run_ranks(restoring, size, free_port(), str(folder), step, tier)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Two hosts with steps 3 and 4, whose files are on both; steps 1 and 3 are in the durable root."""
    folder = tmp_path_factory.mktemp("tiers")
    for listed in run_ranks(saving, 2, free_port(), str(folder)):
        assert listed == ["step-00000003", "step-00000004"]
    return folder


@pytest.fixture
def folder(saved: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    shutil.copytree(saved, tmp_path / "job")
    return tmp_path / "job"


def test_the_durable_root_has_ordinary_checkpoints(saved: pathlib.Path) -> None:
    assert sorted(path.name for path in (saved / "durable").glob("step-*")) == ["step-00000001", "step-00000003"]
    path = saved / "durable/step-00000003"
    assert sw.verify(path)
    with sw.open(path) as checkpoint:
        assert checkpoint.user == {"step": 3} and (checkpoint["w"].mesh, checkpoint["w"].spec) == ("data=4,model=2", "data,model")
    value = swj.load(path)
    assert np.array_equal(value["w"], whole(3)) and np.array_equal(value["all"], whole(3)[:, :300] + 0.5)


def test_a_host_that_was_wiped_has_it_from_its_peer(folder: pathlib.Path) -> None:
    shutil.rmtree(folder / "host0")
    said = restored(2, folder, 4)
    assert "from other processes" in said[0][0], said


def test_a_bad_chunk_is_taken_from_elsewhere_and_told(folder: pathlib.Path) -> None:
    name = "process-00001/step-00000004/shards-00001-of-00002.h5"
    file = folder / "host1" / name
    good = file.read_bytes()
    data = bytearray(good)
    data[5000] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    said = restored(2, folder, 4)
    assert file.read_bytes() == good
    assert all(len(damaged) == 1 and "shards-00001-of-00002.h5" in damaged[0] for _, damaged, _ in said), said
    assert any("1 chunk of shards-00001-of-00002.h5 from" in source for _, _, mended in said for source in mended), said


def test_one_process_restores_what_two_have_saved(folder: pathlib.Path) -> None:
    shutil.copytree(folder / "host1", folder / "host0", dirs_exist_ok=True)
    restored(1, folder, 4)
    shutil.rmtree(folder / "host0")
    restored(1, folder, 5, "durable")


def test_one_process_without_a_job(tmp_path: pathlib.Path) -> None:
    with swj.TieredManager(tmp_path / "fast", tmp_path / "durable", copies=0, threads=1) as manager:
        manager.save(7, tree_of(7))
        found = manager.restore(target())
        assert found is not None and found.tier == "fast"
        expect(found.value, 7)
        found = manager.restore()
        assert found is not None and np.array_equal(found.value["w"], whole(7)) and found.value["step"] == 7
    with pytest.raises(sw.InvalidArgument, match="closed"):
        manager.save(8, tree_of(8))
    assert np.array_equal(swj.load(tmp_path / "durable/step-00000007")["w"], whole(7))
    with pytest.raises(sw.InvalidArgument, match="copies"):
        swj.TieredManager(tmp_path / "fast", tmp_path / "durable", copies=1)
        plain = manager.restore(names=["all", "w"], transpose={"w": (1, 0)}, resize={"all": "pad:50,-"})
        assert plain is not None and np.array_equal(plain.value["w"], whole(7).T) and not plain.value["all"][48:].any()
        edited = manager.restore({"a": jax.ShapeDtypeStruct((24, 600), "bfloat16"), "b": swj.ANY, "all": np.ones((9, 300), np.float32),
                                  "numpy": np.zeros(4, np.int64)}, names=["w", "all", "numpy"], split={"w": "a,b@0"}, cast={"w": "bf16"},
                                 resize={"all": "slice"}, skip_mismatched=True)
        assert edited is not None and np.array_equal(np.concatenate([edited.value["a"], edited.value["b"]]), whole(7).astype("bfloat16"))
        assert np.array_equal(edited.value["all"], whole(7)[:9, :300] + 0.5) and edited.value["numpy"].tolist() == [0] * 4
        with pytest.raises(sw.InvalidArgument, match="skip_mismatched is True, needed is a target"):
            manager.restore(skip_mismatched=True)
