"""Runs shardwise export to the formats that the Python package writes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import shardwise as sw

FORMATS = {"dcp": "torch.distributed.checkpoint", "orbax": "orbax.checkpoint"}


def run(*words, before=()):
    return subprocess.run([*before, sys.executable, "-m", "shardwise", *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(sw.__file__)), "JAX_PLATFORMS": "cpu"})


@pytest.fixture(params=list(FORMATS))
def format(request):
    pytest.importorskip(FORMATS[request.param], reason=f"needs {FORMATS[request.param]}, which this environment has not")
    return request.param


def imported(format, folder, target):
    return sw.load((sw.import_dcp if format == "dcp" else sw.import_orbax)(folder, target))


def test_there_and_back(tmp_path, format):
    state = {"model": {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "v": np.ones(2)}, "step": 5}
    sw.save(tmp_path / "a", state)
    done = run("export", tmp_path / "a", tmp_path / "out", "--format", format, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["logical_bytes"] == 64 and all(os.path.isfile(file) for file in said["files"])
    assert said["file_bytes"] == sum(os.path.getsize(file) for file in said["files"])
    joined = "." if format == "dcp" else "/"
    found = imported(format, tmp_path / "out", tmp_path / "b")
    assert found["step"] == 5 and np.array_equal(found[f"model{joined}w"], state["model"]["w"])
    assert json.loads(run("ls", tmp_path / "out", "--json").stdout) == {
        "path": str(tmp_path / "out"), "format": format, "tensors": 2, "logical_bytes": 64}
    assert run("diff", tmp_path / "out", tmp_path / "b").returncode == 0
    done = run("export", tmp_path / "a", tmp_path / "out", "--format", format, "--replace", "--select", "model/*", "--exclude", "*/v",
               "--rename", "model/*=net/*", "--cast", "*=bf16", "--max-shard", "8")
    assert done.returncode == 0, done.stderr
    found = imported(format, tmp_path / "out", tmp_path / "c")
    assert list(found) == [f"net{joined}w"] and found[f"net{joined}w"].dtype == "bfloat16"
    assert np.array_equal(found[f"net{joined}w"].astype("f4"), state["model"]["w"])
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "out"]


def test_all_edits(tmp_path, format):
    sw.save(tmp_path / "a", {"qkv": np.arange(24.0).reshape(6, 4), "k.0": np.zeros(2), "k.1": np.ones(2), "t": np.arange(6.0).reshape(2, 3)})
    edits = ("--split", "qkv=q,k,v@0", "--join", "k.#=ks@0", "--transpose", "t=1,0", "--cast", "t=f32")
    done = run("export", tmp_path / "a", tmp_path / "out", "--format", format, *edits)
    assert done.returncode == 0, done.stderr
    found = imported(format, tmp_path / "out", tmp_path / "b")
    assert found["k"].tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]] and found["ks"].tolist() == [[0, 0], [1, 1]]
    assert found["t"].tolist() == [[0, 3], [1, 4], [2, 5]] and found["t"].dtype == np.float32


def test_what_does_not_fit_is_one_error(tmp_path, format):
    sw.save(tmp_path / "a", {"a.b": np.ones(2), "a": {"b": np.ones(2)}})
    for needed, words in ((["'a.b'", "'a/b'", "needed is another name"], ()), (['select "x" matches none of 2 tensors'], ("--select", "x"))):
        done = run("export", tmp_path / "a", tmp_path / "out", "--format", format, *words)
        assert done.returncode == 2 and done.stdout == "", done
        assert all(text in done.stderr for text in needed) and done.stderr.count("\n") == 1, done.stderr
    assert os.listdir(tmp_path) == ["a"]


def test_a_disk_that_is_full(tmp_path, format):
    sw.save(tmp_path / "a", {"w": np.random.default_rng(0).standard_normal((1000, 300))})
    # The shell forbids files larger than 1 MiB.
    done = run("export", tmp_path / "a", tmp_path / "out", "--format", format, "--json", before=("sh", "-c", 'ulimit -f 2048; exec "$@"', "sh"))
    assert done.returncode == 3, done
    assert json.loads(done.stdout)["error"]["code"] == "io" and f"export to {tmp_path / 'out'}: " in done.stderr, done.stderr
    assert "File too large" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert os.listdir(tmp_path) == ["a"]


def test_damage_is_told(tmp_path, format):
    sw.save(tmp_path / "a", {"w": np.arange(100000.0)}, codec="none")
    shard = next(path for path in (tmp_path / "a").iterdir() if path.name.startswith("shards"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    done = run("export", tmp_path / "a", tmp_path / "out", "--format", format, "--json")
    assert done.returncode == 3 and json.loads(done.stdout)["error"]["code"] == "corrupt", done.stderr
    assert '"w"' in done.stderr and os.listdir(tmp_path) == ["a"]
