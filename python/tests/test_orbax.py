"""shardwise.orbax under Orbax's CheckpointManager, and the import of Orbax's checkpoints."""

import logging
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")
pytest.importorskip("optax", reason="needs optax, which this environment has not")
pytest.importorskip("orbax.checkpoint", reason="needs orbax.checkpoint, which this environment has not")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import shardwise as sw
import shardwise.jax as swj
import shardwise.orbax as swo
from shardwise._formats import orbax as _import_orbax
from shardwise._formats.orbax import import_orbax

logging.getLogger("absl").setLevel(logging.CRITICAL)


def tree():
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("x",)), P("x"))
    return {"w": jax.device_put(jnp.arange(24.0).reshape(8, 3).astype(jnp.bfloat16), sharding),
            "opt": optax.adam(1e-3).init({"a": jnp.ones(3)}), "i": 3, "f": 2.5, "n": None, "l": [jnp.ones(2), (jnp.zeros(1),)]}


def test_under_orbaxs_manager(tmp_path):
    state = {**tree(), "text": "é", "empty": jnp.zeros((0, 2))}  # Orbax refuses these two
    with ocp.CheckpointManager(tmp_path, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as m:
        step = jax.jit(lambda w: w + 1, donate_argnums=0)
        for i in range(4):
            assert m.save(i, args=swo.Save(state))
            state["w"] = step(state["w"])
        m.wait_until_finished()
        assert list(m.all_steps()) == [2, 3]
        got = m.restore(3, args=swo.Restore(state))
        assert jax.tree.structure(got) == jax.tree.structure(state) and got["w"].sharding == state["w"].sharding
        assert np.array_equal(np.asarray(got["w"]) + 1, state["w"]) and got["text"] == "é"
        assert m.restore(2, args=swo.Restore())["w"][0, 0] == 2
        assert m.item_metadata(3)["w"].shape == (8, 3)
        with pytest.raises(sw.InvalidArgument, match="the target int8"):
            m.restore(3, args=swo.Restore({"w": jax.ShapeDtypeStruct((8, 3), jnp.int8)}, strict=False))
    assert sw.verify(tmp_path / "3" / "default" / "tree.sw")
    assert sorted(os.listdir(tmp_path / "3" / "default" / "tree.sw"))[:2] == ["index.h5", "manifest.json"]


def test_as_one_item_and_by_hand(tmp_path):
    with ocp.CheckpointManager(tmp_path / "m", item_names=("state", "loader")) as m:
        m.save(0, args=ocp.args.Composite(state=swo.Save({"x": jnp.ones(3)}), loader=ocp.args.JsonSave({"i": 1})))
        m.wait_until_finished()
        got = m.restore(0, args=ocp.args.Composite(state=swo.Restore(), loader=ocp.args.JsonRestore()))
        assert got.loader == {"i": 1} and got.state["x"].tolist() == [1, 1, 1]
    checkpointer = ocp.Checkpointer(swo.Handler())
    checkpointer.save(tmp_path / "c", args=swo.Save({"x": 1}))
    assert checkpointer.restore(tmp_path / "c") == {"x": 1}


def test_what_cannot_be_stored_is_told(tmp_path):
    m = ocp.CheckpointManager(tmp_path)
    m.save(0, args=swo.Save({"x": object()}))
    with pytest.raises(TypeError, match="'x': builtins.object cannot be stored"):
        m.wait_until_finished()
    assert list(m.all_steps()) == []


@pytest.mark.parametrize("group_bytes", [16, 1 << 20])
def test_import(tmp_path, monkeypatch, group_bytes):
    monkeypatch.setattr(_import_orbax, "_GROUP_BYTES", group_bytes)
    with ocp.StandardCheckpointer() as c:
        c.save(tmp_path / "standard", tree())
    ocp.PyTreeCheckpointer().save(tmp_path / "pytree", {**tree(), "text": "é"})
    best = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(tmp_path / "m", options=best) as m:
        m.save(7, args=ocp.args.StandardSave(tree()), metrics={"loss": 0.5}, custom_metadata={"lr": 1})
    with ocp.CheckpointManager(tmp_path / "items") as m:
        m.save(0, args=ocp.args.Composite(state=ocp.args.StandardSave(tree()), loader=ocp.args.JsonSave({"i": [1, 2]})))
    told = []
    for source in ("standard", "pytree", "m/7", "items/0"):
        target = tmp_path / "out" / source.replace("/", "-")
        assert import_orbax(tmp_path / source, target, progress=lambda *at: told.append(at)) == str(target)
        assert told[-1] == (88, 88) and sw.verify(target)
        got = swj.load(target)
        if source == "items/0":
            assert got["loader"] == {"i": [1, 2]}
            got = got["state"]
        assert got["w"].dtype == jnp.bfloat16 and np.array_equal(got["w"], tree()["w"])
        assert (got["i"], got["f"], got["n"]) == (3, 2.5, None) and got["l"][1][0].tolist() == [0]
        assert got["opt"][0]["mu"]["a"].tolist() == [0, 0, 0] and got["opt"][0]["count"] == 0
    assert swj.load(tmp_path / "out" / "pytree")["text"] == "é"
    # A target knows the parts of the tree that Orbax forgot.
    target = {**tree(), "i": 0, "f": 0.0}
    assert jax.tree.structure(swj.load(tmp_path / "out" / "standard", target)) == jax.tree.structure(target)
    with sw.open(tmp_path / "out" / "m-7") as c:
        assert c.metrics == {"loss": 0.5} and c.user == {"lr": 1}
    with pytest.raises(sw.AlreadyExists):
        import_orbax(tmp_path / "standard", tmp_path / "out" / "standard")
    import_orbax(tmp_path / "standard", tmp_path / "out" / "standard", existing="replace")
    for bad, kind, text in (("m", sw.InvalidArgument, "it is a folder of 1 step"), ("gone", sw.NotFound, "not there"),
                            ("out", sw.InvalidArgument, "no tree")):
        with pytest.raises(kind, match=text):
            import_orbax(tmp_path / bad, tmp_path / "x")
    assert not (tmp_path / "x").exists()
