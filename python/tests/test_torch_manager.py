"""shardwise.torch.CheckpointManager: policies of a job of one and of several processes; rng()."""

import itertools
import os
import random
import select
import signal
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import shardwise as sw
import shardwise.torch as swt
from processes import free_port, run_ranks
from test_save_errors import full_disk
from stored_stats import check_stats, names


def begin(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
    return torch.distributed.device_mesh.init_device_mesh("cpu", (size,))


def cut(mesh, value):
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(torch.full((100, 10), float(value)), mesh, [Shard(0)], run_check=False)


def damage(path, writer, writers):
    file = path / f"shards-{writer:05d}-of-{writers:05d}.h5"
    data = bytearray(file.read_bytes())
    data[4096] ^= 1
    file.write_bytes(data)


def test_a_run_and_its_restart(tmp_path):
    state = {"model": torch.nn.Linear(4, 3), "rng": swt.rng(), "epoch": 0}
    with swt.CheckpointManager(tmp_path, keep_last=1, keep_every=4, best=("loss", "min", 1), save_every=2) as manager:
        assert manager.restore(state) is None and manager.latest_step() is None
        for step in range(1, 8):
            state["epoch"] = step
            if manager.should_save(step):
                manager.save_async(step, state, metrics={"loss": abs(step - 2)})
        manager.wait()
        assert manager.steps() == [2, 4, 6] and manager.best() == 2
        manager.pin(2, "good")
        manager.save(9, state, metrics={"loss": 0.0})
        assert manager.steps() == [2, 4, 9] and manager.pinned() == {"good": 2}
        with pytest.raises(sw.AlreadyExists):
            manager.save(9, state)
        manager.save(9, state, existing="replace")
        draws = torch.rand(3), np.random.rand(3), random.random()
        found = manager.restore(state)
        assert found.step == 9 and found.value["epoch"] == 7 and found.rejected == []
        again = torch.rand(3), np.random.rand(3), random.random()
        assert torch.equal(draws[0], again[0]) and (draws[1] == again[1]).all() and draws[2] == again[2]
        assert manager.restore(state, 4).value["epoch"] == 4
        grown = {"net": torch.nn.Linear(4, 5), "rng": swt.rng(), "epoch": 0}
        manager.restore(grown, 4, rename={"model.*": "net.*"}, resize={"net.*": "pad"})
        assert torch.equal(grown["net"].weight[:3], state["model"].weight)
        with pytest.raises(TypeError, match="unknown option 'kast', did you mean cast="):
            manager.restore(grown, kast="bf16")
        manager.unpin("good")
        manager.remove(2)
        assert manager.steps() == [4, 9]
        with pytest.raises(sw.InvalidArgument, match="save step -1: needed is an integer, 0 or more"):
            manager.save(-1, state)
        with pytest.raises(sw.InvalidArgument, match="needed also 'loss'"):
            manager.save(10, state, metrics={"los": 1})
    with sw.CheckpointManager(tmp_path) as other:  # the same folder
        assert other.steps() == [4, 9]


def test_a_save_that_the_process_does_not_live_to_see_is_not_begun(tmp_path):
    state = {"w": torch.zeros(1000)}
    with swt.CheckpointManager(tmp_path, preemption_signals=[signal.SIGUSR2], preemption_grace=1e-3) as manager:
        manager.save(1, state)
        os.kill(os.getpid(), signal.SIGUSR2)
        while manager._manager.time_left() > 0:
            pass
        with pytest.raises(sw.Cancelled, match="save step 2: the process ends in 0.0 s, needed are about"):
            manager.save(2, state)
        assert manager.steps() == [1] and not list(tmp_path.glob(".step*"))


def test_damaged_steps_are_replaced_once(tmp_path):
    state = {"w": torch.zeros(1000)}
    with swt.CheckpointManager(tmp_path) as manager:
        for step in (1, 2, 3):
            manager.save(step, state)
        damage(tmp_path / "step-00000002", 0, 1)
        (tmp_path / "step-00000003" / "manifest.json").unlink()
        with pytest.raises(sw.Corrupt, match="restore .*step-00000002: rank 0: "):
            manager.restore(state, 2)
        assert manager.restore(state).step == 1
        for step in (2, 3):
            manager.save(step, state)
            with pytest.raises(sw.AlreadyExists):
                manager.save(step, state)


def of_ranks(rank, size, port, folder):
    mesh = begin(rank, size, port)
    heard = []
    with swt.CheckpointManager(folder, keep_last=2, save_every=0, preemption_signals=[signal.SIGUSR2]) as manager:
        for step in range(1, 5):
            manager.save(step, {"w": cut(mesh, step), "own": swt.PerRank(rank), "rng": swt.rng()}, metrics={"loss": rank})
        for step in range(5, 9):
            if (rank, step) == (1, 6):
                manager.request_save()
            if (rank, step) == (0, 8):
                os.kill(os.getpid(), signal.SIGUSR2)
            heard.append(manager.should_save(step))
        heard.append(manager.reached_preemption())
        return manager.steps(), heard


def restored(rank, size, port, folder):
    mesh = begin(rank, size, port)
    with swt.CheckpointManager(folder) as manager:
        found = manager.restore({"w": cut(mesh, 0), "own": swt.PerRank(None), "rng": swt.rng()})
        return found.step, found.rejected, found.value["w"].to_local().unique().tolist(), found.value["own"]


def test_ranks_agree(tmp_path):
    for steps, heard in run_ranks(of_ranks, 2, free_port(), str(tmp_path)):
        assert steps == [3, 4] and heard == [False, True, False, True, True]
    damage(tmp_path / "step-00000004", 1, 2)  # only rank 1 reads it
    for rank, (step, rejected, values, own) in enumerate(run_ranks(restored, 2, free_port(), str(tmp_path))):
        assert step == 3 and values == [3.0] and own == rank
        assert len(rejected) == 1 and rejected[0][0].endswith("step-00000004") and "rank 1: " in rejected[0][1]
    with sw.open(tmp_path / "step-00000003") as checkpoint:
        assert checkpoint.metrics == {"loss": 0.0}


def replacing(rank, size, port, folder):
    mesh = begin(rank, size, port)
    with swt.CheckpointManager(folder, when_busy="replace") as manager:
        may_go_on = threading.Event()
        manager._queue.add(sw.PendingSave(1, lambda progress: may_go_on.wait() and None), None)
        second, third, fourth = (manager.save_async(step, {"w": cut(mesh, step)}) for step in (2, 3, 4))
        assert second.result().skipped and third.result().skipped and not fourth.done()
        may_go_on.set()
        assert not fourth.result().skipped
        more = [manager.save_async(step, {"w": cut(mesh, step)}) for step in range(5, 15)]
        manager.wait()
        skipped = [pending.result().skipped for pending in more]
        assert not skipped[-1] and manager.steps() == [4, *(step for step, out in zip(range(5, 15), skipped) if not out)]
        filled = {"w": cut(mesh, 0)}
        assert manager.restore(filled, 4).step == 4 and filled["w"].to_local().unique().tolist() == [4.0]
        return skipped


def test_which_save_is_replaced_is_rank_0s_to_say(tmp_path):
    first, second = run_ranks(replacing, 2, free_port(), str(tmp_path))
    assert first == second


def test_a_save_takes_the_place_of_the_one_that_waits(tmp_path):
    w = torch.zeros(1000)
    with swt.CheckpointManager(tmp_path, when_busy="replace") as manager:
        may_go_on = threading.Event()
        manager._queue.add(sw.PendingSave(1, lambda progress: may_go_on.wait() and None), None)
        second = manager.save_async(2, {"w": w})
        third = manager.save_async(3, {"w": w.add_(3)})
        w += 1
        assert second.result().skipped and manager.is_saving()
        may_go_on.set()
        assert not third.result().skipped and manager.steps() == [3] and not manager.is_saving()
        assert manager.restore({"w": w}).step == 3 and w.unique().tolist() == [3.0]
    with pytest.raises(sw.InvalidArgument, match="when_busy is 'drop', needed is 'wait' or 'skip' or 'replace'"):
        swt.CheckpointManager(tmp_path, when_busy="drop")


def failing(rank, size, port, folder):
    mesh = begin(rank, size, port)
    with swt.CheckpointManager(folder, best=("loss", "min", 1)) as manager:
        try:  # only rank 0's metrics count
            manager.save(0, {"w": cut(mesh, 1)}, metrics={"los": 1} if rank == 0 else None)
        except sw.Error as error:
            assert "needed also 'loss'" in str(error)
        else:
            raise AssertionError("nobody has noticed")
        manager.save(1, {"w": cut(mesh, 1)})
        try:
            manager.restore({"w": cut(mesh, 0)} if rank else {"v": cut(mesh, 0)})
        except sw.Error as error:
            return type(error).__name__, str(error)


def test_a_restore_that_fails_on_one_rank_fails_on_all(tmp_path):
    (first, said), (second, heard) = run_ranks(failing, 2, free_port(), str(tmp_path))
    assert first == second == "InvalidArgument" and "'v'" in said.replace('"', "'") and "rank 0" in heard


def one_cannot(rank, size, port, folder):
    mesh = begin(rank, size, port)
    said = []
    with swt.CheckpointManager(folder, deadline=60) as manager:
        for step in (1, 2, 3):
            try:
                manager.save_async(step, {"w": cut(mesh, step), "bad": object() if (rank, step) == (1, 1) else 0})
                said.append("begun")
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}")
    return said, manager.steps()


def test_ranks_stay_in_step_after_one_could_not_take_part(tmp_path):
    (first, steps), (second, _) = run_ranks(one_cannot, 2, free_port(), str(tmp_path))
    bad = "1 of 1 objects: 'bad': builtins.object cannot be stored"
    assert first[::2] == ["begun", "begun"] and bad in first[1] and "rank 1" in first[1]
    assert bad in second[0] and bad in second[1] and second[2] == "begun" and steps == [3]


def frozen_ranks(rank, size, port, folder):
    mesh = begin(rank, size, port)
    frozen = torch.from_numpy(np.random.default_rng(1).random(1 << 18))
    with swt.CheckpointManager(folder, keep_last=1) as manager:
        for step in (1, 2, 3):
            stats = manager.save(step, {"frozen": frozen, "w": cut(mesh, step)})
            assert stats.unchanged_bytes == (0 if step == 1 else frozen.numel() * 8)
        filled = {"frozen": torch.zeros_like(frozen), "w": cut(mesh, 0)}
        assert manager.restore(filled).step == 3 and torch.equal(filled["frozen"], frozen)


def test_a_step_saved_after_going_back_stays_until_the_next_save(tmp_path):
    for kind in (sw.CheckpointManager, swt.CheckpointManager):
        with kind(tmp_path / kind.__module__, keep_last=1, best=("loss", "min", 1)) as manager:
            for step in (8, 9):
                manager.save(step, {"w": torch.zeros(4).numpy()}, metrics={"loss": step})
            manager.save(3, {"w": torch.ones(4).numpy()}, metrics={"loss": 10})
            assert manager.steps() == [3, 8, 9]
            manager.save(4, {"w": torch.ones(4).numpy()})
            assert manager.steps() == [4, 8, 9]


def test_frozen_weights_are_not_written_again(tmp_path):
    run_ranks(frozen_ranks, 2, free_port(), tmp_path)
    assert names(tmp_path) == ["stats-step-00000003.json", "step-00000003"]


class AfterCommit:
    """The group that saves, in whose calls a rank does something before the step that follows the commit."""

    STEP = 4  # after those of torch, begin, and write with publish

    def __init__(self, group, act):
        self.group, self.act, self.calls = group, act, 0

    def __getattr__(self, name):
        return getattr(self.group, name)

    def call(self, *what):
        self.calls += 1
        call, number, steps = self.group.call(*what), self.calls, itertools.count(1)
        agree = call.agree

        def acted(work, merge):
            return agree(*self.act(number, work, merge) if next(steps) == self.STEP else (work, merge))

        call.agree = acted
        return call


def with_parity(rank, size, port, folder):
    mesh = begin(rank, size, port)
    frozen = torch.from_numpy(np.random.default_rng(1).random(1 << 18))

    def state(step):
        return {"frozen": frozen, "w": cut(mesh, step)}

    with swt.CheckpointManager(folder, parity_blocks=2, deadline=60) as manager:
        said = [manager.save(1, state(1)), manager.save_async(2, state(2)).result()]

        def on_a_full_disk(number, work, merge):
            def parity():
                with full_disk(rank == 1, most=0):
                    return work()
            return parity, merge

        manager._saves = AfterCommit(manager._saves, on_a_full_disk)
        said.append(manager.save(3, state(3)))
    with swt.CheckpointManager(folder, parity_blocks=rank, deadline=60) as manager:
        with pytest.raises(sw.Error, match="parity_blocks"):
            manager.save(4, state(4))
        return [(stats.parity_bytes, stats.cleanup_error) for stats in said], manager.steps()


def test_each_rank_writes_the_parity_of_its_file(tmp_path):
    first, second = run_ranks(with_parity, 2, free_port(), str(tmp_path))
    assert first == second
    said, steps = first
    assert steps == [1, 2, 3] and all(size > 0 and problem == "" for size, problem in said[:2])
    assert said[2][0] > 0 and said[2][1].startswith("rank 1: ") and "File too large" in said[2][1]
    for step in (1, 2):
        path = tmp_path / f"step-{step:08d}"
        names = {file.name for file in path.iterdir() if file.name.endswith(".parity")}
        assert {f"shards-{writer:05d}-of-00002.h5.parity" for writer in range(2)} <= names
        report = sw.verify(path)
        assert report.ok and report.parity_blocks == 2 and report.parity_files == len(names)
    path = tmp_path / "step-00000002"
    good = {file.name: file.read_bytes() for file in path.iterdir()}
    for writer in range(2):
        damage(path, writer, 2)
    assert not sw.verify(path) and sw.repair(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == good
    names = {file.name for file in (tmp_path / "step-00000003").iterdir()}
    assert "shards-00000-of-00002.h5.parity" in names and "shards-00001-of-00002.h5.parity" not in names


def test_parity_of_one_process(tmp_path):
    with swt.CheckpointManager(tmp_path, parity_blocks=1) as manager:
        assert manager.save(1, {"w": torch.zeros(1000)}).parity_bytes > 0
    assert sw.verify(tmp_path / "step-00000001").parity_blocks == 1
    with pytest.raises(sw.InvalidArgument, match="found 128 parity blocks, needed are 1 to 127"):
        swt.CheckpointManager(tmp_path, parity_blocks=128)


def test_what_a_save_did_is_kept_beside_its_step(tmp_path):
    state = {"w": torch.rand(1 << 20), "n": np.zeros(1000), "model": torch.nn.Linear(3, 2)}
    with swt.CheckpointManager(tmp_path, write_stats=False) as manager:
        manager.save(1, state)
    assert names(tmp_path) == ["step-00000001"]
    with swt.CheckpointManager(tmp_path, keep_last=2, parity_blocks=1) as manager:
        whole = manager.save(2, state)
        check_stats(tmp_path, 2, whole)
        assert whole.parity_bytes > 0 and whole.blocked_seconds >= whole.seconds
        begun = time.monotonic()
        pending = manager.save_async(3, state)
        waited = time.monotonic() - begun
        later = pending.result()
        check_stats(tmp_path, 3, later)
        assert later.blocked_seconds <= waited and later.unchanged_bytes == 4 << 20
        assert later.memory_bytes == whole.memory_bytes + later.logical_bytes
        (tmp_path / "stats-step-00000004.json").write_text("mine")
        assert "stats-step-00000004.json" in manager.save(4, state).cleanup_error
        assert [name for name in names(tmp_path) if not name.startswith(".writer.")] == [  # the manager's lease
            "stats-step-00000003.json", "stats-step-00000004.json", "step-00000003", "step-00000004"]
        check_stats(tmp_path, 3, later)
        manager.remove(3)
        assert [name for name in names(tmp_path) if not name.startswith(".writer.")] == ["stats-step-00000004.json", "step-00000004"]
        assert (tmp_path / "stats-step-00000004.json").read_text() == "mine"


def telling(rank, size, port, folder):
    mesh = begin(rank, size, port)
    with swt.CheckpointManager(folder, keep_last=1) as manager:
        fifo = os.open(folder + ".went_on", os.O_RDWR)

        def late(number, work, merge):
            """Lets the other rank go on, if it can, before rank 0 removes superseded steps."""
            def merged(said):
                select.select([fifo], [], [], 0.3)  # nothing comes, as the other rank is still in its save
                return merge(said)
            return work, merged

        manager._saves = AfterCommit(manager._saves, late)
        said = [manager.save(1, {"w": cut(mesh, 1)}), manager.save_async(2, {"w": cut(mesh, 2)}).result()]
        assert manager.steps() == [2]
        os.write(fifo, b"1")
        return said


def test_rank_0_keeps_what_all_ranks_saved(tmp_path):
    os.mkfifo(str(tmp_path) + ".went_on")
    (_, first), (_, second) = run_ranks(telling, 2, free_port(), str(tmp_path))
    assert names(tmp_path) == ["stats-step-00000002.json", "step-00000002"]
    check_stats(tmp_path, 2, first)
    assert first.logical_bytes == second.logical_bytes == 2 * 100 * 10 * 4 and second.blocked_seconds > 0


def ends_second(number, work, merge):
    if number == 2:
        raise RuntimeError("the rank ends")
    return work, merge


def ending(rank, size, port, folder):
    mesh = begin(rank, size, port)
    with swt.CheckpointManager(folder, keep_last=1) as manager:
        if rank == 1:
            manager._saves = AfterCommit(manager._saves, ends_second)
        manager.save(1, {"w": cut(mesh, 1)})
        if rank == 1:
            with pytest.raises(RuntimeError, match="the rank ends"):
                manager.save(2, {"w": cut(mesh, 2)})
            return None
        return manager.save(2, {"w": cut(mesh, 2)}), manager.steps()


def test_a_rank_that_ends_after_the_commit_takes_no_step_away(tmp_path):
    (stats, steps), _ = run_ranks(ending, 2, free_port(), str(tmp_path))
    assert steps == [2] and names(tmp_path) == ["stats-step-00000002.json", "step-00000002"]
    assert stats.cleanup_error.startswith("it is committed; what it supersedes may still be seen: ") and "the rank ends" in stats.cleanup_error
    check_stats(tmp_path, 2, stats)
