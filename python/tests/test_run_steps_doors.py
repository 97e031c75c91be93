"""Runs that go back, by Orbax's calls and with tiers: the steps that stay, the latest one, and the warnings."""

import logging
import os
import pathlib
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import shardwise.torch as swt
from processes import free_port, run_ranks


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        logging.getLogger("shardwise").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def state(step: int, rank: int) -> dict[str, Any]:
    return {"w": torch.full((4,), step), "own": swt.PerRank(torch.tensor([rank, step]))}


def train(rank: int, size: int, port: int, folder: str, steps: list[int], host: str, copies: int, keep_fast: int) -> Any:
    """Returns the step that a restart would take, the names in this rank's fast root then, and the warnings."""
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size, init_method=f"tcp://127.0.0.1:{port}")
    heard, fast, durable = Heard(), f"{folder}/{host.format(rank)}", f"{folder}/durable"
    with swt.TieredManager(fast, durable, copies=copies, processes_per_host=1, drain_every=2, keep_fast=keep_fast, threads=1,
                           deadline=60.0, address="127.0.0.1") as manager:
        for step in steps:
            manager.save(step, state(step, rank))
        found = manager.restore(state(0, rank), strict=False)
    assert found is not None
    names = sorted(path.name for path in pathlib.Path(fast).glob("process-*/*"))
    return found.step, int(found.value["w"][0]), found.passed_over, names, heard.lines


@pytest.mark.parametrize("host, copies", [("host{}", 1), ("one", 0), ("host{}", 2)])
def test_a_job_of_fewer_ranks_goes_back_in_both_tiers(tmp_path: pathlib.Path, host: str, copies: int) -> None:
    run_ranks(train, 3, free_port(), str(tmp_path), [58, 59, 60], host, copies, 2)
    if copies:  # the first host is gone, the others have other ranks now
        (tmp_path / "host0").rename(tmp_path / "gone")
        (tmp_path / "host2").rename(tmp_path / "host0")
    size = 2 if copies else 1
    first = run_ranks(train, size, free_port(), str(tmp_path), [1], host, min(copies, size - 1), 2)
    assert [one[:3] for one in first] == [(1, 1, [])] * size
    assert len([line for line in first[0][4] if "step 1 is saved below the steps" in line and "set aside" in line]) == 2
    assert ".aside-step-00000060" in first[0][3]
    more = run_ranks(train, size, free_port(), str(tmp_path), [2, 3, 4], host, min(copies, size - 1), 2)
    assert [one[:3] for one in more] == [(4, 4, [])] * size
    assert all(set(one[3]) == {"step-00000003", "step-00000004"} for one in more)  # no memory is held for the others
    assert all(not one[4] for one in more[1:])


def test_a_fast_tier_that_keeps_all_keeps_what_is_set_aside(tmp_path: pathlib.Path) -> None:
    run_ranks(train, 1, free_port(), str(tmp_path), [59, 60], "one", 0, 0)
    [(step, value, passed_over, names, _)] = run_ranks(train, 1, free_port(), str(tmp_path), [1, 2, 3, 4], "one", 0, 0)
    assert (step, value, passed_over) == (4, 4, [])
    assert {"step-00000059", ".aside-step-00000060", "step-00000001", "step-00000004"} <= set(names)


def test_tiers_that_an_error_ended_are_no_other_job(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = []  # the traceback holds the manager
    for first in (10, 3):
        try:
            with swt.TieredManager(tmp_path / "fast", tmp_path / "durable", copies=0, drain_every=1) as manager:
                manager.save(first, state(first, 0))
                raise ValueError("of the user's")
        except ValueError as error:
            kept.append((error, manager))
    assert not [one for one in caplog.records if "another manager" in one.getMessage()]
    assert not list(tmp_path.glob("**/.writer*")) and (tmp_path / "durable/.aside-step-00000010").exists()


def test_tiers_that_go_back_in_one_process_set_steps_aside(tmp_path: pathlib.Path) -> None:
    fast, durable = tmp_path / "fast", tmp_path / "durable"
    with swt.TieredManager(fast, durable, copies=0, drain_every=1) as manager:
        for step in (10, 20):
            manager.save(step, state(step, 0))
        manager.restore(state(0, 0))
        for file in tmp_path.glob("**/step-00000020/manifest.json"):
            file.unlink()
        found = manager.restore(state(0, 0))
        assert found is not None and found.step == 10
        manager.save(15, state(15, 0))
        found = manager.restore(state(0, 0))
        assert found is not None and found.step == 15
    assert (durable / ".aside-step-00000020").exists() and (fast / "process-00000/.aside-step-00000020").exists()


def test_orbax_words_tell_once_of_steps_that_are_not_saved(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import shardwise.jax.ocp as ocp

    caplog.set_level(logging.WARNING, logger="shardwise")  # saves are logged, too, if a test before has asked for that

    def manager() -> Any:
        return ocp.CheckpointManager(tmp_path, ocp.CheckpointManagerOptions(max_to_keep=2))

    with manager() as m:
        assert [m.save(step, {"w": step}) for step in (59, 60)] == [True, True]
        assert m.save(60, {"w": 0}) is False
    assert not caplog.records
    with manager() as m:
        assert [m.save(step, {"w": step}) for step in (1, 2)] == [False, False]
    [told] = [record.getMessage() for record in caplog.records]
    assert "step 1 is not saved, as step 60 is there" in told and "force=True" in told
    with manager() as m:
        assert m.save(1, {"w": 1}, force=True) and [m.save(step, {"w": step}) for step in (2, 3)] == [True, True]
        m.wait_until_finished()
        assert m.all_steps() == [2, 3, 59, 60] and m.latest_step() == 3
    caplog.clear()
    with manager() as m:  # a restart that saves its step once more has not gone back
        assert int(m.restore(None)["w"]) == 3
        assert m.save(2, {"w": 2}) is False and m.save(4, {"w": 4}) is True
    assert not caplog.records
