"""Safetensors in and out, bit for bit."""

import json
import os

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw


def tensors(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"a.w": rng.standard_normal((30, 20), np.float32), "b": np.arange(7, dtype=ml_dtypes.bfloat16), "s": np.array(2.5),
            "e": np.zeros((0, 3), np.int8), "f8": np.arange(16, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn), "m": np.array([True])}


def test_there_and_back(tmp_path, rng):
    saved = tensors(rng)
    sw.save(tmp_path / "a", {**saved, "note": "left out"}, user={"lr": 0.1})
    files = sw.export_model(tmp_path / "a", tmp_path / "m.safetensors")
    assert files == [str(tmp_path / "m.safetensors")]
    path = sw.import_model(files[0], tmp_path / "b")
    with sw.open(path) as c:
        assert set(c) == set(saved)
        for name, array in saved.items():
            np.testing.assert_array_equal(np.ascontiguousarray(c[name]).view(np.uint8), np.ascontiguousarray(array).view(np.uint8))
    sw.export_model(path, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()
    with pytest.raises(FileExistsError):
        sw.export_model(path, tmp_path / "again.safetensors")


def test_many_files(tmp_path, rng):
    sw.save(tmp_path / "a", {f"t{i}": rng.standard_normal(1000) for i in range(9)})
    (tmp_path / "m").mkdir()
    files = sw.export_model(tmp_path / "a", tmp_path / "m2", max_shard="20KB")
    assert len(files) > 3 and (tmp_path / "m2" / "model.safetensors.index.json").exists()
    path = sw.import_model(tmp_path / "m2", tmp_path / "b")
    assert all((a == b).all() for a, b in zip(sw.load(tmp_path / "a").values(), sw.load(path).values()))
    with pytest.raises(ValueError, match="max_shard"):
        sw.export_model(tmp_path / "a", tmp_path / "m3", max_shard="5 parsecs")


def test_the_library_itself_reads_and_writes_the_same(tmp_path, rng):
    library = pytest.importorskip("safetensors.numpy", reason="needs safetensors, which this environment has not")
    saved = {k: v for k, v in tensors(rng).items() if k != "f8"}
    library.save_file(saved, tmp_path / "theirs.safetensors", metadata={"format": "np"})
    sw.import_model(tmp_path / "theirs.safetensors", tmp_path / "a")
    sw.export_model(tmp_path / "a", tmp_path / "ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


@pytest.mark.parametrize("header", [b"", b"\x10", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{", b"\x02\0\0\0\0\0\0\0[]",
                                    (lambda h: len(h).to_bytes(8, "little") + h)(json.dumps(
                                        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 99]}}).encode())])
def test_hostile_files_are_refused(tmp_path, header):
    (tmp_path / "x.safetensors").write_bytes(header)
    with pytest.raises(sw.Error, match="x.safetensors"):
        sw.import_model(tmp_path / "x.safetensors", tmp_path / "a")
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_dtypes_it_has_not_are_named(tmp_path):
    sw.save(tmp_path / "a", {"c": np.zeros(2, np.complex128), "d": np.zeros(2)})
    with pytest.raises(NotImplementedError, match='"c"'):
        sw.export_model(tmp_path / "a", tmp_path / "m.safetensors")


def test_a_word_that_existing_has_not_is_refused_by_every_binding(tmp_path):
    for call in (lambda: sw._core.import_model("a", "b", "replase", "zstd", 1 << 28),
                 lambda: sw._core.export_model("a", "b", ("", "{}", ""), 0, "replase", 1 << 28),
                 lambda: sw._core.reshard("a", "b", "x=1", existing="replase"),
                 lambda: sw._core.Attempt(str(tmp_path / "a"), "replase")):
        with pytest.raises(sw.InvalidArgument, match='found existing "replase", needed "fail", "replace" or "skip"'):
            call()
