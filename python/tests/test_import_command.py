"""Runs shardwise import of the formats that the Python package reads."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import shardwise as sw

COMMAND = [sys.executable, "-m", "shardwise"]


def run(*words, cwd=None):
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, cwd=cwd,
                          env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(sw.__file__)), "JAX_PLATFORMS": "cpu"})


@pytest.fixture
def dcp(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": {"w": torch.arange(12.0).reshape(3, 4), "v": torch.ones(2)}, "step": 5},
             storage_writer=dcp.FileSystemWriter(tmp_path / "dcp"))
    return tmp_path / "dcp"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp(tmp_path, dcp):
    done = run("import", dcp, tmp_path / "root", "--step", 7, "--mesh", "a=2", "--spec", "model.w=-,a;*=-", "--json")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["dcp", "root"]
    step = json.loads(done.stdout)["directory"]
    found = sw.load(step)
    assert np.array_equal(found["model.w"], np.arange(12).reshape(3, 4)) and found["step"] == 5
    with sw.open(step) as checkpoint:
        assert str(checkpoint["model.w"].spec) == "-,a"
    done = run("import", dcp, tmp_path / "root", "--step", 9, "--mesh", "a=2", "--spec", "*=a")
    assert done.returncode == 2 and f"shardwise: import {dcp} to mesh a=2" in done.stderr, done.stderr


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_is_not_selected_is_never_looked_at(tmp_path, dcp):
    import torch
    from torch.distributed import checkpoint

    checkpoint.save({"model": {"w": torch.arange(3.0), "v": torch.ones(2)}, "rng": np.random.get_state(), "rng_2": object},
                    storage_writer=checkpoint.FileSystemWriter(tmp_path / "odd"))
    done = run("import", tmp_path / "odd", tmp_path / "root", "--step", 7)
    assert done.returncode == 3 and "'rng'" in done.stderr and "'rng_2'" in done.stderr and "--exclude" in done.stderr, done.stderr
    with pytest.raises(sw.Unsupported, match="'rng'.*'rng_2'.*names="):
        sw.import_dcp(tmp_path / "odd", tmp_path / "none")
    for number, (words, names) in enumerate([
            (["--exclude", "rng*"], ["model.v", "model.w"]), (["--select", "model.?", "--exclude", "*.v"], ["model.w"]),
            (["--exclude", "rng", "--exclude", "rng_2", "--rename", "model.*=*"], ["v", "w"])]):
        done = run("import", tmp_path / "odd", tmp_path / "root", "--step", number, *words, "--json")
        assert done.returncode == 0, done.stderr
        assert sorted(sw.load(json.loads(done.stdout)["directory"])) == names
    done = run("import", tmp_path / "odd", tmp_path / "root", "--step", 9, "--exclude", "rgn*")
    assert done.returncode == 2 and "'rgn*' matches none of 4 names" in done.stderr, done.stderr
    assert sorted(sw.load(sw.import_dcp(tmp_path / "odd", tmp_path / "some", names=["*.w"]))) == ["model.w"]
    with pytest.raises(sw.InvalidArgument, match="'w' matches none of 4 names"):
        sw.import_dcp(tmp_path / "odd", tmp_path / "none", names="w")
    assert not (tmp_path / "none").exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_no_code_of_dcps_is_run(tmp_path, dcp):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    (dcp / ".metadata").write_bytes(pickle.dumps(Evil()))
    done = run("import", dcp, tmp_path / "root", "--step", 7, "--json")
    assert done.returncode == 3 and ".metadata" in done.stderr, done.stderr
    assert json.loads(done.stdout)["error"]["code"] in ("corrupt", "unsupported")
    assert os.listdir(tmp_path) == ["dcp"]


def each_fails(source, tmp_path, *said):
    """Each command that reads it gives one clear error and leaves no file."""
    for words in (("inspect", source), ("ls", source), ("diff", source, source), ("import", source, tmp_path / "root", "--step", 1)):
        done = run(*words, "--json")
        assert done.returncode == 3 and json.loads(done.stdout)["error"]["code"] == "corrupt", done
        assert done.stderr.count("\n") == 1 and all(text in done.stderr for text in said), done.stderr
    assert os.listdir(tmp_path) == [source.name]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_huge_tensor_of_dcp_is_one_error(tmp_path, dcp):
    from torch import Size

    said = pickle.loads((dcp / ".metadata").read_bytes())
    said.state_dict_metadata["model.w"].size = Size((2**40, 2**20))
    (dcp / ".metadata").write_bytes(pickle.dumps(said))
    each_fails(dcp, tmp_path, "found pieces of 12 elements for 'model.w', needed 1152921504606846976 for [1099511627776, 1048576]")


def test_huge_chunks_of_orbax_are_one_error(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint, which this environment has not")
    ocp.PyTreeCheckpointer(use_ocdbt=False).save(tmp_path / "orbax", {"w": np.arange(6.0).reshape(2, 3)})
    path = tmp_path / "orbax" / "w" / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chunks": [2**20, 2**20]}))
    each_fails(tmp_path / "orbax", tmp_path, "array 'w' is f64 [2, 3] in chunks of [1048576, 1048576], needed chunks of 1 to its own extents")


def test_a_checkpoint_that_is_no_step_has_none(tmp_path):
    sw.save(tmp_path / "a.sw", {"w": np.ones(3), "v": np.ones(2)})
    assert run("inspect", "a.sw", cwd=tmp_path).stdout.startswith("a.sw: no step, user {}\n")
    found = json.loads(run("inspect", "a.sw", "w", "--json", cwd=tmp_path).stdout)
    assert found["step"] is None and [tensor["name"] for tensor in found["tensors"]] == ["w"]


def test_orbax(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint, which this environment has not")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(str(tmp_path / "orbax"), {"params": {"w": np.arange(6.0).reshape(2, 3)}})
    (tmp_path / "root").mkdir()
    done = run("import", tmp_path / "orbax", ".", "--step", 3, "--strip-prefix", "params/", "--cast", "*=bf16", cwd=tmp_path / "root")
    assert sorted(os.listdir(tmp_path)) == ["orbax", "root"]
    assert done.returncode == 0, done.stderr
    found = sw.load(tmp_path / "root" / "step-00000003")
    assert list(found) == ["w"] and found["w"].dtype == "bfloat16"
    assert np.array_equal(found["w"].astype(np.float32), np.arange(6).reshape(2, 3))


def test_looks_at_dcp(tmp_path, dcp):
    assert json.loads(run("ls", dcp, "--json").stdout) == {"path": str(dcp), "format": "dcp", "tensors": 2, "logical_bytes": 56}
    root = tmp_path / "root"
    assert run("import", dcp, root, "--step", 7).returncode == 0
    assert run("diff", dcp, root).returncode == 0 and run("diff", root, dcp).returncode == 0
    assert run("import", dcp, root, "--step", 8, "--cast", "model.v=bf16").returncode == 0
    done = run("diff", dcp, root, "--json")
    assert done.returncode == 1 and [row["name"] for row in json.loads(done.stdout)["tensors"] if not row["equal"]] == ["model.v"]
    assert run("cat", dcp, "model.w[1]").stdout == "[4, 5, 6, 7]\n"
    (row,) = json.loads(run("stats", dcp, "*.w", "--json").stdout)["tensors"]
    assert (row["name"], row["min"], row["max"], row["mean"]) == ("model.w", 0, 11, 5.5)
    for file in dcp.glob("*.distcp"):
        file.write_bytes(b"")  # the metadata alone is read
    done = run("inspect", dcp, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(t["name"], t["dtype"], t["shape"]) for t in found["tensors"]] == [("model.v", "f32", [2]), ("model.w", "f32", [3, 4])]
    done = run("diff", dcp, root)
    assert done.returncode == 3 and "needed" in done.stderr, done.stderr


def test_looks_at_orbax(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint, which this environment has not")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(str(tmp_path / "orbax"), {"params": {"w": np.arange(6.0).reshape(2, 3), "b": np.ones(4, np.int32)}})
    sw.save(tmp_path / "ours", {"params": {"w": np.arange(6.0).reshape(2, 3), "b": np.ones(4, np.int32)}})
    found = json.loads(run("inspect", tmp_path / "orbax", "--json").stdout)
    assert [(t["name"], t["dtype"], t["shape"]) for t in found["tensors"]] == [("params/b", "i32", [4]), ("params/w", "f64", [2, 3])]
    assert found["format"] == "orbax" and found["totals"]["logical_bytes"] == 64
    assert run("cat", tmp_path / "orbax", "params/w[:,2]").stdout == "[2, 5]\n"
    found = json.loads(run("stats", tmp_path / "orbax", "--json").stdout)["tensors"]
    assert [(row["name"], row["max"], row["zeros"]) for row in found] == [("params/b", 1, 0), ("params/w", 5, 1)]
    done = run("diff", tmp_path / "orbax", tmp_path / "ours")
    assert done.returncode == 0 and "2 of 2 tensors are equal" in done.stdout, done.stderr
