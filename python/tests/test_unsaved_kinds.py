"""Arrays that cannot be stored: the one error of every call names all, and the code that it advises works."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw

BAD = {
    "text": (np.array(["a", "b"]), "array.tolist()"), "raw": (np.array([b"a", b"b"]), "array.tolist()"),
    "object": (np.array([1, None], object), "array.tolist()"), "when": (np.array(["2026-11-29"], "M8[D]"), 'array.view("i8")'),
    "span": (np.array([3], "m8[s]"), 'array.view("i8")'), "void": (np.zeros(2, "V3"), 'array.view("u1")'),
    "record": (np.zeros(2, [("x", "f4"), ("y", "i4")]), "array.dtype.names"), "long": (np.ones(2, np.longdouble), '.astype("f8")'),
    "complex": (np.ones(2, np.clongdouble), '.astype("c16")'), "int4": (np.ones(2, ml_dtypes.int4), '.astype("i1")'),
    "uint2": (np.ones(2, ml_dtypes.uint2), '.astype("u1")'), "float6": (np.ones(2, ml_dtypes.float6_e2m3fn), '.view("u1")'),
    "float4": (np.ones(2, ml_dtypes.float4_e2m1fn), '.astype("f4")'),
}
INSTEAD = {
    "text": lambda a: a.tolist(), "raw": lambda a: a.tolist(), "object": lambda a: a.tolist(), "when": lambda a: a.view("i8"),
    "span": lambda a: a.view("i8"), "void": lambda a: a.view("u1"), "record": lambda a: {f: a[f] for f in a.dtype.names},
    "long": lambda a: a.astype("f8"), "complex": lambda a: a.astype("c16"), "int4": lambda a: a.astype("i1"),
    "uint2": lambda a: a.astype("u1"), "float6": lambda a: a.view("u1"), "float4": lambda a: a.astype("f4"),
}


def state():
    return {"good": np.ones(2), "deep": {name: array for name, (array, _) in BAD.items()}}


def doors(folder, package):
    with package.CheckpointManager(folder / "m") as manager:
        yield lambda tree: manager.save(1, tree)
    with package.CheckpointManager(folder / "n") as manager:
        yield lambda tree: manager.save_async(1, tree)
    yield lambda tree: package.save(folder / "x", tree)
    if hasattr(package, "save_async"):
        yield lambda tree: package.save_async(folder / "y", tree).wait()


@pytest.mark.parametrize("package", ["shardwise", "shardwise.torch", "shardwise.jax"])
def test_all_are_named(tmp_path, package):
    pytest.importorskip(package.removeprefix("shardwise.") if "." in package else "numpy", reason="needs its framework, which is not here")
    module = pytest.importorskip(package)
    separator = "." if package.endswith("torch") else "/"
    for door in doors(tmp_path, module):
        with pytest.raises(TypeError) as error:
            door(state())
        for name, (_, instead) in BAD.items():
            assert f"'deep{separator}{name}'" in str(error.value) and instead in str(error.value)
        assert "''" not in str(error.value) and "\n" not in str(error.value)
        dtypes_only = {"a": BAD["long"][0], "b": BAD["int4"][0]}
        with pytest.raises(sw.Unsupported, match="'a'.*'b'"):
            door(dtypes_only)
    assert not (tmp_path / "x").exists()
    module.save(tmp_path / "x", {name: INSTEAD[name](array) for name, (array, _) in BAD.items()})


def test_tensors_of_torch(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    bad = {"f4": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "lazy": torch.nn.LazyLinear(2),
           "half": torch.zeros(2, dtype=torch.complex32), "meta": torch.zeros(2, device="meta"), "object": object()}
    with pytest.raises(TypeError) as error:
        swt.save(tmp_path / "x", bad)
    for text in ("'f4'", "'lazy.weight'", "'lazy.bias'", "'half'", "'meta'", "'object'", "tensor.view(torch.uint8)", "torch.complex64"):
        assert text in str(error.value)
    swt.save(tmp_path / "x", {"f4": bad["f4"].view(torch.uint8), "half": bad["half"].to(torch.complex64)})
