"""on_save_error of the managers: a save that fails with the disk does not end the job, on any rank."""

import contextlib
import logging
import os
import resource

import numpy as np
import pytest

import shardwise as sw
from processes import free_port, run_ranks

NOISE = np.random.default_rng(1).random((64, 4096), dtype="f4")  # 1 MiB


@contextlib.contextmanager
def full_disk(if_so=True, most=1 << 16):
    """No file of this process may grow beyond 64 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if if_so:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def manager_of(door, *arguments, **options):
    if door == "torch":
        pytest.importorskip("torch", reason="needs torch, which this environment has not")
    if door == "jax":
        pytest.importorskip("jax", reason="needs jax, which this environment has not")
    module = sw if door == "numpy" else __import__(f"shardwise.{door}", fromlist=["CheckpointManager"])
    return module.CheckpointManager(*arguments, **options)


@pytest.fixture(params=["numpy", "torch", "jax"])
def door(request):
    return request.param


def saved(manager, step, tensors, is_async):
    return manager.save_async(step, tensors).result() if is_async else manager.save(step, tensors)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def state(step):
    return {"w": NOISE + step}


def test_a_job_goes_on(door, tmp_path, caplog):
    with manager_of(door, tmp_path, keep_last=2, save_every=0, on_save_error="warn") as manager:
        assert manager.save(1, state(1)).error == "" and manager.stats() == sw.ManagerStats()
        for step, is_async in ((2, False), (3, True)):
            with full_disk():
                stats = saved(manager, step, state(step), is_async)
            assert f"step-{step:08d}" in stats.error and "File too large" in stats.error and stats.path == ""
            assert stats.failed_saves == step - 1 and not stats.skipped
            assert manager.stats() == sw.ManagerStats(step - 1, step - 1, step, stats.error)
            if is_async:
                manager.wait()
            count = f"failed saves in a row: {step - 1} of at most 3"
            assert warnings_of(caplog) == [f"{stats.error}; the job goes on: {count}"]
            caplog.clear()
            assert manager.should_save(7) and not manager.should_save(7)
        stats = manager.save_async(4, state(4)).result()
        assert stats.error == "" and stats.failed_saves == 2
        assert manager.stats() == sw.ManagerStats(2, 0, 3, manager.stats().error)
        assert '"failed_saves":2' in (tmp_path / "stats-step-00000004.json").read_text()
        manager.save(5, state(5))
        assert manager.steps() == [4, 5] and not manager.should_save(7)
        np.testing.assert_array_equal(sw.load(tmp_path / "step-00000005")["w"], NOISE + 5)
    assert warnings_of(caplog) == []
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".step")]


def test_too_many_in_a_row_are_raised(door, tmp_path):
    with manager_of(door, tmp_path, on_save_error="warn", most_failed_saves=1) as manager:
        for step in (1, 4):
            with full_disk():
                assert manager.save(step, state(step)).error
                with pytest.raises(sw.IOFailed, match="File too large"):
                    manager.save(step + 1, state(step))
                with pytest.raises(sw.IOFailed, match="File too large"):
                    manager.save_async(step + 1, state(step)).result()
                with contextlib.suppress(sw.IOFailed):
                    manager.wait()
            assert manager.save(step + 2, state(step)).failed_saves == 3
        assert manager.steps() == [3, 6]


def test_a_root_that_is_gone_is_a_failed_save(door, tmp_path):
    root = tmp_path / "root"
    manager = manager_of(door, root, save_every=0, on_save_error="warn", increments=False)
    manager.save(1, state(1))
    os.rename(root, tmp_path / "away")
    root.write_text("not a folder")
    assert manager.save(2, state(2)).error and manager.save_async(3, state(3)).result().error
    assert manager.stats().failed_in_a_row == 2 and manager.should_save(7)
    os.unlink(root)
    os.rename(tmp_path / "away", root)
    assert manager.save(4, state(4)).error == "" and manager.steps() == [1, 4]
    manager.close()


def test_other_errors_are_raised(door, tmp_path, caplog):
    def stop(done, total):
        raise KeyboardInterrupt

    with manager_of(door, tmp_path, save_every=0, on_save_error="warn") as manager:
        manager.save(1, state(1))
        with pytest.raises(sw.AlreadyExists):
            manager.save(1, state(1))
        with pytest.raises(sw.InvalidArgument):
            manager.save(-1, state(1))
        with pytest.raises(TypeError):
            manager.save(2, {"w": object()})
        with pytest.raises(KeyboardInterrupt):
            manager.save(2, state(2), progress=stop)
        assert manager.stats() == sw.ManagerStats() and not manager.should_save(7)
        assert warnings_of(caplog) == []
    for options in ({"on_save_error": "ignore"}, {"most_failed_saves": 0}):
        with pytest.raises(sw.InvalidArgument, match=next(iter(options))):
            manager_of(door, tmp_path, **options)


def test_by_default_it_is_raised(door, tmp_path):
    with manager_of(door, tmp_path, save_every=0) as manager:
        with full_disk(), pytest.raises(sw.IOFailed, match="File too large"):
            manager.save(1, state(1))
        assert manager.stats() == sw.ManagerStats() and not manager.should_save(7)


def begin_torch(rank, size, port):
    import torch

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size)


def with_a_full_disk(rank, size, port, root):
    """The disk of each rank fails by turns."""
    import torch
    from torch.distributed.tensor import DTensor, Shard

    import shardwise.torch as swt

    begin_torch(rank, size, port)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (size,))

    def cut(step):
        return {"w": DTensor.from_local(torch.from_numpy(NOISE + step), mesh, [Shard(0)], run_check=False)}

    said = []
    with swt.CheckpointManager(root, save_every=0, keep_last=2, on_save_error="warn", most_failed_saves=2,
                               deadline=60) as manager:
        step = 0
        for full in range(size):
            for is_async in (False, True):
                step += 1
                with full_disk(rank == full):
                    stats = saved(manager, step, cut(step), is_async)
                asked = manager.should_save(7), manager.should_save(7)
                said.append((full, stats.error, *asked, manager.stats()))
            with full_disk(rank == full):
                with pytest.raises(sw.IOFailed, match="File too large"):
                    manager.save(step + 1, cut(step))
            step += 2
            assert manager.save_async(step, cut(step)).result().failed_saves == 3
        before = manager.stats()

        def stop(done, total):
            if rank == 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt if rank == 1 else sw.GroupError):
            manager.save(step + 1, cut(step), progress=stop)
        with pytest.raises(sw.InvalidArgument if rank == 2 else sw.Error):
            manager.save(step + 1, cut(step) | ({"x": 1} if rank == 2 else {"x": 2}))
        assert manager.stats() == before and not manager.should_save(7)
        assert manager.save(step + 1, cut(step)).error == ""
        steps = manager.steps()
    other = swt.CheckpointManager(root, on_save_error="warn" if rank else "raise", deadline=60)
    with pytest.raises(sw.Error, match="on_save_error"):
        other.save(step + 2, cut(step))
    return said, steps


def test_all_ranks_agree(tmp_path):
    pytest.importorskip("torch", reason="needs torch, which this environment has not")
    results = run_ranks(with_a_full_disk, 4, free_port(), str(tmp_path))
    assert results == [results[0]] * 4
    said, steps = results[0]
    assert steps == [16, 17]
    for number, (full, error, first, second, stats) in enumerate(said):
        assert f"rank {full}: " in error and "File too large" in error
        assert (first, second) == (True, False)
        assert (stats.failed_in_a_row, stats.error) == (1 + number % 2, error)


def dying(rank, size, port, root):
    import shardwise.torch as swt

    begin_torch(rank, size, port)
    manager = swt.CheckpointManager(root, on_save_error="warn", deadline=3)
    manager.save(1, state(1))

    def die(done, total):
        if rank == 1:
            os._exit(1)

    try:
        with full_disk(rank == 2):
            manager.save(2, state(2) | {"x": swt.PerRank(NOISE)}, progress=die)
    except (sw.GroupError, sw.IOFailed) as error:
        return type(error).__name__, manager.stats().failed_saves
    return "nothing was raised"


def test_a_dead_rank_is_not_gone_on_without(tmp_path):
    pytest.importorskip("torch", reason="needs torch, which this environment has not")
    said = run_ranks(dying, 3, free_port(), str(tmp_path), may_die=True)
    assert said == [("GroupError", 0), None, ("GroupError", 0)]


def in_tiers(rank, size, port, folder):
    import torch

    import shardwise.torch as swt

    begin_torch(rank, size, port)
    def tiers():
        return swt.TieredManager(f"{folder}/{rank}/fast", f"{folder}/durable", copies=0, drain_every=1,
                                 on_save_error="warn", deadline=60)

    def mine(step):
        return {"w": swt.PerRank(torch.from_numpy(NOISE + 10 * rank + step))}

    said = []
    with tiers() as manager:
        manager.save(1, mine(1))
    with tiers() as manager:
        for step in range(2, 5):
            with full_disk(rank == 1 and step < 4):
                stats = saved(manager, step, mine(step), step == 3)
            said.append((stats.error, stats.failed_saves))
        failed = manager.stats()
        found = manager.restore({"w": swt.PerRank(torch.zeros(64, 4096))})
    return said, failed, found.step, sw.CheckpointManager(f"{folder}/durable").steps()


def test_tiers_go_on(tmp_path):
    pytest.importorskip("torch", reason="needs torch, which this environment has not")
    first, second = run_ranks(in_tiers, 2, free_port(), str(tmp_path))
    assert first == second
    said, failed, step, durable = first
    assert [count for _, count in said] == [1, 2, 2] and step == 4 and durable == [1, 4]
    assert said[0][0].startswith("rank 1: save step 2") and said[2][0] == ""
    assert (failed.failed_saves, failed.failed_in_a_row, failed.failed_step) == (2, 0, 3)
