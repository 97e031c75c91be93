"""The managers of sw, swt and swj have one name for each thing, and answer the names of other libraries."""

import logging
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np
import pytest

import shardwise as sw

pytest.importorskip("jax", reason="needs jax, which this environment has not")
torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import jax
import jax.numpy as jnp

import shardwise.jax as swj
import shardwise.jax.ocp as ocp
import shardwise.torch as swt

FACES = {"sw": (sw.CheckpointManager, np.full), "swt": (swt.CheckpointManager, lambda n, x: torch.full((n,), x)),
         "swj": (swj.CheckpointManager, jnp.full)}


def test_an_export_and_a_manager_of_numpy_take_what_the_others_do(tmp_path):
    with sw.CheckpointManager(tmp_path / "run") as m:
        m.save(3, {"w": np.ones(2)})
        assert m.restore_latest().value["w"].tolist() == [1, 1]
        for option, said in ({"dtype": "bf16"}, 'cast="bf16"'), ({"overwrite": True}, 'existing="replace"'):
            with pytest.raises(sw.InvalidArgument, match=f"unknown option .*, needed {said}"):
                sw.export_model(m.step(3), tmp_path / "x.safetensors", **option)


@pytest.mark.parametrize("face", FACES)
def test_the_same_calls_on_all_managers(tmp_path, face):
    kind, full = FACES[face]
    with kind(tmp_path, best=("loss", "min", 3)) as m:
        assert m.restore() is None and m.restore_latest(lambda c: 1 / 0) is None and m.latest() is None and m.latest_step() is None
        for step in (2, np.int64(3)):
            assert m.should_save(step)
            m.save(step, {"w": full(3, float(step))}, metrics={"loss": float(step)})
        m.save_async(np.int32(4), {"w": full(3, 4.0)}, metrics={"loss": 0.0})
        m.wait()
        assert not m.is_saving() and m.steps() == [2, 3, 4] and m.best() == 4 and m.latest_step() == m.latest().step == 4
        assert m.step(3) == str(tmp_path / "step-00000003") and m.open(3).step == 3 and m.open().step == 4

        def state():
            return {"w": full(3, 0.0)}

        for restored, step in (
                (m.restore(3), 3), (m.restore(np.int64(3)), 3), (m.restore(3, state()), 3), (m.restore(state(), 3), 3),
                (m.restore(state(), step=3), 3), (m.restore(step=2), 2), (m.restore(state()), 4), (m.restore(), 4),
                (m.restore_latest(state()), 4), (m.restore_latest(lambda c: {"w": c["w"][...]}), 4)):
            assert restored.step == step and restored.value["w"].tolist() == [step] * 3
        m.pin(np.int64(3), "a")
        m.unpin("a")
        m.remove(np.int64(2))
        assert m.steps() == [3, 4]
        for ask in (m.should_save, m.step, m.remove, m.open, lambda s: m.pin(s, "x"), lambda s: m.restore(step=s),
                    lambda s: m.save(s, state()), lambda s: m.save_async(s, state())):
            for bad in (10.0, "3", True, -1, 2**64):
                with pytest.raises(sw.InvalidArgument, match="step .*: needed is an integer, 0 or more$"):
                    ask(bad)
        for name, said in (("async_save", "save_async"), ("all_steps", "steps()"), ("wait_until_finished", "wait()")):
            with pytest.raises(AttributeError, match=f"CheckpointManager has no '{name}': needed is .*") as told:
                getattr(m, name)
            assert said in str(told.value)
        with pytest.raises(AttributeError, match="PendingSave has no 'wait': needed is result()"):
            sw.PendingSave(1, lambda progress: None).wait
    with pytest.raises(sw.InvalidArgument, match="needed is best=, which says by which metric"):
        kind(tmp_path).best()
    for option in ("max_to_keep", "keep", "max_keep", "save_total_limit"):
        with pytest.raises(TypeError, match=f"unknown option '{option}', needed keep_last="):
            kind(tmp_path, **{option: 3})


@pytest.mark.parametrize("face", ["swt", "swj"])
def test_tiers_restore_the_newest_and_say_where_the_others_are(tmp_path, face):
    kind, full = {"swt": (swt.TieredManager, FACES["swt"][1]), "swj": (swj.TieredManager, jnp.full)}[face]
    with kind(tmp_path / "fast", tmp_path / "durable", copies=0) as m:
        m.save(3, {"w": full(2, 1.0)})
        assert m.restore_latest({"w": full(2, 0.0)}).step == 3
        with pytest.raises(sw.InvalidArgument, match=r"found the step 3, needed is restore\(\) of a state.*CheckpointManager\(.*durable'\).restore\(3"):
            m.restore(3)
        for name in ("latest", "steps", "step", "best"):
            with pytest.raises(AttributeError, match=rf"CheckpointManager\(durable\).{name}"):
                getattr(m, name)


@pytest.mark.parametrize(("name", "words"), [
    ("restore", "needed is load(path, target)"), ("async_save", "needed is save_async"), ("save_pytree", "needed is save(path"),
    ("load_pytree", "needed is load("), *((name, "from shardwise.jax import ocp") for name in (
        "CheckpointManagerOptions", "StandardCheckpointer", "PyTreeCheckpointer", "AsyncCheckpointer")),
    ("PLACEHOLDER", "needed is a target without that name, and strict=False")])
def test_names_of_orbax_in_jax_say_where_they_are(name, words):
    with pytest.raises(AttributeError) as told:
        getattr(swj, name)
    assert words in str(told.value)


def test_options_of_others_of_a_load_say_what_to_write(tmp_path):
    sw.save(tmp_path / "c", {"w": np.ones(3)})
    for option, said in (("shardings", "a target whose leaves are shardings"), ("partial_restore", "strict=False"), ("dtype", "cast=")):
        with pytest.raises(TypeError, match=f"load: found the unknown option '{option}', needed {said}"):
            swj.load(tmp_path / "c", **{option: None})


@pytest.mark.parametrize("face", FACES)
def test_a_target_with_more_leaves(tmp_path, caplog, face):
    full = FACES[face][1]
    load = {"sw": lambda p, t, **how: sw.load(p, target=t, **how), "swt": swt.load, "swj": swj.load}[face]
    sw.save(tmp_path / "c", {"a": {"w": np.ones(3, np.float32)}, "left": np.ones(2)})

    def target():
        return {"a": {"w": full(3, 0.0) if face == "swt" else np.zeros(3, np.float32)}, "more": {"b": full(2, 7.0)}, "n": 5}

    with caplog.at_level(logging.WARNING):
        found = load(tmp_path / "c", target(), strict=False)
    assert found["a"]["w"].tolist() == [1] * 3 and found["more"]["b"].tolist() == [7, 7] and found["n"] == 5
    assert face == "swt" and set(found.missing) == {"more.b", "n"} or "more/b" in caplog.text
    with pytest.raises(sw.InvalidArgument, match="more.b"):
        load(tmp_path / "c", target())
    with pytest.raises(sw.InvalidArgument, match="none|'more/b' is not in the checkpoint"):
        load(tmp_path / "c", {"more": {"b": full(2, 7.0)}}, strict=False)


def test_a_leaf_without_a_value_cannot_stay(tmp_path):
    swj.save(tmp_path / "c", {"a": jnp.ones(3)})
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    for leaf in (swj.ANY, one, jax.ShapeDtypeStruct((3,), jnp.float32)):
        with pytest.raises(sw.InvalidArgument, match="'b' is not in the checkpoint"):
            swj.load(tmp_path / "c", {"a": swj.ANY, "b": leaf}, strict=False)


def test_none_is_filled_with_all_below_it_in_jax_too(tmp_path):
    tree = {"opt": {"mu": jnp.ones(2), "n": None}, "w": jnp.zeros(3), "none": None}
    swj.save(tmp_path / "c", tree)
    found = swj.load(tmp_path / "c", {"opt": None, "w": jnp.ones(3), "none": None})
    assert found["opt"]["mu"].tolist() == [1, 1] and found["opt"]["n"] is None and found["none"] is None
    assert swj.load(tmp_path / "c", {"opt": {"mu": None, "n": None}, "w": None, "none": None})["w"].tolist() == [0] * 3
    assert swj.load(tmp_path / "c", {"w": None, "new": None}, strict=False)["new"] is None


def test_a_smaller_target_is_told_of_strict(tmp_path):
    with ocp.CheckpointManager(tmp_path) as m:
        m.save(1, {"a": jnp.ones(2), "b": 1})
        m.wait_until_finished()
        with pytest.raises(sw.InvalidArgument, match="'b' is in the checkpoint, not in the target: strict=False leaves such names out"):
            m.restore(1, args=ocp.args.StandardRestore({"a": jnp.zeros(2)}))
        assert m.restore()["b"] == 1
        with pytest.raises(sw.InvalidArgument, match="needed is one of ocp.args: StandardSave"):
            m.save(2, args=3)
