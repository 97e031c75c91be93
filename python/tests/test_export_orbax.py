"""Exports in Orbax's format, as Orbax itself reads them."""

import logging
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")
pytest.importorskip("orbax.checkpoint", reason="needs orbax.checkpoint, which this environment has not")

import jax
import jax.numpy as jnp
import ml_dtypes
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from every_dtype import DTYPES, random_bits, same

import shardwise as sw
import shardwise.jax as swj
from shardwise._convert import export as _export, export_orbax as _export_orbax

logging.getLogger("absl").setLevel(logging.CRITICAL)

def restored(folder, target=None):
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder, target) if target is not None else checkpointer.restore(folder)


@pytest.mark.parametrize("part", [8, 64 << 20])
def test_every_dtype_is_the_same_bit_for_bit(tmp_path, rng, monkeypatch, part):
    monkeypatch.setattr(_export, "_LEAST_PART", part)
    monkeypatch.setattr(_export, "_MOST_PART", part)
    arrays = {}
    for dtype in map(np.dtype, DTYPES):
        arrays[f"{dtype.name}/matrix"] = random_bits(rng, dtype, (3, 5))
        arrays[f"{dtype.name}/scalar"] = random_bits(rng, dtype, ())
    state = {**arrays, "layers.0.w": np.arange(4.0), "ä \"\n": np.arange(3), "step": 5, "big": 2**64 - 1, "lr": 0.1, "flag": True, "text": "é"}
    sw.save(tmp_path / "a", state, user={"run": [1, "x"]})
    told = []
    files = sw.export_model(tmp_path / "a", tmp_path / "o", format="orbax", progress=lambda *at: told.append(at))
    assert str(tmp_path / "o" / "_METADATA") in files and all(os.path.isfile(file) for file in files)
    total = sum(value.nbytes for value in state.values() if isinstance(value, np.ndarray))
    assert told[-1] == (total, total)
    for checkpointer in (ocp.PyTreeCheckpointer(), ocp.StandardCheckpointer()):
        found = checkpointer.restore(tmp_path / "o")
        for dtype in map(np.dtype, DTYPES):
            same({f"{dtype.name}/{key}": value for key, value in found[dtype.name].items()},
                 {name: value for name, value in arrays.items() if name.split("/")[0] == dtype.name})
        same({key: value for key, value in found.items() if "/" not in key and not isinstance(value, dict)},
             {name: value for name, value in state.items() if "/" not in name})
    imported = sw.import_orbax(tmp_path / "o", tmp_path / "b")
    same(sw.load(imported), state)
    with sw.open(imported) as checkpoint:
        assert checkpoint.user == {"run": [1, "x"]}


def test_a_target_of_jax_is_filled(tmp_path):
    state = {"params": {"w": np.arange(24, dtype=np.float32).reshape(8, 3), "b": np.ones(3, ml_dtypes.bfloat16)}, "step": np.int32(7)}
    sw.save(tmp_path / "a", state)
    sw.export_model(tmp_path / "a", tmp_path / "o", format="orbax", max_shard=16)
    cut = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("x",)), P("x"))
    whole = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("x",)), P())
    struct = jax.ShapeDtypeStruct
    found = restored(tmp_path / "o", {"params": {"w": struct((8, 3), jnp.float32, sharding=cut), "b": struct((3,), jnp.bfloat16, sharding=whole)},
                                      "step": struct((), jnp.int32, sharding=whole)})
    assert found["params"]["w"].sharding == cut and np.array_equal(found["params"]["w"], state["params"]["w"])
    assert found["params"]["b"].dtype == jnp.bfloat16 and found["step"] == 7


def test_trees_are_what_they_were(tmp_path):
    tree = {"params": {"w": jnp.arange(6.0).reshape(2, 3)}, "l": [jnp.ones(2), (jnp.zeros(1),)], "n": None, "e": {}, "i": 3, "f": 2.5}
    swj.save(tmp_path / "a", tree)
    sw.export_model(tmp_path / "a", tmp_path / "o", format="orbax")
    found = restored(tmp_path / "o")
    assert found["n"] is None and found["e"] == {} and (found["i"], found["f"]) == (3, 2.5)
    assert found["l"][1][0].tolist() == [0] and found["params"]["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    # The tree has dicts and lists, and objects in them.
    sw.save(tmp_path / "b", {"opt": {"m": [np.ones(2), np.zeros(1)], 0: {"x": np.ones(1)}}, "config": {"lr": 0.1, "betas": [0.9, 0.99]}})
    sw.export_model(tmp_path / "b", tmp_path / "ob", format="orbax")
    found = restored(tmp_path / "ob")
    assert found["config"] == {"lr": 0.1, "betas": [0.9, 0.99]} and found["opt"]["m"][1].tolist() == [0] and found["opt"]["0"]["x"] == 1
    # Edited: names are parted at "/", or keep the keys that they had.
    sw.export_model(tmp_path / "a", tmp_path / "oe", format="orbax", names=["params/*", "l/1/*"], rename={"params/*": "net/*"}, cast="bf16")
    found = restored(tmp_path / "oe")
    assert found.keys() == {"net", "l"} and found["net"]["w"].dtype == jnp.bfloat16 and found["l"]["1"][0].shape == (1,)


def test_what_orbax_has_written_comes_back_as_it_was(tmp_path):
    tree = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "opt": [{"m": np.ones(2)}, {"m": np.zeros(2)}], "i": 3, "n": None}
    ocp.PyTreeCheckpointer().save(tmp_path / "first", tree)
    sw.export_model(sw.import_orbax(tmp_path / "first", tmp_path / "a"), tmp_path / "second", format="orbax")
    first, second = (restored(tmp_path / name) for name in ("first", "second"))
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert all(np.array_equal(a, b) and np.asarray(a).dtype == np.asarray(b).dtype for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second)))


def test_steps_of_a_manager_come_back(tmp_path):
    tree = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "i": 3}
    best = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(tmp_path / "one", options=best) as manager:
        manager.save(7, args=ocp.args.StandardSave(tree), metrics={"loss": 0.5}, custom_metadata={"lr": 1})
    with ocp.CheckpointManager(tmp_path / "items") as manager:
        manager.save(7, args=ocp.args.Composite(state=ocp.args.StandardSave(tree), loader=ocp.args.JsonSave({"i": [1, 2]})))
    for name in ("one", "items"):
        step = sw.import_orbax(tmp_path / name / "7", tmp_path / f"{name}-a")
        (tmp_path / f"{name}-again").mkdir()
        sw.export_model(step, tmp_path / f"{name}-again" / "7", format="orbax")
    with ocp.CheckpointManager(tmp_path / "one-again", options=best) as manager:
        found = manager.restore(7, args=ocp.args.StandardRestore())
        assert found["w"].tolist() == tree["w"].tolist() and found["i"] == 3
        assert manager.metrics(7) == {"loss": 0.5} and manager.metadata(7).custom_metadata == {"lr": 1}
    with ocp.CheckpointManager(tmp_path / "items-again") as manager:
        found = manager.restore(7, args=ocp.args.Composite(state=ocp.args.StandardRestore(), loader=ocp.args.JsonRestore()))
        assert found.loader == {"i": [1, 2]} and found.state["w"].tolist() == tree["w"].tolist()
    sw.export_model(tmp_path / "items-a", tmp_path / "items-again" / "7", format="orbax", existing="replace")
    # A single item is still a step.
    sw.export_model(tmp_path / "items-a", tmp_path / "state", format="orbax", names="state/*")
    assert ocp.PyTreeCheckpointer().restore(tmp_path / "state" / "state")["i"] == 3


def test_parts_are_in_memory_and_in_files_by_and_by(tmp_path, rng, monkeypatch):
    array = random_bits(rng, "u1", (300, 10_000))
    sw.save(tmp_path / "a", {"w": array, **{str(i): random_bits(rng, "u1", (100,)) for i in range(50)}})
    sizes = []
    kept = _export.Export.read
    monkeypatch.setattr(_export.Export, "read", lambda *at: (got := kept(*at), sizes.append(got.nbytes))[0])
    files = sw.export_model(tmp_path / "a", tmp_path / "o", format="orbax", max_shard=100_000)
    assert sizes.count(100_000) == 30 and max(sizes) == 100_000
    data = [os.path.getsize(file) for file in files if f"{os.sep}d{os.sep}" in file]
    assert len(data) > 30 and max(data) < 130_000  # with what describes arrays
    assert np.array_equal(restored(tmp_path / "o")["w"], array)


def test_what_orbax_lacks_is_told(tmp_path):
    wrong = {"empty": np.zeros((0, 2)), "large": 2**64, "bytes": b"x", "inner": {"set": {1}}, "a~b": "text", "s": "text", "s/t": "text"}
    sw.save(tmp_path / "a", {"w": np.ones(2), **wrong})
    with pytest.raises(sw.Unsupported, match="--exclude, or names=, leaves them out") as error:
        sw.export_model(tmp_path / "a", tmp_path / "o", format="orbax", names=["w", "empty", "large", "bytes", "inner", "a~b"])
    for name, said in (("empty", "has no elements"), ("large", "builtins.int"), ("bytes", "builtins.bytes"), ("inner", "builtins.set"),
                       ("a~b", "takes for a JSON pointer")):
        assert f"'{name}'" in str(error.value) and said in str(error.value), error.value
    with pytest.raises(sw.InvalidArgument, match="'s' and 's/t': one is where the other one has its parts"):
        sw.export_model(tmp_path / "a", tmp_path / "o", format="orbax", names=["w", "s*"])
    sw.save(tmp_path / "b", {"n": None})
    with pytest.raises(sw.InvalidArgument, match="no tree without leaves"):
        sw.export_model(tmp_path / "b", tmp_path / "o", format="orbax")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    # Without their own keys these names are equal on Orbax's disk, which would keep one of the arrays.
    sw.save(tmp_path / "c", {"a.b": np.ones(1), "a/b": np.zeros(1)})
    with pytest.raises(sw.InvalidArgument, match="'a.b' and 'a/b' would both be 'a.b' in Orbax"):
        sw.export_model(tmp_path / "c", tmp_path / "o", format="orbax")


def test_what_fails_or_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    sw.save(tmp_path / "a", {"w": np.ones((64, 8)), "v": np.ones(3)})

    def interrupted(done, total):
        raise KeyboardInterrupt

    for raised in (KeyboardInterrupt, sw.Corrupt("a chunk"), OSError(28, "No space left on device")):
        def fails(*_, raised=raised):
            raise raised

        monkeypatch.setattr(_export.Export, "read", fails)
        wanted = sw.IOFailed if isinstance(raised, OSError) else raised if isinstance(raised, type) else type(raised)
        with pytest.raises(wanted) as error:
            sw.export_model(tmp_path / "a", tmp_path / "o", format="orbax", progress=interrupted)
        if wanted is sw.IOFailed:
            assert error.value.errno == 28 and "o: No space left on device" in str(error.value)
    assert os.listdir(tmp_path) == ["a"]


def test_without_orbax_it_says_what_to_install(tmp_path, monkeypatch):
    sw.save(tmp_path / "a", {"w": np.ones(2)})
    monkeypatch.delitem(sys.modules, _export_orbax.__name__)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(sw.Unsupported, match="found no orbax.checkpoint in .*: `.* -m pip install orbax-checkpoint`"):
        sw.export_model(tmp_path / "a", tmp_path / "o", format="orbax")
    assert os.listdir(tmp_path) == ["a"]
