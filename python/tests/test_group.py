"""Process groups: after any failure, every rank that can be reached raises the same error in time, which names rank and cause."""

import os
import pathlib
import re
import signal
from typing import Any

import numpy as np
import pytest
from processes import free_port, run_ranks

import shardwise as sw
from shardwise import _stores, group

LONG = 240.0  # a deadline that nothing here waits for


def make(kind: str, rank: int, size: int, where: str) -> group.Group:
    if kind == "files":
        return group.from_files(where, rank, size)
    if kind == "torch":
        import torch.distributed as dist

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=where)
        dist.init_process_group("gloo", rank=rank, world_size=size)
        return group.from_torch()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.distributed.initialize(f"127.0.0.1:{where}", size, rank)
    return group.from_jax()


def outcomes(rank: int, size: int, kind: str, where: str, folder: str, deadline: float) -> list[str]:
    whole = make(kind, rank, size, where)
    said = []
    for case in ("well", "raises", "publishing", "late", "killed"):
        g = whole.duplicate()

        def work() -> bytes:
            if rank == 2 and case == "raises":
                raise OSError(28, "No space left on device")
            if rank == 2 and case == "late":
                while len(os.listdir(folder)) < size - 1:  # until the others have the error
                    pass
            return str(rank).encode()

        def merge(values: list[bytes]) -> bytes:
            if case == "publishing":
                raise OSError(5, "Input/output error")
            return b",".join(values)

        if rank == 2 and case == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            said.append(g.agree(work, merge, deadline if case in ("late", "killed") else LONG, "save of step 100").decode())
        except BaseException as error:
            said.append(f"{type(error).__name__}: {error}")
        if rank != 2 and case == "late":
            pathlib.Path(folder, str(rank)).touch()
    return said


@pytest.mark.parametrize("kind", ["files", "torch", "jax"])
def test_what_goes_wrong_is_the_same_error_everywhere(tmp_path, kind):
    if kind != "files":
        pytest.importorskip(kind, reason=f"needs {kind}, which this environment has not")
    for deadline in (2, 10, 60):
        folder = tmp_path / f"told{deadline}"
        folder.mkdir()
        where = str(tmp_path / f"store{deadline}") if kind == "files" else str(free_port())
        said = run_ranks(outcomes, 3, kind, where, str(folder), deadline, may_die=True)
        assert said[2] is None  # killed
        if not any(re.search("rank 0 of 3 did not come|ranks 1 and 2 of 3", text) for of_rank in said[:2] for text in of_rank):
            break  # else, on a busy machine, another rank was late, too
    assert said[0].pop(2) == "OSError: [Errno 5] Input/output error"  # publishing: as merge raised it
    publishing = said[1].pop(2)
    assert said[0] == said[1]
    well, raises, late, killed = said[0]
    assert well == "0,1,2"
    assert "GroupError" in raises and "rank 2" in raises and "No space left" in raises
    assert "rank 0" in publishing and "Input/output error" in publishing
    for text in (late, killed):
        assert f"rank 2 of 3 did not come within {deadline} s" in text, text


def save_with_faults(rank: int, size: int, folder: str) -> list[str]:
    """Plain numpy processes that save together over a folder."""
    from shardwise._checkpoint.save import Plan, call_of, write_together
    from shardwise._arrays.arrays import Sources

    g = group.from_files(folder + "/store", rank, size)
    whole = np.arange(40.0).reshape(8, 5)
    said = []
    for case in ("well", "existing", "no tensor", "bad tensor", "objects", "again"):
        sources = Sources()
        block = -(-8 // size)
        rows = slice(min(8, rank * block), min(8, (rank + 1) * block))
        part = whole[rows]
        if not (case == "no tensor" and rank == 1):
            dtype = "i64" if case == "bad tensor" and rank == 1 else "f64"
            sources.add("w", dtype, [8, 5], [((rows.start, 0), part)], mesh=f"p={size}", spec="p,-")
        plan = Plan(sources, {"rank": rank if case == "objects" else 0})
        path = f"{folder}/{'well' if case == 'existing' else case}"
        try:
            with call_of(g, path, user=None, codec="zstd", existing="fail", deadline=LONG) as call:
                write_together(call, path, plan, g, list(range(size + 1)))
            said.append("ok")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


@pytest.mark.parametrize("size", [2, 3])
def test_processes_save_one_checkpoint_or_none(tmp_path, size):
    said = run_ranks(save_with_faults, size, str(tmp_path))
    for case, expected in enumerate(["ok", "already there", "was not given tensor", "is f64", "differs between", "ok"]):
        assert all(expected in of_rank[case] for of_rank in said), [of_rank[case] for of_rank in said]
    assert sorted(n for n in os.listdir(tmp_path) if n != "store") == ["again", "well"]
    for name in ("again", "well"):
        assert sw.verify(tmp_path / name)
        np.testing.assert_array_equal(sw.load(tmp_path / name)["w"], np.arange(40.0).reshape(8, 5))
        assert len([n for n in os.listdir(tmp_path / name) if n.startswith("shards")]) == size


def test_a_group_wants_a_rank_of_its_own(tmp_path):
    with pytest.raises(ValueError, match="found rank 3, needed 0 to 1"):
        group.from_files(tmp_path, 3, 2)
    assert group.auto().size == 1 and group.single().agree(lambda: b"a", lambda v: v[0] + b"b", 1, "x") == b"ab"


class Clock:
    """Time that passes in sleep() alone."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("ranks", [2, 1_000, 5_000, 16_384])
def test_all_ranks_together_ask_torch_s_store_at_most_20_000_times_a_second(monkeypatch, ranks):
    dist = pytest.importorskip("torch.distributed", reason="needs torch, which this environment has not")
    asked: list[float] = []
    clock = Clock()

    class Store:
        def check(self, keys: list[str]) -> bool:
            asked.append(clock.now)
            return False

    monkeypatch.setattr(_stores, "time", clock)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    store = group.TorchStore(Store())
    for _ in range(100):  # as a call of a group waits
        assert store.get("key", 1.0) is None
    assert clock.now == pytest.approx(100)
    assert ranks * len(asked) <= 20_000 * 100
    assert max(after - before for before, after in zip(asked, asked[1:])) <= max(0.05, 2 * ranks / 20_000) + 1e-9


def test_a_store_of_jax_that_is_gone_is_told_by_each_function():
    class Client:
        def __getattr__(self, name: str) -> Any:
            def fail(*_: Any) -> None:
                raise RuntimeError("UNAVAILABLE")

            return fail

    store = group.JaxStore(Client())
    for call in (lambda: store.set("key", b""), lambda: store.get("key", 0), lambda: store.get("key", 1)):
        with pytest.raises(sw.GroupError, match="JAX's coordination service: RuntimeError: UNAVAILABLE"):
            call()
    store.delete("key")
