"""Compares npz and HDF5, read and written, with numpy and h5py."""

import pickle

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw

ARRAYS = {"a/kernel": np.arange(60, dtype=np.float32).reshape(3, 4, 5), "n": np.arange(5), "s": np.float16(1.5), "b": np.array([True, False]),
          "z": np.array([1 + 2j]), "e": np.zeros((0, 2), np.uint8)}


def same(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array), name


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save):
    save(tmp_path / "in.npz", **ARRAYS, f=np.asfortranarray(np.arange(6).reshape(2, 3)))
    step = sw.import_model(tmp_path / "in.npz", tmp_path / "a")
    assert sw.diff(tmp_path / "in.npz", step).equal and sw.stats(tmp_path / "in.npz", "n")["n"].max == 4
    assert sw.export_model(step, tmp_path / "out.npz") == [str(tmp_path / "out.npz")]
    with np.load(tmp_path / "out.npz") as found:
        same(found, {**ARRAYS, "f": np.arange(6).reshape(2, 3)})
    files = sw.export_model(step, tmp_path / "many", format="npz", max_shard=100)
    assert len(files) > 1 and sw.diff(tmp_path / "many", step).equal


def test_bfloat16_comes_back(tmp_path):
    array = np.arange(7).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "in.npz", w=array)
    step = sw.import_model(tmp_path / "in.npz", tmp_path / "a")
    assert sw.load(step)["w"].dtype == array.dtype
    sw.export_model(step, tmp_path / "out.npz")
    assert np.array_equal(np.load(tmp_path / "out.npz")["w"].view(array.dtype), array)


def test_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py", reason="needs h5py, which this environment has not")
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name, array in ARRAYS.items():
            file.create_dataset(name, data=array, **({"compression": "gzip"} if array.ndim and array.size else {}))
        file["names"] = ["a"]
    with pytest.warns(UserWarning, match='in.h5: left out "names": strings'):
        step = sw.import_model(tmp_path / "in.h5", tmp_path / "a")
    same(sw.load(step), ARRAYS)
    sw.export_model(step, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        same({name: file[name][()] for name in ARRAYS}, ARRAYS)
        assert sorted(file) == ["a", "b", "e", "n", "s", "z"]


def test_objects_are_not_unpickled(tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "made"), "w")

    np.savez(tmp_path / "in.npz", w=np.ones(2), o=np.array([Evil(), 1], dtype=object))
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps(Evil()))
    with pytest.warns(UserWarning, match='left out "o"'):
        assert set(sw.load(sw.import_model(tmp_path / "in.npz", tmp_path / "a"))) == {"w"}
    with pytest.raises(sw.Unsupported, match="a Python pickle"):
        sw.import_model(tmp_path / "pickle.npz", tmp_path / "b")
    assert not (tmp_path / "made").exists() and not (tmp_path / "b").exists()


def test_what_a_format_has_not_is_told(tmp_path):
    sw.save(tmp_path / "a", {"w": np.zeros(2, ml_dtypes.float8_e4m3fn), "v": np.zeros(2)})
    for target in ("x.npz", "x.h5"):
        with pytest.raises(sw.Unsupported, match='no dtype f8_e4m3fn of "w"'):
            sw.export_model(tmp_path / "a", tmp_path / target)
    sw.export_model(tmp_path / "a", tmp_path / "x.npz", names="v")
    with pytest.raises(sw.InvalidArgument, match="zip"):
        sw.export_model(tmp_path / "a", tmp_path / "x", format="zip")
