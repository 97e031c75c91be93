"""shardwise.jax.ocp: Orbax's words for shardwise.jax's manager, in one process of 8 CPU devices."""

import datetime
import os
import threading
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
import shardwise.jax.ocp as ocp


def manager(root: Any, **options: Any) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions(**options))


def save_all(m: ocp.CheckpointManager, steps: Any, **more: Any) -> list[int]:
    saved = [s for s in steps if m.save(s, {"w": jnp.full(3, s)}, **more)]
    m.wait_until_finished()
    return saved


def test_a_save_under_way_is_left_alone_or_followed(tmp_path):
    for when_busy, saved, steps in (("skip", [False, False], []), ("replace", [True, True], [3])):
        with ocp.CheckpointManager(tmp_path / when_busy, when_busy=when_busy) as m:
            may_go_on, w = threading.Event(), np.zeros(2)
            m._queue.add(sw.PendingSave(1, lambda progress: may_go_on.wait() and None), None)
            assert [m.save(2, {"w": w}), m.save(3, {"w": w})] == saved
            w += 1
            may_go_on.set()
            m.wait_until_finished()
            assert m.all_steps() == steps and m.should_save(3) == (when_busy == "skip")
            assert m.save(4, {"w": w})


def test_manager(tmp_path):
    with manager(tmp_path, max_to_keep=2, save_interval_steps=2) as m:
        assert m.latest_step() is None and m.all_steps() == [] and m.best_step() is None
        with pytest.raises(sw.NotFound, match="holds no step"):
            m.restore(None)
        assert save_all(m, range(6), metrics={"loss": np.float32(0.5)}, custom_metadata={"lr": 1}) == [0, 2, 4]
        assert m.all_steps() == [2, 4] and m.latest_step() == 4 and m.best_step() == 4
        assert m.metrics(4) == {"loss": 0.5} and m.metadata(4).custom_metadata == {"lr": 1}
        assert not m.should_save(4) and not m.save(4, {"w": 1}) and m.restore(4)["w"].tolist() == [4] * 3
        assert m.save(4, {"w": 7}, force=True)
        assert m.restore(None if m.wait_until_finished() else 4) == {"w": 7}
        assert m.item_metadata(2) == {"w": jax.ShapeDtypeStruct((3,), jnp.int32)}
        assert m.restore(2, args=ocp.args.StandardRestore(m.item_metadata(2)))["w"].tolist() == [2] * 3
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
    args = ocp.args
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
    with pytest.raises(sw.InvalidArgument) as caught:
        ocp.CheckpointManager(tmp_path, item_names=("a", "b")).save(5, args=args.Composite(c=args.JsonSave(1)))
    assert str(caught.value) == "save: found the item 'c', needed is one of item_names, a, b"


def test_best_steps_stay(tmp_path):
    with manager(tmp_path, max_to_keep=2, best_fn=lambda metrics: metrics["loss"], best_mode="min") as m:
        for step, loss in enumerate([3.0, float("nan"), 1.0, 2.0, 5.0, 4.0]):
            m.save(step, {"w": step}, metrics={"loss": loss})
        m.wait_until_finished()
        assert m.all_steps() == [2, 3, 5] and m.best_step() == 2 and m.latest_step() == 5
    with sw.CheckpointManager(tmp_path, best=("loss", "min", 1)) as ours:  # and it can rank them, too
        ours.save(6, {}, metrics={"loss": 9})
        assert ours.steps() == [2, 6]
    with manager(tmp_path / "all", best_fn=lambda metrics: metrics["loss"]) as m:  # none goes
        for step in range(4):
            m.save(step, {"w": step}, metrics={"loss": -abs(step - 1)})
        m.wait_until_finished()
        assert m.all_steps() == [0, 1, 2, 3] and m.best_step() == 1


def test_words_for_policies(tmp_path):
    with manager(tmp_path / "a", save_interval_steps=3, max_to_keep=1, keep_period=6,
                 keep_time_interval=datetime.timedelta(hours=1)) as m:
        # The first that is offered, and then those that 3 divides; the first is the oldest of the hour.
        assert save_all(m, range(1, 14)) == [1, 3, 6, 9, 12] and m.all_steps() == [1, 6, 12]
    with manager(tmp_path / "b", keep_period=2) as m:  # without max_to_keep all stay
        assert save_all(m, range(3)) == [0, 1, 2] and m.all_steps() == [0, 1, 2]
    with ocp.CheckpointManager(tmp_path / "c", keep_last=1, save_every=2) as m:  # Shardwise's options
        assert save_all(m, range(5)) == [0, 2, 4] and m.all_steps() == [4]
        m.manager.pin(4, "good")
        assert save_all(m, range(5, 9)) == [6, 8] and m.all_steps() == [4, 8]
    for bad, text in (
            ({"best_mode": "most"}, "best_mode is 'most', needed is 'min' or 'max'"),
            ({"save_interval_steps": 0}, "CheckpointManagerOptions: save_interval_steps is 0, needed is an integer, 1 or more"),
            ({"keep_period": 0}, "CheckpointManagerOptions: keep_period is 0, needed is an integer, 1 or more"),
            ({"max_to_keep": -1}, "CheckpointManagerOptions: max_to_keep is -1, needed is an integer, 1 or more"),
            ({"save_on_steps": [3]}, "CheckpointManagerOptions: there is no 'save_on_steps', needed is if wanted(step): "
                                     "manager.save(step, ..., force=True)"),
            ({"step_prefix": "s"}, "CheckpointManagerOptions: there is no 'step_prefix'")):
        with pytest.raises(sw.InvalidArgument) as caught:
            ocp.CheckpointManagerOptions(**bad)
        assert str(caught.value) == text
    with pytest.raises(sw.InvalidArgument) as caught:
        manager(tmp_path).save(0, {"w": 1}, metrics={"loss": "small"})
    assert str(caught.value) == "save: the metric 'loss' is 'small', needed is a number; custom_metadata takes other values"


def test_where_these_words_are():
    with pytest.raises(AttributeError) as caught:
        swj.CheckpointManagerOptions
    assert str(caught.value) == ("module 'shardwise.jax' has no attribute 'CheckpointManagerOptions': needed is "
                                 "ocp.CheckpointManagerOptions: Orbax's names are those of "
                                 "shardwise.jax.ocp: from shardwise.jax import ocp")


def test_errors_of_a_save_in_the_background_are_told(tmp_path, monkeypatch):
    m = manager(tmp_path)
    save_all(m, [0])

    class Full:
        """The manager of C++, on a disk without room."""

        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

        def save_together(self, *args: Any, **named: Any) -> None:
            raise sw.IOFailed("write: No space left on device")

    core = m.manager._manager
    with monkeypatch.context() as patched:
        patched.setattr(m.manager, "_manager", Full())
        assert m.save(1, {"w": 1})
        with pytest.raises(sw.IOFailed, match="No space left"):
            m.wait_until_finished()
    assert m.save(1, {"w": 1})
    m.close()
    with pytest.raises(TypeError):
        m.save(2, {"w": object()})
    assert m.save(2, {"w": 2}) and m.restore(None if m.wait_until_finished() else 2) == {"w": 2}


def test_damage_is_no_fresh_start(tmp_path, caplog):
    m = manager(tmp_path)
    save_all(m, [0, 1])
    (tmp_path / "step-00000001" / "manifest.json").write_text("{}")
    assert m.latest_step() == 0 and m.restore(None)["w"].tolist() == [0] * 3
    assert "passed over" in caplog.text and "step-00000001" in caplog.text
    assert m.should_save(1) and save_all(m, [1]) == [1] and not m.should_save(1) and m.restore(1)["w"].tolist() == [1] * 3
    for step in ("step-00000000", "step-00000001.g2"):
        (tmp_path / step / "manifest.json").write_text("{}")
    for ask in (m.latest_step, lambda: m.restore(None)):
        with pytest.raises(sw.Corrupt):
            ask()


@pytest.mark.parametrize(("module", "name", "words"), [
    (ocp, "AsyncCheckpointer", "StandardCheckpointer()"), (ocp, "RestoreArgs", "a target with the sharding"), (ocp, "Nothing", "CheckpointManager"),
    (ocp.args, "PyTreeSave", "StandardSave"), (ocp.args, "PyTreeRestore", "StandardRestore"), (ocp.args, "Nothing", "Composite")])
def test_a_name_of_orbax_that_is_not_here_says_what_is(module, name, words):
    with pytest.raises(AttributeError) as told:
        getattr(module, name)
    assert f"has no '{name}': needed is" in str(told.value) and words in str(told.value)
    assert not hasattr(module, name)


@pytest.mark.parametrize("kind", [ocp.StandardCheckpointer, ocp.PyTreeCheckpointer])
def test_checkpointers_save_and_restore_a_path(tmp_path, monkeypatch, kind):
    tree = {"w": jnp.arange(6.0).reshape(2, 3), "key": jax.random.key(3), "step": 7, "none": None, "t": (jnp.ones(2), [1.5])}
    like = jax.tree.map(lambda x: jnp.zeros_like(x) if isinstance(x, jax.Array) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)
    with kind() as checkpointer:
        checkpointer.save(tmp_path / "a", tree)
        assert kind is ocp.StandardCheckpointer or (tmp_path / "a/manifest.json").exists()
        found = checkpointer.restore(tmp_path / "a", like)  # waits for the save
        assert jax.tree.structure(found) == jax.tree.structure(tree)
        assert found["w"].tolist() == [[0, 1, 2], [3, 4, 5]] and found["step"] == 7 and found["t"][1] == [1.5]
        assert checkpointer.restore(tmp_path / "a")["t"][0].tolist() == [1, 1]
        assert checkpointer.restore(tmp_path / "a", {"w": like["w"]}, strict=False)["w"].shape == (2, 3)
        with pytest.raises(sw.AlreadyExists):
            checkpointer.save(tmp_path / "a", tree)
            checkpointer.wait_until_finished()
        checkpointer.save(tmp_path / "a", {"w": jnp.zeros(2)}, force=True, custom_metadata={"by": "me"})
        told = checkpointer.metadata(tmp_path / "a")
        assert told.item_metadata["w"].shape == (2,) and (told.step, told.custom_metadata, told.path) == (-1, {"by": "me"}, str(tmp_path / "a"))
        items = ocp.args.Composite(state=ocp.args.StandardSave({"w": jnp.ones(2)}), loader=ocp.args.JsonSave({"at": (1,)}))
        checkpointer.save(tmp_path / "b", args=items)
        assert checkpointer.restore(tmp_path / "b").loader == {"at": (1,)}
        assert checkpointer.restore(tmp_path / "b", args=ocp.args.Composite(state=ocp.args.StandardRestore({"w": jnp.zeros(2)}))).state["w"].sum() == 2
        for call, why in ((lambda: checkpointer.save(tmp_path / "c", tree, save_args={}), "found save_args, needed is cast="),
                          (lambda: checkpointer.restore(tmp_path / "a", restore_args={}), "found restore_args, needed is a target with the sharding"),
                          (lambda: checkpointer.save(tmp_path / "c"), "needed is one of items and args"),
                          (lambda: checkpointer.restore(tmp_path / "a", {}, args=ocp.args.StandardRestore({})), "needed is one of target and args")):
            with pytest.raises(sw.InvalidArgument, match=why):
                call()

    if kind is ocp.PyTreeCheckpointer:
        assert kind().restore(tmp_path / "a", item={"w": jnp.ones(2)})["w"].sum() == 0
    for options in ((checkpointer,), (checkpointer, ocp.CheckpointManagerOptions())):  # of old jobs
        with pytest.raises(sw.InvalidArgument, match=f"found {kind.__name__} as options, needed are CheckpointManagerOptions; save"):
            ocp.CheckpointManager(tmp_path / "m", *options)

    with pytest.raises(sw.InvalidArgument, match="found strict=False without a target"), kind() as checkpointer:
        checkpointer.restore(tmp_path / "a", args=ocp.args.StandardRestore(tree), strict=False)

    def full(*args: Any, **named: Any) -> None:
        raise sw.IOFailed("write: No space left on device")

    monkeypatch.setattr(sw._core, "save_together", full)
    for inner, seen in ((None, sw.IOFailed), (KeyError("of the job"), KeyError)):
        with pytest.raises(seen), kind() as checkpointer:
            checkpointer.save(tmp_path / "d", tree) if inner is None or kind is ocp.StandardCheckpointer else None
            if inner is not None:
                raise inner
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["a", "b"]
