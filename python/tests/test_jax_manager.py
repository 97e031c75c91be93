"""shardwise.jax's manager, in one process of 8 CPU devices."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")
pytest.importorskip("optax", reason="needs optax, which this environment has not")

import jax
import jax.numpy as jnp
import numpy as np

import shardwise as sw
import shardwise.jax as swj
from stored_stats import check_stats, names


def tree(step: int) -> dict[str, Any]:
    return {"w": jnp.full(3, step), "n": np.full(2, step), "step": step}


def save_all(m: swj.CheckpointManager, steps: Any, **more: Any) -> list[int]:
    """Makes a manager with the policies."""
    saved = [step for step in steps if m.should_save(step) and m.save_async(step, tree(step), **more)]
    m.wait()
    return saved


def test_a_run_and_its_restart(tmp_path):
    with swj.CheckpointManager(tmp_path, keep_last=1, keep_every=4, best=("loss", "min", 1), save_every=2) as m:
        assert m.restore() is None and m.latest_step() is None and m.steps() == [] and m.best_metric == "loss"
        for step in range(1, 8):
            if m.should_save(step):
                m.save_async(step, tree(step), metrics={"loss": abs(step - 2)})
        m.wait()
        assert m.steps() == [2, 4, 6] and m.best() == 2
        m.pin(2, "good")
        assert m.save(9, tree(9), metrics={"loss": np.float32(0)}, user={"lr": 1}).path == str(tmp_path / "step-00000009")
        assert m.steps() == [2, 4, 9] and m.pinned() == {"good": 2}
        with pytest.raises(sw.AlreadyExists):
            m.save(9, tree(9))
        m.save(9, tree(10), existing="replace")
        found = m.restore(tree(0))
        assert found.step == 9 and found.value["step"] == 10 and found.rejected == [] and isinstance(found.value["w"], jax.Array)
        assert m.restore(step=4).value["w"].tolist() == [4] * 3 and m.restore({"step": 0}, 4, strict=False).value == {"step": 4}
        with pytest.raises(sw.InvalidArgument, match="remove step 2 of .*: it is pinned as \"good\""):
            m.remove(2)
        wider = {"w": jnp.full(5, 7), "n": np.zeros(1, int), "at": 0}
        got = m.restore(wider, 4, rename={"step": "at"}, resize={"w": "pad"}, skip_mismatched=True).value
        assert got["w"].tolist() == [4, 4, 4, 7, 7] and got["n"].tolist() == [0] and got["at"] == 4
        m.unpin("good")
        m.remove(2)
        assert m.steps() == [4, 9]
        for ask in (lambda: m.remove(2), lambda: m.restore(step=2), lambda: m.pin(7, "no")):
            with pytest.raises(KeyError):
                ask()
        with pytest.raises(sw.InvalidArgument, match="save step -1: needed is an integer, 0 or more"):
            m.save(-1, tree(1))
        with pytest.raises(sw.InvalidArgument, match="needed also 'loss'"):
            m.save(10, tree(1), metrics={"los": 1})
    with sw.CheckpointManager(tmp_path) as ours:  # the same folder, the same steps
        assert ours.steps() == [4, 9]


def test_policies_are_those_of_all_managers(tmp_path):
    with swj.CheckpointManager(tmp_path, save_every=0, keep_interval=3600, keep_last=1) as m:
        assert save_all(m, range(3)) == []
        m.request_save()
        assert save_all(m, range(3, 5)) == [3] and m.time_left() is None
        for step in (4, 5):
            m.save(step, tree(step))
        assert m.steps() == [3, 5]  # the oldest of the hour, and the newest
    for wrong, text in (
            ({"max_to_keep": 3}, "checkpoint manager: found the unknown option 'max_to_keep', needed keep_last="),
            ({"keep_lst": 3}, "checkpoint manager: found the unknown option 'keep_lst', did you mean keep_last=?"),
            ({"options": None}, "checkpoint manager: found the unknown option 'options', needed the options themselves, as "
                                "keep_last= and save_every= (shardwise.jax.ocp has Orbax's)")):
        for kind in (swj.CheckpointManager, sw.CheckpointManager):
            with pytest.raises(TypeError) as caught:
                kind(tmp_path, **wrong)
            assert str(caught.value) == text


def test_a_signal_asks_for_a_last_save(tmp_path):
    with swj.CheckpointManager(tmp_path, save_every=0, preemption_signals=[signal.SIGUSR2], preemption_grace=3600) as m:
        assert not m.should_save(1) and not m.reached_preemption()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert m.should_save(2) and m.reached_preemption() and 3000 < m.time_left() <= 3600
        m.save(2, tree(2))
    assert m.steps() == [2]


def test_a_save_that_the_process_does_not_live_to_see_is_not_begun(tmp_path):
    with swj.CheckpointManager(tmp_path, preemption_signals=[signal.SIGUSR2], preemption_grace=1e-3) as m:
        m.save(1, tree(1))
        os.kill(os.getpid(), signal.SIGUSR2)
        while m.time_left() > 0:
            pass
        for save in (lambda: m.save(2, tree(2)), lambda: m.save_async(2, tree(2)).result()):
            with pytest.raises(sw.Cancelled, match="save step 2: the process ends in 0.0 s, needed are about"):
                save()
        assert m.steps() == [1] and not list(tmp_path.glob(".step*"))


def test_a_save_under_way_is_left_alone_or_followed(tmp_path):
    for when_busy, skipped, steps in (("skip", [True, True], []), ("replace", [True, False], [3])):
        with swj.CheckpointManager(tmp_path / when_busy, when_busy=when_busy) as m:
            may_go_on, w = threading.Event(), np.zeros(2)
            m._queue.add(sw.PendingSave(1, lambda progress: may_go_on.wait() and None), None)
            pending = [m.save_async(step, {"w": w}) for step in (2, 3)]
            assert m.is_saving()
            w += 1
            may_go_on.set()
            m.wait()
            assert [one.result().skipped for one in pending] == skipped and m.steps() == steps
            assert not m.save_async(4, {"w": w}).result().skipped
            assert not steps or m.restore(step=3).value["w"].tolist() == [0, 0]
    with pytest.raises(sw.InvalidArgument, match="when_busy is 'drop', needed is 'wait' or 'skip' or 'replace'"):
        swj.CheckpointManager(tmp_path, when_busy="drop")


def test_what_readers_have_open_stays(tmp_path):
    with swj.CheckpointManager(tmp_path, keep_last=1) as m:
        save_all(m, [0])
        with sw.open(tmp_path / "step-00000000") as reader:
            save_all(m, [1, 2])
            assert m.steps() == [0, 2] and reader["w"][0] == 0
        save_all(m, [3])
        assert m.steps() == [3]


def test_errors_of_a_save_in_the_background_are_told(tmp_path):
    m = swj.CheckpointManager(tmp_path)
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "junk").touch()
    m.save_async(1, tree(1))
    with pytest.raises(FileExistsError):
        m.wait()
    os.rename(tmp_path / "step-00000001", tmp_path / "other")
    m.save_async(1, tree(1))
    m.close()
    with pytest.raises(TypeError):
        m.save_async(2, {"w": object()})
    m.save(2, tree(2))
    assert m.steps() == [1, 2]


def flip(step: pathlib.Path) -> None:
    """Flips a bit of its first element."""
    file = step / "shards-00000-of-00001.h5"
    data = bytearray(file.read_bytes())
    data[4096] ^= 1
    file.write_bytes(data)


def test_a_restart_goes_back_past_damaged_bytes(tmp_path):
    with swj.CheckpointManager(tmp_path) as m:
        save_all(m, [0, 1, 2, 3])
    flip(tmp_path / "step-00000002")
    (tmp_path / "step-00000003" / "manifest.json").write_text("{}")
    with swj.CheckpointManager(tmp_path) as m:
        assert m.latest_step() == 2
        found = m.restore()
        assert found.step == 1 and found.value["w"].tolist() == [1] * 3
        assert [os.path.basename(path) for path, _ in found.rejected] == ["step-00000003", "step-00000002"]
        for step in (2, 3):
            m.save(step, tree(step))  # they are replaced, once
            with pytest.raises(sw.AlreadyExists):
                m.save(step, tree(step))
        assert m.restore().step == 3 and sw.verify(m.restore(step=2).path)
        for step in (m.restore(step=step).path for step in range(4)):
            flip(pathlib.Path(step))
        with pytest.raises(sw.Corrupt, match="none of 4 is whole; step-00000003.g2: .*; step-00000002.g2: "):
            m.restore()
        with pytest.raises(sw.Corrupt, match="step-00000001"):
            m.restore(step=1)
    for step in tmp_path.glob("step-*"):
        (step / "manifest.json").write_text("{}")
    with pytest.raises(sw.Corrupt):  # no fresh start
        swj.CheckpointManager(tmp_path).latest_step()


KILLED = """
import sys, numpy as np, shardwise.jax as swj
m = swj.CheckpointManager(sys.argv[1], keep_last=2)
last = m.latest_step()
first = 0 if last is None else last + 1
m.save(first, {"w": np.full((512, 256), first), "i": first})
print("saved", flush=True)
for step in range(first + 1, 10**6):
    m.save_async(step, {"w": np.full((512, 256), step), "i": step})
"""


def test_a_kill_leaves_a_valid_step(tmp_path):
    rng = np.random.default_rng(1)
    last = -1
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE,
                                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert process.stdout.readline() == b"saved\n"
        instant = time.perf_counter() + rng.random() / 4
        while time.perf_counter() < instant:
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with swj.CheckpointManager(tmp_path) as m:
            step = m.latest_step()
            assert step is not None and step > last
            last = step
            got = m.restore(step=step).value
            assert (got["w"] == step).all() and got["i"] == step and sw.verify(tmp_path / f"step-{step:08d}")


def test_what_a_restore_finds_damaged_is_saved_whole_again(tmp_path):
    values = {"w": jnp.asarray(np.random.default_rng(1).random(1 << 18, np.float32))}
    with swj.CheckpointManager(tmp_path) as manager:
        manager.save(1, values)
        manager.save(2, values)
        linked = next((tmp_path / "step-00000002").glob("linked-*"))  # both steps have it
        with open(linked, "r+b") as file:
            file.seek(5000)
            byte = file.read(1)
            file.seek(5000)
            file.write(bytes([byte[0] ^ 1]))
        for step in (2, 1):
            with pytest.raises(sw.Corrupt):
                manager.restore(values, step)
        manager.save(2, values)
        assert (manager.restore(values, 2).value["w"] == values["w"]).all()
        manager.save(3, values)  # the step that was saved again is whole, and the next one is built on it
        path = manager.restore(step=3).path
        assert list(pathlib.Path(path).glob("linked-*")) and sw.verify(path)


def test_what_a_save_did_is_kept_beside_its_step(tmp_path):
    values = {"w": jnp.asarray(np.random.default_rng(1).random(1 << 18, dtype="f4")), "n": np.zeros(1000)}
    with swj.CheckpointManager(tmp_path, write_stats=False) as m:
        m.save(1, values)
    assert names(tmp_path) == ["step-00000001"]
    with swj.CheckpointManager(tmp_path, keep_last=2, parity_blocks=1) as m:
        whole = m.save(2, values)
        check_stats(tmp_path, 2, whole)
        assert whole.logical_bytes == (1 << 20) + 8000 and whole.blocked_seconds >= whole.seconds and whole.parity_bytes > 0
        begun = time.monotonic()
        pending = m.save_async(3, values)
        waited = time.monotonic() - begun
        later = pending.result()
        check_stats(tmp_path, 3, later)
        assert 0 < later.blocked_seconds <= waited and later.unchanged_bytes == 1 << 20
        assert later.memory_bytes == whole.memory_bytes + 8000  # the copy of what numpy can change
        assert [name for name in names(tmp_path) if not name.startswith(".writer.")] == [  # the manager's lease
            "stats-step-00000002.json", "stats-step-00000003.json", "step-00000002", "step-00000003"]
        m.save(4, values)
        m.remove(3)
    assert names(tmp_path) == ["stats-step-00000004.json", "step-00000004"]
