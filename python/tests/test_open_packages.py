"""Checkpoints of DCP and Orbax, which open, load, stats and diff take as they are; each by its own library."""

import os
import pickle

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np
import pytest

import shardwise as sw

jax = pytest.importorskip("jax", reason="needs jax, which this environment has not")
torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
orbax = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint, which this environment has not")

import jax.numpy as jnp
import torch.distributed.checkpoint as dcp

import shardwise.jax as swj
import shardwise.torch as swt


def tree():
    return {"params": {"w": jnp.arange(24, dtype=jnp.float32).reshape(4, 6), "b": jnp.arange(5, dtype=jnp.bfloat16)},
            "layers": [jnp.full((3,), 7, jnp.int32), jnp.ones((1, 2))], "scale": jnp.float32(2.5)}


def by_standard(folder):
    with orbax.StandardCheckpointer() as c:
        c.save(folder / "o", tree())
    return folder / "o"


def by_pytree(folder, **how):
    with orbax.Checkpointer(orbax.PyTreeCheckpointHandler(**how)) as c:
        c.save(folder / "o", args=orbax.args.PyTreeSave(tree()))
    return folder / "o"


def by_step(folder):
    with orbax.CheckpointManager(folder / "run") as m:
        m.save(3, args=orbax.args.StandardSave(tree()))
    return folder / "run/3"


ORBAX = {"standard": by_standard, "pytree": by_pytree, "plain zarr": lambda f: by_pytree(f, use_ocdbt=False), "step": by_step}


def same(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("how", ORBAX)
def test_orbax_is_read_where_it_is(tmp_path, how):
    path, expected = ORBAX[how](tmp_path), tree()
    found = swj.load(path)
    assert same(found["params"]["w"], expected["params"]["w"]) and same(found["layers"][0], expected["layers"][0])
    restored = swj.load(path, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), expected))
    assert jax.tree.all(jax.tree.map(same, restored, expected))
    loaded = sw.load(path)
    assert all(same(array, expected["params"][name[7:]]) for name, array in loaded.items() if name.startswith("params/"))
    with sw.open(path) as c:
        w = np.asarray(expected["params"]["w"])
        assert np.array_equal(c["params/w"][1:3, ::-2], w[1:3, ::-2]) and c["layers/1"].shape == (1, 2) and c["scale"][()] == 2.5
    with pytest.raises(sw.InvalidArgument, match="is closed"):
        c["params/w"][0]
    cast = sw.load(path, names="params/*", cast="f64", rename={"params/*": "*"})
    assert cast["w"].dtype == np.float64 and cast["b"].tolist() == [0, 1, 2, 3, 4]
    assert swt.load(path, names="params/b")["params/b"].dtype == torch.bfloat16
    with swt.open(path) as c:
        assert c["params/b"][1:3].tolist() == [1, 2]
    sw.import_orbax(path, tmp_path / "sw")
    assert sw.diff(path, tmp_path / "sw").equal and sw.diff(tmp_path / "sw", path).equal
    assert sw.stats(path, "params/w")["params/w"].max == 23 and sw.info(path).nbytes == sw.info(tmp_path / "sw").nbytes


def test_orbax_of_several_items(tmp_path):
    with orbax.CheckpointManager(tmp_path / "run") as m:
        for step in (1, 20):
            m.save(step, args=orbax.args.Composite(state=orbax.args.StandardSave({"w": jnp.full(3, step)}), told=orbax.args.JsonSave({"a": 1})))
    found = swj.load(tmp_path / "run/20")
    assert found["state"]["w"].tolist() == [20] * 3 and found["told"] == {"a": 1}
    for load in (sw.load, sw.open, swt.load, swt.open, swj.load, sw.info):
        with pytest.raises(sw.NotFound, match=r"run: found 2 steps \(1, 20\), each a checkpoint of Orbax: needed is one of them, the newest is '.*run/20'"):
            load(tmp_path / "run")


def test_large_arrays_of_orbax(tmp_path):
    big = {"a": np.arange(6 << 20, dtype=np.float32).reshape(3, -1), "b": np.arange(5 << 20, dtype=np.float32)}
    with orbax.StandardCheckpointer() as c:
        c.save(tmp_path / "o", big)
    found, cast = sw.load(tmp_path / "o"), sw.load(tmp_path / "o", cast="f64")
    assert all(same(found[name], big[name]) and np.array_equal(cast[name], big[name]) for name in big)


def state():
    return {"model": {"w": torch.arange(24.0).reshape(4, 6), "b": torch.arange(5, dtype=torch.bfloat16), "n": torch.tensor(3)},
            "epoch": 7, "name": "run"}


def test_dcp_is_read_where_it_is(tmp_path):
    dcp.save(state(), checkpoint_id=tmp_path / "d")
    found = swt.load(tmp_path / "d")
    assert torch.equal(found["model"]["w"], state()["model"]["w"]) and found["epoch"] == 7 and found["name"] == "run"
    into = {"model": {name: torch.zeros_like(tensor) for name, tensor in state()["model"].items()}, "epoch": 0, "name": ""}
    swt.load(tmp_path / "d", into)
    assert all(torch.equal(into["model"][name], tensor) for name, tensor in state()["model"].items())
    with sw.open(tmp_path / "d") as c:
        assert np.array_equal(c["model.w"][1:3, ::-2], np.arange(24.0).reshape(4, 6)[1:3, ::-2]) and c.objects["epoch"] == 7
        assert c["model.n"][()] == 3
    assert sw.load(tmp_path / "d", names="model.w", cast="f64")["model.w"].dtype == np.float64
    assert swt.load_state_dict(tmp_path / "d", "model.b")["model"]["b"].tolist() == [0, 1, 2, 3, 4]
    assert swj.load(tmp_path / "d", names="model.w")["model.w"].shape == (4, 6)
    sw.import_dcp(tmp_path / "d", tmp_path / "sw")
    assert sw.diff(tmp_path / "d", tmp_path / "sw").equal and sw.stats(tmp_path / "d")["model.w"].max == 23
    os.makedirs(tmp_path / "run")
    os.rename(tmp_path / "d", tmp_path / "run/step_5")
    with pytest.raises(sw.NotFound, match=r"run: found 1 step \(step_5\), .*\(DCP\): needed is one of them, the newest is '.*step_5'"):
        swt.load(tmp_path / "run")


def test_what_a_pickle_alone_can_make_is_left_out_and_nothing_runs(tmp_path):
    class Runs:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    dcp.save({"w": torch.ones(3), "bad": Runs()}, checkpoint_id=tmp_path / "d")
    with pytest.warns(UserWarning, match="left out .*'bad' that only a pickle can make"):
        assert sw.load(tmp_path / "d")["w"].tolist() == [1, 1, 1]
    assert not (tmp_path / "ran").exists()
    (tmp_path / "d/.metadata").write_bytes(pickle.dumps(Runs()))
    with pytest.raises(sw.Unsupported, match="^open .*needed one of DCP's own: it is not loaded"):
        sw.load(tmp_path / "d")
    assert not (tmp_path / "ran").exists()


def test_damage_is_said(tmp_path):
    dcp.save({"w": torch.ones(3000)}, checkpoint_id=tmp_path / "d")
    (tmp_path / "d/__0_0.distcp").write_bytes(b"x" * 10)
    with sw.open(tmp_path / "d") as c, pytest.raises(sw.Corrupt, match="^open .*found 10 bytes"):
        c["w"][0]
    path = by_standard(tmp_path)
    (path / "_METADATA").write_bytes(b"{")
    with pytest.raises(sw.Corrupt, match="^open "):
        sw.open(path)
