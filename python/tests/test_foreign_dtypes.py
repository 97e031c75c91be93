"""A tensor of a dtype that Shardwise lacks fails by its name when it is asked for; all others load."""

import json
import os
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import pytest

import shardwise as sw
from test_packed_dtypes import written

TOOL = pathlib.Path(str(sw._core.__file__)).parent / "bin" / "shardwise"


@pytest.fixture
def foreign(tmp_path):
    """Opens the file that `make(path)` has written: "w" can be read, "q" cannot."""

    def check(path, w):
        with pytest.warns(UserWarning, match="left out"):
            checkpoint = sw.open(path)
        assert np.array_equal(checkpoint["w"][...], w) and "q" not in checkpoint
        with pytest.raises(sw.Unsupported, match='["\']q["\']'):
            checkpoint["q"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for found in (sw.load(path, names="w"), sw.load(path)):
                assert list(found) == ["w"] and np.array_equal(found["w"], w)
            with pytest.raises(sw.Unsupported, match='["\']q["\']'):
                sw.load(path, names=["w", "q"])
            sw.export_model(path, tmp_path / "w.npz", names="w", existing="replace")
        assert np.array_equal(np.load(tmp_path / "w.npz")["w"], w)
        return path

    return check


@pytest.mark.parametrize("dtype, shape, size", [("F2_E1M0", [4, 4], 4), ("I4", [3], 2), ("F128", [2], 32), ("F4", [3], 2), ("none", [0], 0)])
def test_safetensors(tmp_path, foreign, dtype, shape, size):
    w = np.arange(3, dtype=np.float32)
    path = tmp_path / "a.safetensors"
    written(path, {"q": (dtype, shape, b"\1" * size), "w": ("F32", [3], w.tobytes())})
    foreign(path, w)
    with pytest.raises(sw.Unsupported, match=f'"q": dtype "{dtype}"'):
        sw.import_model(path, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(sw.Unsupported, match=f'"q": dtype "{dtype}"'):
        sw.export_model(path, tmp_path / "y.safetensors")
    with pytest.warns(UserWarning, match=f'left out "q": dtype "{dtype}"'):
        sw.import_model(path, tmp_path / "x", names="w")
    assert np.array_equal(sw.load(tmp_path / "x")["w"], w)


def test_a_folder_of_safetensors(tmp_path, foreign):
    w = np.arange(3, dtype=np.float32)
    written(tmp_path / "a.safetensors", {"w": ("F32", [3], w.tobytes())})
    written(tmp_path / "b.safetensors", {"q": ("F3", [8], b"123")})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"w": "a.safetensors", "q": "b.safetensors"}}))
    foreign(tmp_path, w)


def test_sizes_of_dtypes_that_are_not_known(tmp_path):
    """An element has a bit at least: nothing claims more memory than eight times its bytes."""
    for shape in ([33], [2**62], [2**40, 2**40]):
        written(tmp_path / "a.safetensors", {"q": ("F2", shape, b"1234")})
        with pytest.raises(sw.Corrupt, match='tensor "q"'):
            sw.open(tmp_path / "a.safetensors")


def run(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, "SHARDWISE_PYTHON": sys.executable})


def test_the_command(tmp_path):
    w = np.arange(3, dtype=np.float32)
    path = tmp_path / "a.safetensors"
    written(path, {"q": ("F2", [2, 4], b"12"), "w": ("F32", [3], w.tobytes())})
    shown = json.loads(run("inspect", "--json", path).stdout)
    assert [(t["name"], t["dtype"], t["shape"], t["logical_bytes"]) for t in shown["tensors"]] == [
        ("q", "F2", [2, 4], 2), ("w", "f32", [3], 12)]
    assert shown["left_out"] == ['"q": dtype "F2" is not supported']
    assert "F2" in run("inspect", path).stdout
    refused = run("import", path, tmp_path / "run", "--step", 1)
    assert refused.returncode != 0 and '"q": dtype "F2"' in refused.stderr and not list(tmp_path.glob("run/step*"))
    for number, chosen in enumerate((("--exclude", "q"), ("--select", "w"))):
        assert run("import", path, tmp_path / "run", "--step", number, *chosen).returncode == 0
        assert np.array_equal(sw.load(tmp_path / f"run/step-{number:08}")["w"], w)
    refused = run("cat", path, "q")
    assert refused.returncode != 0 and '"q": dtype "F2"' in refused.stderr
    assert run("cat", path, "w").returncode == 0


def test_hdf5(tmp_path, foreign):
    h5py = pytest.importorskip("h5py", reason="needs h5py, which this environment has not")
    w = np.arange(3, dtype=np.float32)
    raw = np.arange(6, dtype=np.uint8).view("V1")
    types = {"opaque": h5py.h5t.create(h5py.h5t.OPAQUE, 1), "bits": h5py.h5t.STD_B8LE.copy(),
             "enum": h5py.h5t.py_create(h5py.enum_dtype({"a": 0, "b": 1}), logical=True),
             "array": h5py.h5t.array_create(h5py.h5t.STD_U8LE, (2,)),
             "compound": h5py.h5t.py_create(np.dtype([("x", "u1")]), logical=True)}
    narrow = h5py.h5t.STD_I8LE.copy()  # int4 in a byte
    narrow.set_precision(4)
    types["int4"] = narrow
    assert raw.size == 6
    for kind, of_file in types.items():
        path = tmp_path / f"{kind}.h5"
        with h5py.File(path, "w") as file:
            file["w"] = w
            h5py.h5d.create(file.id, b"q", of_file, h5py.h5s.create_simple((6,)))
        foreign(path, w)


def test_npz(tmp_path, foreign):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes, which this environment has not")
    w = np.arange(3, dtype=np.float32)
    for name in ("int4", "uint4", "int2", "float4_e2m1fn", "float6_e2m3fn", "float8_e3m4"):
        dtype = getattr(ml_dtypes, name, None)
        if dtype is None:
            continue
        path = tmp_path / f"{name}.npz"
        np.savez(path, w=w, q=np.ones(4).astype(dtype))
        foreign(path, w)


def test_dcp(tmp_path, foreign):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q = torch.quantize_per_tensor(torch.ones(3, 4), 0.5, 10, torch.quint8)
        dcp.save({"w": torch.arange(3.0), "q": q}, checkpoint_id=tmp_path / "d", no_dist=True)
    foreign(tmp_path / "d", np.arange(3.0, dtype=np.float32))
    with pytest.raises(sw.Unsupported, match="import .*tensor 'q' has dtype torch.quint8.*names= or --exclude"):
        sw.import_dcp(tmp_path / "d", tmp_path / "x")
    sw.import_dcp(tmp_path / "d", tmp_path / "x", names="w")
    assert list(sw.load(tmp_path / "x")) == ["w"]
    import shardwise.torch as swt

    with pytest.warns(UserWarning, match="left out"), pytest.raises(sw.InvalidArgument, match="'q' .tensor 'q' has dtype torch.quint8"):
        swt.load(tmp_path / "d", {"w": torch.zeros(3), "q": torch.zeros(3, 4)})


def test_two_floats_in_a_byte_in_dcp(tmp_path):
    """They are read as those of safetensors: as bytes, like torch's own view."""
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import torch.distributed.checkpoint as dcp

    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    packed = torch.arange(24, dtype=torch.uint8).reshape(3, 8)
    dcp.save({"q": packed.view(torch.float4_e2m1fn_x2)}, checkpoint_id=tmp_path / "d", no_dist=True)
    sw.import_dcp(tmp_path / "d", tmp_path / "x")
    for path in (tmp_path / "d", tmp_path / "x"):
        assert np.array_equal(sw.load(path)["q"], packed.numpy()) and np.array_equal(sw.open(path)["q"][1:, 2:5], packed[1:, 2:5])


def test_orbax(tmp_path, foreign):
    jax = pytest.importorskip("jax", reason="needs jax, which this environment has not")
    ocp = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint, which this environment has not")
    import shardwise.jax as swj

    w = np.arange(3, dtype=np.float32)
    tree = {"w": jax.numpy.asarray(w), "q": jax.numpy.ones(4, jax.numpy.int4)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "o", tree)
        checkpointer.save(tmp_path / "n", {"a": [tree["q"], tree["w"]], "b": (tree["w"], tree["q"]), "c": tree})
    foreign(tmp_path / "o", w)
    with pytest.raises(sw.Unsupported, match="'q' has dtype int4.*names= or --exclude"):
        sw.import_orbax(tmp_path / "o", tmp_path / "x")
    with pytest.warns(UserWarning, match="left out"), pytest.raises(sw.InvalidArgument, match="'q' has dtype int4"):
        swj.load(tmp_path / "o", tree)
    with pytest.warns(UserWarning, match="left out"):
        found = swj.load(tmp_path / "n")  # where a list had it there is None
    assert found["a"][0] is None and list(found["c"]) == ["w"]
    for value in (found["a"][1], found["b"][0], found["c"]["w"]):
        assert np.array_equal(value, w)


def test_the_command_lists_dtypes_of_dcp(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q = torch.quantize_per_tensor(torch.ones(3, 4), 0.5, 10, torch.qint8)
        dcp.save({"w": torch.arange(3.0), "q": q}, checkpoint_id=tmp_path / "d", no_dist=True)
    shown = json.loads(run("inspect", "--json", tmp_path / "d").stdout)
    assert [(t["name"], t["dtype"], t["shape"]) for t in shown["tensors"]] == [("q", "torch.qint8", [3, 4]), ("w", "f32", [3])]
    assert run("import", tmp_path / "d", tmp_path / "run", "--step", 1, "--exclude", "q").returncode == 0
    assert np.array_equal(sw.load(tmp_path / "run/step-00000001")["w"], np.arange(3))
