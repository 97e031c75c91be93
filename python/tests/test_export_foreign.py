"""Exports of other formats without an import, and errors of functions for folders that they do not take."""

import numpy as np
import pytest

import shardwise as sw
from test_packed_dtypes import written


def check(source, tmp_path, expected):
    """All formats that an export writes have the same values."""
    for name in ("x.safetensors", "x.npz", "x.h5"):
        sw.export_model(source, tmp_path / name)
        found = sw.load(tmp_path / name)
        assert found.keys() == expected.keys()
        assert all(found[key].dtype == value.dtype and np.array_equal(found[key], value) for key, value in expected.items())


W = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.int64)}


def test_safetensors_keep_their_metadata(tmp_path):
    safetensors = pytest.importorskip("safetensors", reason="needs safetensors, which this environment has not")
    from safetensors.numpy import save_file

    save_file(W, tmp_path / "s.safetensors", metadata={"format": "np", "note": "1"})
    check(tmp_path / "s.safetensors", tmp_path, W)
    with safetensors.safe_open(tmp_path / "x.safetensors", "np") as file:
        assert file.metadata() == {"format": "np", "note": "1"}
    sw.export_model(tmp_path / "s.safetensors", tmp_path / "y.safetensors", metadata={"note": "2"}, names="a", cast="f16")
    with safetensors.safe_open(tmp_path / "y.safetensors", "np") as file:
        assert file.metadata() == {"format": "np", "note": "2"} and list(file.keys()) == ["a"]
        assert file.get_tensor("a").dtype == np.float16


def test_npz(tmp_path):
    np.savez(tmp_path / "s.npz", **W)
    check(tmp_path / "s.npz", tmp_path, W)


def test_an_index_of_files(tmp_path):
    (tmp_path / "s").mkdir()
    written(tmp_path / "s" / "1.safetensors", {"a": ("F32", [2, 3], W["a"].tobytes())})
    written(tmp_path / "s" / "2.safetensors", {"b": ("I64", [4], W["b"].tobytes())})
    (tmp_path / "s" / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}')
    check(tmp_path / "s", tmp_path, W)


def test_dcp(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import torch.distributed.checkpoint as dcp

    for step in (1, 2):
        dcp.save({name: torch.from_numpy(value) for name, value in W.items()}, checkpoint_id=tmp_path / "run" / f"step_{step}",
                 no_dist=True)
    check(tmp_path / "run" / "step_2", tmp_path, W)
    with pytest.raises(sw.NotFound, match="newest is .*step_2'$"):
        sw.export_model(tmp_path / "run", tmp_path / "y.npz")
    with pytest.raises(sw.NotFound, match="newest is .*step_2'$"):
        sw.open(tmp_path / "run")
    with pytest.raises(sw.NotFound, match="found 2 steps .*import_dcp.*step_2'"):
        sw.import_dcp(tmp_path / "run", tmp_path / "y")
    with pytest.raises(sw.NotFound, match="it is no checkpoint of DCP's"):
        sw.import_dcp(tmp_path / "x.npz", tmp_path / "y")
    for function in (sw.repair, sw.verify, sw.write_parity, sw.remove_parity):
        with pytest.raises(sw.NotFound, match="import_dcp"):
            function(tmp_path / "run" / "step_1")
    pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint, which this environment has not")
    with pytest.raises(sw.InvalidArgument, match="no checkpoint of Orbax's: found .*DCP.*import_dcp"):
        sw.import_orbax(tmp_path / "run" / "step_1", tmp_path / "y")


def test_orbax(tmp_path):
    jax = pytest.importorskip("jax", reason="needs jax, which this environment has not")
    ocp = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint, which this environment has not")
    expected = {"a": W["a"], "b": W["b"].astype(np.int32)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "o", jax.tree.map(jax.numpy.asarray, expected))
    check(tmp_path / "o", tmp_path, expected)
