"""shardwise.jax's manager, in one process of 8 CPU devices."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types
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
from told import names, told


def manager(root: Any, **options: Any) -> swj.CheckpointManager:
    return swj.CheckpointManager(root, options=swj.CheckpointManagerOptions(**options))


def save_all(m: swj.CheckpointManager, steps: Any, **more: Any) -> list[int]:
    saved = [s for s in steps if m.save(s, {"w": jnp.full(3, s)}, **more)]
    m.wait_until_finished()
    return saved


def test_a_save_under_way_is_left_alone_or_followed(tmp_path):
    for when_busy, saved, steps in (("skip", [False, False], []), ("replace", [True, True], [3])):
        with manager(tmp_path / when_busy, when_busy=when_busy) as m:
            may_go_on, w = threading.Event(), np.zeros(2)
            m._queue.add(sw.PendingSave(1, lambda progress: may_go_on.wait() and None), None)
            assert [m.save(2, {"w": w}), m.save(3, {"w": w})] == saved
            w += 1
            may_go_on.set()
            m.wait_until_finished()
            assert m.all_steps() == steps and m.should_save(3) == (when_busy == "skip")
            assert m.save(4, {"w": w})
    with pytest.raises(sw.InvalidArgument, match="when_busy is 'drop', needed is 'wait' or 'skip' or 'replace'"):
        manager(tmp_path, when_busy="drop")


def test_manager(tmp_path):
    with manager(tmp_path, max_to_keep=2, save_interval_steps=2) as m:
        assert m.latest_step() is None and m.all_steps() == [] and m.best_step() is None
        with pytest.raises(sw.NotFound, match="holds no step"):
            m.restore(None)
        assert save_all(m, range(6), metrics={"loss": np.float32(0.5), "nan": float("nan")}, custom_metadata={"lr": 1}) == [0, 2, 4]
        assert m.all_steps() == [2, 4] and m.latest_step() == 4 and m.best_step() == 4
        assert m.metrics(4)["loss"] == 0.5 and m.metadata(4).custom_metadata == {"lr": 1}
        assert not m.should_save(4) and not m.save(4, {"w": 1}) and m.restore(4)["w"].tolist() == [4] * 3
        assert m.save(4, {"w": 7}, force=True)
        assert m.restore(None if m.wait_until_finished() else 4) == {"w": 7}
        assert m.item_metadata(2) == {"w": jax.ShapeDtypeStruct((3,), jnp.int32)}
        assert m.restore(2, args=swj.args.StandardRestore(m.item_metadata(2)))["w"].tolist() == [2] * 3
        m.delete(2)
        with pytest.raises(KeyError):
            m.delete(2)
        with pytest.raises(FileNotFoundError):
            m.restore(2)
        assert not m.reached_preemption(5)
    with sw.CheckpointManager(tmp_path) as ours:  # the same folder, the same steps
        assert ours.steps() == [4] and ours.latest().path == str(tmp_path / "step-00000004")
    with manager(tmp_path, read_only=True) as m:
        assert not m.save(10, {"w": 1}) and m.restore(None) == {"w": 7}
    with pytest.raises(sw.NotFound):
        manager(tmp_path / "none", create=False)


def test_several_items(tmp_path):
    args = swj.args
    with manager(tmp_path, max_to_keep=3) as m:
        m.save(0, args=args.Composite(state=args.StandardSave({"w": jnp.ones(3)}), loader=args.JsonSave({"i": (1, 2), 3: None})))
        m.save(1, args=args.JsonSave([1]))
        got = m.restore(0)
        assert got.loader == {"i": (1, 2), 3: None} and got["state"]["w"].tolist() == [1] * 3 and set(got) == {"state", "loader"}
        one = m.restore(0, args=args.Composite(state=args.StandardRestore({"w": jnp.zeros(3)})))
        assert list(one) == ["state"] and isinstance(one.state["w"], jax.Array)
        assert m.restore(0, args=args.Composite(state=None, loader=args.JsonRestore())).loader[3] is None
        assert m.restore(1) == [1] and m.item_metadata(0).state["w"].shape == (3,)
        with pytest.raises(sw.InvalidArgument, match="'state/v' is not in.*nearest 'state/w'; 'state/w' is in the checkpoint, not"):
            m.restore(0, args=args.Composite(state=args.StandardRestore({"v": swj.ANY})))
        for bad in (args.StandardRestore(), args.Composite(other=None), args.Composite(state=3)):
            with pytest.raises((sw.InvalidArgument, sw.NameNotFound), match="item|needed"):
                m.restore(0, args=bad)
        with pytest.raises(sw.InvalidArgument, match="no items"):
            m.restore(1, args=args.Composite(state=None))
        for bad in ({}, {"items": 1, "args": args.JsonSave(1)}, {"args": 3}, {"args": args.Composite(a=3)}):
            with pytest.raises(sw.InvalidArgument):
                m.save(2, **bad)
    with sw.open(tmp_path / "step-00000000") as c:
        assert list(c) == ["state/w"] and list(c.objects) == ["loader"]
    with pytest.raises(sw.InvalidArgument, match="none of item_names"):
        swj.CheckpointManager(tmp_path, item_names=("a",)).save(5, args=args.Composite(b=args.JsonSave(1)))


def test_best_steps_stay(tmp_path):
    with manager(tmp_path, max_to_keep=2, best_fn=lambda metrics: metrics["loss"], best_mode="min") as m:
        for step, loss in enumerate([3.0, float("nan"), 1.0, 2.0, 5.0, 4.0]):
            m.save(step, {"w": step}, metrics={"loss": loss})
        m.wait_until_finished()
        assert m.all_steps() == [2, 3, 5] and m.best_step() == 2 and m.latest_step() == 5
    with sw.CheckpointManager(tmp_path, best=("loss", "min", 1)) as ours:  # and it can rank them, too
        ours.save(6, {}, metrics={"loss": 9})
        assert ours.steps() == [2, 6]


def test_policies(tmp_path):
    p = swj.policies
    decision = p.AnySavePolicy([p.InitialSavePolicy(), p.FixedIntervalPolicy(3), p.SpecificStepsPolicy({5}),
                                p.PreemptionCheckpointingPolicy()])
    keep = p.AnyPreservationPolicy([p.LatestN(1), p.EveryNSteps(6), p.CustomSteps([5])])
    with manager(tmp_path / "a", save_decision_policy=decision, preservation_policy=keep) as m:
        assert save_all(m, range(1, 14)) == [1, 3, 5, 6, 9, 12] and m.all_steps() == [5, 6, 12]
    with manager(tmp_path / "b", save_decision_policy=p.ContinuousCheckpointingPolicy(minimum_interval_secs=3600)) as m:
        assert save_all(m, range(3)) == [0]
    with manager(tmp_path / "b", should_save_fn=lambda step, last: step == 7 and last == 0) as m:
        assert save_all(m, range(6, 9)) == [7]
    infos = [types.SimpleNamespace(step=s, metrics=None, time=__import__("datetime").datetime.fromtimestamp(
        s, tz=__import__("datetime").timezone.utc)) for s in (1, 4, 6, 9)]

    def kept(policy: Any) -> list[int]:
        return [i.step for i, k in zip(infos, policy.should_preserve(infos, context=p.PreservationContext())) if k]

    assert kept(p.PreserveAll()) == [1, 4, 6, 9] and kept(p.LatestN()) == [1, 4, 6, 9] and kept(p.LatestN(0)) == []
    assert kept(p.EveryNSeconds(4)) == [1, 6] and kept(p.EveryNSteps(3, exact_interval=False)) == [1, 4, 9]
    assert kept(p.EveryNSteps(1, max_to_keep=2)) == [6, 9] and kept(p.EveryNSteps(1, max_to_keep=0)) == []
    assert kept(p.BestN(get_metric_fn=float, n=1, keep_checkpoints_without_metrics=False)) == []
    for bad in ({"best_mode": "most"}, {"save_interval_steps": 0}, {"keep_period": 0}, {"max_to_keep": -1}):
        with pytest.raises(sw.InvalidArgument):
            swj.CheckpointManagerOptions(**bad)
    with pytest.raises(sw.InvalidArgument):
        p.EveryNSteps(0)


def test_what_readers_have_open_stays(tmp_path):
    with manager(tmp_path, max_to_keep=1) as m:
        save_all(m, [0])
        with sw.open(tmp_path / "step-00000000") as reader:
            save_all(m, [1, 2])
            assert m.all_steps() == [0, 2] and reader["w"][0] == 0
        save_all(m, [3])
        assert m.all_steps() == [3]


def test_errors_of_a_save_in_the_background_are_told(tmp_path):
    m = manager(tmp_path)
    save_all(m, [0])
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "junk").touch()
    m._known.pop(1, None)
    assert m.save(1, {"w": 1})
    with pytest.raises(FileExistsError):
        m.wait_until_finished()
    m.check_for_errors()
    os.rename(tmp_path / "step-00000001", tmp_path / "other")
    assert m.save(1, {"w": 1})
    m.close()
    with pytest.raises(TypeError):
        m.save(2, {"w": object()})
    assert m.save(2, {"w": 2}) and m.restore(None if m.wait_until_finished() else 2) == {"w": 2}


def test_damage_is_no_fresh_start(tmp_path):
    m = manager(tmp_path)
    save_all(m, [0, 1])
    (tmp_path / "step-00000001" / "manifest.json").write_text("{}")
    assert m.latest_step() == 0 and m.restore(None)["w"].tolist() == [0] * 3
    (tmp_path / "step-00000000" / "manifest.json").write_text("{}")
    for ask in (m.latest_step, lambda: m.restore(None)):
        with pytest.raises(sw.Corrupt):
            ask()


def test_a_step_that_has_a_name_stays(tmp_path):
    with manager(tmp_path, max_to_keep=1) as m:
        save_all(m, [0, 1])
        m.pin(1, "good")
        save_all(m, [2, 3])
        assert m.all_steps() == [1, 3] and m.pinned() == {"good": 1}
        with pytest.raises(sw.InvalidArgument, match="remove step 1 of .*: it is pinned as \"good\""):
            m.delete(1)
        with pytest.raises(KeyError):
            m.pin(7, "no")
        m.unpin("good")
        save_all(m, [4])
        assert m.all_steps() == [4] and m.pinned() == {}
    with sw.CheckpointManager(tmp_path) as ours:
        ours.pin(4, "best")
        assert manager(tmp_path).pinned() == {"best": 4}


def flip(step: pathlib.Path) -> None:
    """A bit of its first element."""
    file = step / "shards-00000-of-00001.h5"
    data = bytearray(file.read_bytes())
    data[4096] ^= 1
    file.write_bytes(data)


def test_a_restart_goes_back_past_damaged_bytes(tmp_path, caplog):
    with manager(tmp_path) as m:
        save_all(m, [0, 1, 2, 3])
        m.wait_until_finished()
    flip(tmp_path / "step-00000002")
    (tmp_path / "step-00000003" / "manifest.json").write_text("{}")
    with manager(tmp_path) as m:
        assert m.restore(None)["w"].tolist() == [1] * 3
        assert "step 2 of" in caplog.text and "passed over" in caplog.text and "step-00000003" in caplog.text
        assert m.should_save(2) and save_all(m, [2, 3]) == [2, 3]  # they are replaced
        assert not m.should_save(3) and save_all(m, [3]) == []
        m.wait_until_finished()
        assert m.restore(None)["w"].tolist() == [3] * 3 and sw.verify(tmp_path / "step-00000002")
        for step in range(4):
            flip(tmp_path / f"step-{step:08d}")
        with pytest.raises(sw.Corrupt, match="none of 4 is whole; step-00000003: .*; step-00000002: "):
            m.restore(None)
        with pytest.raises(sw.Corrupt, match="step-00000001"):
            m.restore(1)
    with pytest.raises(sw.NotFound, match="holds no step"):
        manager(tmp_path / "new").restore(None)


KILLED = """
import sys, numpy as np, shardwise.jax as swj
m = swj.CheckpointManager(sys.argv[1], options=swj.CheckpointManagerOptions(max_to_keep=2))
first = m.latest_step()
print("ready", flush=True)
for step in range(0 if first is None else first + 1, 10**6):
    m.save(step, {"w": np.full((512, 256), step), "i": step})
"""


def test_a_kill_leaves_a_valid_step(tmp_path):
    rng = np.random.default_rng(1)
    last = -1
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE,
                                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        process.stdout.readline()
        time.sleep(0.3 + rng.random() / 4)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with manager(tmp_path) as m:
            step = m.latest_step()
            assert step is not None and step >= last
            last = step
            got = m.restore(step)
            assert (got["w"] == step).all() and got["i"] == step and sw.verify(tmp_path / f"step-{step:08d}")


def test_what_a_restore_finds_damaged_is_saved_whole_again(tmp_path):
    tree = {"w": jnp.asarray(np.random.default_rng(1).random(1 << 18, np.float32))}
    with swj.CheckpointManager(tmp_path) as manager:
        manager.save(1, tree)
        manager.save(2, tree)
        manager.wait_until_finished()
        linked = next((tmp_path / "step-00000002").glob("linked-*"))  # of both steps
        with open(linked, "r+b") as file:
            file.seek(5000)
            byte = file.read(1)
            file.seek(5000)
            file.write(bytes([byte[0] ^ 1]))
        for step in (2, 1):
            with pytest.raises(sw.Corrupt):
                manager.restore(step, tree)
        manager.save(2, tree, force=True)
        assert (manager.restore(2, tree)["w"] == tree["w"]).all()
        manager.save(3, tree)  # what was saved again is whole, and the next one is built on it
        manager.wait_until_finished()
        path = manager.metadata(3).path
        assert list(pathlib.Path(path).glob("linked-*")) and sw.verify(path)


def test_what_a_save_did_is_kept_beside_its_step(tmp_path):
    tree = {"w": jnp.asarray(np.random.default_rng(1).random(1 << 18, dtype="f4")), "n": np.zeros(1000)}
    with manager(tmp_path, write_stats=False) as m:
        m.save(1, tree)
    assert names(tmp_path) == ["step-00000001"]
    with manager(tmp_path, max_to_keep=2, parity_blocks=1, enable_async_checkpointing=False) as m:
        m.save(2, tree)
    whole = told(tmp_path, 2)
    assert whole["logical_bytes"] == (1 << 20) + 8000 and whole["directory"] == "step-00000002"
    assert whole["blocked_seconds"] >= whole["total_seconds"] and whole["parity_bytes"] > 0
    with manager(tmp_path, max_to_keep=2) as m:
        begun = time.monotonic()
        m.save(3, tree)
        waited = time.monotonic() - begun
        m.wait_until_finished()
        later = told(tmp_path, 3)
        assert 0 < later["blocked_seconds"] <= waited and later["unchanged_bytes"] == 1 << 20
        assert later["memory_bytes"] == whole["memory_bytes"] + 8000  # the copy of what numpy can change
        assert names(tmp_path) == ["stats-step-00000002.json", "stats-step-00000003.json", "step-00000002", "step-00000003"]
        m.save(4, tree)
        m.wait_until_finished()
        m.delete(3)
    assert names(tmp_path) == ["stats-step-00000004.json", "step-00000004"]
