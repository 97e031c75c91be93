"""Typed PRNG keys and items of Orbax's checkpoints, as Orbax itself restores them."""

import os
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np
import pytest

import shardwise as sw

ocp = pytest.importorskip("orbax.checkpoint", reason="needs orbax.checkpoint, which this environment has not")

import jax
import jax.numpy as jnp

import shardwise.jax as swj
import shardwise.jax.ocp as our_ocp


IMPLS = ("threefry2x32", "rbg", "unsafe_rbg")


def keys_of(impl: str) -> dict[str, Any]:
    return {"k": jax.random.key(3, impl=impl), "many": jax.random.split(jax.random.key(4, impl=impl), (2, 3)),
            "in": [{"k.x": jax.random.key(5, impl=impl)}], "raw": jax.random.PRNGKey(6), "w": jnp.arange(3.0)}


def same(found: Any, want: Any) -> bool:
    return jax.tree.structure(found) == jax.tree.structure(want) and all(
        a.dtype == b.dtype and a.shape == b.shape and (jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a).tolist()
        == (jax.random.key_data(b) if jnp.issubdtype(b.dtype, jax.dtypes.prng_key) else b).tolist()
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want)))


@pytest.mark.parametrize("impl", IMPLS)
def test_typed_keys_of_orbax_stay_keys(tmp_path, impl):
    state = keys_of(impl)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "std", state)
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "tree", state)
    with ocp.CheckpointManager(tmp_path / "m") as m:
        m.save(7, args=ocp.args.Composite(state=ocp.args.StandardSave(state), other=ocp.args.PyTreeSave(state)))
    one = {"default": jax.sharding.SingleDeviceSharding(jax.devices()[0])}["default"]
    for name in ("std", "tree"):
        path = sw.import_orbax(tmp_path / name, tmp_path / f"{name}.sw")
        with ocp.StandardCheckpointer() as checkpointer:
            assert same(swj.load(path, state), checkpointer.restore(tmp_path / name, state))  # Orbax's own
        assert same(swj.load(path, jax.tree.map(lambda _: one, state)), state)
        assert swj.load(path)["k"].dtype == np.uint32  # on the host their data, as of our own
        swj.save(tmp_path / f"{name}.again", swj.load(path, state))
        assert same(swj.load(tmp_path / f"{name}.again", state), state)
        with pytest.raises(sw.InvalidArgument, match=f"'k' is a PRNG key \\({impl}\\)"):
            swj.load(path, {**state, "k": jnp.zeros(2, jnp.uint32)})
    sw.import_orbax(tmp_path / "m", tmp_path / "ours", steps="all")
    with our_ocp.CheckpointManager(tmp_path / "ours") as m:
        args = our_ocp.args
        found = m.restore(7, args=args.Composite(state=args.StandardRestore(state), other=args.StandardRestore(state)))
        assert same(found.state, state) and same(found["other"], state)
        m.save(8, args=args.StandardSave(state))
        assert same(m.restore(8, args=args.StandardRestore(state)), state)


def test_items_of_random_keys(tmp_path):
    with ocp.CheckpointManager(tmp_path / "m") as m:
        m.save(7, args=ocp.args.Composite(
            state=ocp.args.StandardSave({"w": jnp.ones(3)}), typed=ocp.args.JaxRandomKeySave(jax.random.key(4)),
            raw=ocp.args.JaxRandomKeySave(jax.random.PRNGKey(5)), meta=ocp.args.JsonSave({"a": [1, None]})))
    sw.import_orbax(tmp_path / "m/7", tmp_path / "out/step-00000007")
    with our_ocp.CheckpointManager(tmp_path / "out") as m:
        args = our_ocp.args
        found = m.restore(7, args=args.Composite(state=args.StandardRestore({"w": jnp.zeros(3)}), typed=args.StandardRestore(jax.random.key(0)),
                                                 raw=args.StandardRestore(jax.random.PRNGKey(0)), meta=args.JsonRestore()))
        assert same(found.typed, jax.random.key(4)) and same(found.raw, jax.random.PRNGKey(5))
        assert found.meta == {"a": [1, None]} and found.state["w"].tolist() == [1] * 3
        assert set(m.restore(7)) == {"state", "typed", "raw", "meta"} and m.item_metadata(7).state["w"].shape == (3,)
        assert list(m.restore(7, args=args.Composite(meta=None))) == ["meta"]


def test_an_item_called_default_beside_others_is_one_of_them(tmp_path):
    with ocp.CheckpointManager(tmp_path / "m") as m:
        m.save(1, args=ocp.args.Composite(default=ocp.args.StandardSave({"w": jnp.ones(3)}), b=ocp.args.StandardSave({"w": jnp.zeros(2)})))
    sw.import_orbax(tmp_path / "m", tmp_path / "out", steps="newest")
    with our_ocp.CheckpointManager(tmp_path / "out") as m:
        args = our_ocp.args
        found = m.restore(1, args=args.Composite(default=args.StandardRestore({"w": jnp.zeros(3)}), b=None))
        assert found.default["w"].tolist() == [1] * 3 and found.b["w"].tolist() == [0, 0]


def test_keys_whose_data_do_not_fit_are_an_error(tmp_path):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "of", {"k": jax.random.key(3)})
    path = tmp_path / "of/array_metadatas/process_0"
    for impl, why in (("rbg", "'k' is uint32 .2., needed is data of PRNG keys of 'rbg'"), ("none", "Orbax does not read it")):
        path.write_text(path.read_text().replace("threefry2x32", impl))
        with pytest.raises(sw.Corrupt, match=why):
            sw.import_orbax(tmp_path / "of", tmp_path / "out")
        path.write_text(path.read_text().replace(impl, "threefry2x32"))


def test_exports_keep_keys_as_orbax_does(tmp_path):
    tree = {"state": {impl: keys_of(impl) for impl in IMPLS}, "list": [jax.random.key(7)]}
    swj.save(tmp_path / "a", tree)
    sw.export_model(tmp_path / "a", tmp_path / "o", format="orbax", rename={"list/*": "more/*"})
    renamed = {"state": tree["state"], "more": tree["list"]}
    with ocp.StandardCheckpointer() as checkpointer:
        for found in (checkpointer.restore(tmp_path / "o"), swj.load(sw.import_orbax(tmp_path / "o", tmp_path / "b"), renamed)):
            assert [one.dtype for one in jax.tree.leaves(found)] == [one.dtype for one in jax.tree.leaves(renamed)]
            data = [[jax.random.key_data(one) if jnp.issubdtype(one.dtype, jax.dtypes.prng_key) else one
                     for one in jax.tree.leaves(of)] for of in (found, renamed)]
            assert all(jnp.array_equal(one, other) for one, other in zip(*data, strict=True))
