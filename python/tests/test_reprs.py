"""Shows the package's objects as a notebook does."""

import threading

import numpy as np
import pytest

import shardwise as sw


def test_objects_say_what_they_are(tmp_path):
    with sw.CheckpointManager(tmp_path / "run") as manager:
        assert repr(manager) == f"<shardwise.CheckpointManager {str(tmp_path / 'run')!r}>"
        may_go_on = threading.Event()
        manager._queue.add(sw.PendingSave(1, lambda progress: may_go_on.wait() and None), None)
        assert repr(manager) == f"<shardwise.CheckpointManager {str(tmp_path / 'run')!r}, saving>"
        assert repr(manager._queue._saves[0]) == "<shardwise.PendingSave: save of step 1, under way>"
        may_go_on.set()
        pending = manager.save_async(2, {"w": np.ones(3)})
        assert pending.result() and repr(pending) == "<shardwise.PendingSave: save of step 2, done>"
        bad = manager.save_async(2, {"w": np.ones(3)}, existing="skip", user=None)
        assert bad.exception() is None
        failed = sw.PendingSave(3, lambda progress: 1 / 0)
        assert failed.exception() is not None and repr(failed) == "<shardwise.PendingSave: save of step 3, failed>"
    assert repr(sw.group.single()) == "<shardwise.group.Group: rank 0 of 1>"
    mesh = sw.Mesh("x=2")
    plan = sw.TransferPlan(sw.Sharding(mesh, "x"), sw.Sharding(mesh, "-"), [8])
    assert repr(plan) == f"<shardwise.TransferPlan: {plan.classify()}, {len(plan.copies)} copies, {plan.moved_elements} elements move>"
    loader = sw.Loader({"x": np.arange(8)}, batch_size=2, epochs=3)
    assert repr(loader) == f"<shardwise.Loader of {loader.source!r}: batches of 2 rows on {loader.mesh!r}, 3 epochs>"
    assert next(loader)._ipython_key_completions_() == ["x"]


def test_managers_of_jobs_say_which_process_they_are_of(tmp_path):
    pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    run, fast = str(tmp_path / "run"), str(tmp_path / "fast")
    with swt.CheckpointManager(run) as manager:
        assert repr(manager) == f"<shardwise.torch.CheckpointManager {run!r}, rank 0 of 1>"
    with swt.TieredManager(fast, run, copies=0) as tiers:
        assert repr(tiers) == f"<shardwise.torch.TieredManager {fast!r}, {run!r}, rank 0 of 1>"
    loader = swt.Loader({"x": np.arange(8)}, batch_size=2)
    assert repr(loader).startswith("<shardwise.torch.Loader of Source(8 records of x: int64")


def test_a_checkpoint_is_a_table_in_a_notebook(tmp_path):
    sw.save(tmp_path / "a", {"<w>": np.ones((2, 3), np.float32), **{f"t{i:03}": np.ones(1, np.int8) for i in range(120)}})
    with sw.open(tmp_path / "a") as checkpoint:
        text = checkpoint._repr_html_()
    assert "<tr><th>name</th><th>dtype</th><th>shape</th><th>spec</th><th>bytes</th></tr>" in text
    assert "<tr><td>&lt;w&gt;</td><td>f32</td><td>[2, 3]</td><td>" in text and "<td>24</td></tr>" in text
    assert text.count("<tr>") == 101 and text.endswith("<p>and 21 more</p>")
