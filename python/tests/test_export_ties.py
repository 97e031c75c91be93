"""Names of tied tensors survive each export."""

import json

import numpy as np
import pytest

import shardwise as sw

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
import shardwise.torch as swt  # noqa: E402


@pytest.fixture
def tied(tmp_path):
    shared, other = torch.arange(6.0).reshape(2, 3), torch.ones(4, dtype=torch.int32)
    swt.save(tmp_path / "c", {"emb": shared, "head": shared, "a": {"emb": shared}, "x": other, "y": other, "n": torch.zeros(2)})
    return tmp_path / "c"


NAMES = ["a.emb", "emb", "head", "n", "x", "y"]


def check(read, names=NAMES):
    assert sorted(read) == names
    for name in names:
        expected = {"x": np.ones(4, np.int32), "y": np.ones(4, np.int32), "n": np.zeros(2, np.float32)}.get(
            name, np.arange(6, dtype=np.float32).reshape(2, 3))
        assert read[name].dtype == expected.dtype and np.array_equal(read[name], expected), name


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "h5"])
def test_a_file_has_both_names(tmp_path, tied, suffix):
    sw.export_model(tied, tmp_path / f"m.{suffix}")
    check(dict(sw.load(tmp_path / f"m.{suffix}")))
    check(dict(sw.load(sw.import_model(tmp_path / f"m.{suffix}", tmp_path / "back"))))
    if suffix == "safetensors":
        check(pytest.importorskip("safetensors.numpy").load_file(tmp_path / "m.safetensors"))
    if suffix == "npz":
        check(np.load(tmp_path / "m.npz"))
    if suffix == "h5":
        with pytest.importorskip("h5py").File(tmp_path / "m.h5") as file:
            check({name: file[name][()] for name in file})


@pytest.mark.parametrize("format", ["safetensors", "npz", "hdf5"])
def test_an_index_has_both_names(tmp_path, tied, format):
    sw.export_model(tied, tmp_path / "m", format=format, max_shard=30)
    index = json.loads(next((tmp_path / "m").glob("*.index.json")).read_text())
    assert sorted(index["weight_map"]) == NAMES
    check(dict(sw.load(sw.import_model(tmp_path / "m", tmp_path / "back"))))


@pytest.mark.parametrize("format", ["dcp", "orbax"])
def test_formats_of_pythons_have_both_names(tmp_path, tied, format):
    pytest.importorskip("orbax.checkpoint")
    sw.export_model(tied, tmp_path / "m", format=format)
    back = (sw.import_dcp if format == "dcp" else sw.import_orbax)(tmp_path / "m", tmp_path / "back")
    read = {name.replace("/", "."): value for name, value in sw.load(back).items()}
    check(read)


def test_edits_see_both_names(tmp_path, tied):
    sw.export_model(tied, tmp_path / "s.safetensors", names=["head", "y"])
    check(dict(sw.load(tmp_path / "s.safetensors")), ["head", "y"])
    sw.export_model(tied, tmp_path / "r.safetensors", rename={"head": "lm"}, cast={"head": "f16"})
    read = sw.load(tmp_path / "r.safetensors")
    assert read["lm"].dtype == np.float16 and read["emb"].dtype == np.float32 and "head" not in read


def test_a_tie_that_a_config_says_is_left_out(tmp_path):
    from_folder = tmp_path / "hf"
    from_folder.mkdir()
    (from_folder / "config.json").write_text('{"tie_word_embeddings": true}')
    weight = torch.ones(5, 2)
    swt.save(tmp_path / "t", {"lm_head.weight": weight, "model.embed_tokens.weight": weight})
    sw.export_model(tmp_path / "t", tmp_path / "m", config_from=from_folder)
    assert list(sw.load(tmp_path / "m")) == ["model.embed_tokens.weight"]
