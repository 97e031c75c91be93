"""Folders from outside whose names, keys and links lead out of them: nothing beyond the folder is read."""

import json
import logging
import os
import pickle
import random
import shutil

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
import pytest

import shardwise as sw

logging.getLogger("absl").setLevel(logging.CRITICAL)
SECRET = 77.0


def spellings(rng, outside, folder):
    """Returns spellings of a path outside a folder."""
    relative = os.path.relpath(outside, folder)
    absolute = str(outside)
    detours = "".join(rng.choice(("./", "x/../", "")) for _ in range(3))
    return rng.choice((absolute, "/" + absolute, "/./" + absolute[1:], relative, detours + relative, "a/../" + relative))


@pytest.fixture(scope="module")
def orbax(tmp_path_factory):
    """Makes a checkpoint whose arrays are files, and a second one that it must not reach."""
    ocp = pytest.importorskip("orbax.checkpoint", reason="needs orbax.checkpoint, which this environment has not")
    root = tmp_path_factory.mktemp("orbax")
    for name, value in (("good", 1.0), ("outside", SECRET)):
        ocp.PyTreeCheckpointer(use_ocdbt=False).save(root / name, {"w": np.full(6, value), "mlp/~/l": {"b": np.full(2, value)}})
    ocp.PyTreeCheckpointer().save(root / "database", {"w": np.ones(6), "/k": {"..": np.ones(3)}})
    return root


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("look", [False, True])
def test_keys_of_orbax_stay_in_the_folder(tmp_path, orbax, seed, look):
    from shardwise._formats import orbax as _import_orbax

    rng = random.Random(seed)
    shutil.copytree(orbax / "good", tmp_path / "bad")
    shutil.copytree(orbax / "outside", tmp_path / "outside")
    said = json.loads((tmp_path / "bad" / "_METADATA").read_text())
    key = spellings(rng, tmp_path / "outside" / "w", tmp_path / "bad")
    parts = [key] if "." not in key or seed % 2 else key.split(".", 1)  # Orbax joins keys by "."
    said["tree_metadata"][str(tuple(parts))] = {
        "key_metadata": [{"key": part, "key_type": 2} for part in parts],
        "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False}}
    if seed % 3 == 0:  # a manifest does not make a database of it
        shutil.copy(orbax / "database" / "manifest.ocdbt", tmp_path / "bad")
    (tmp_path / "bad" / "_METADATA").write_text(json.dumps(said))
    with pytest.raises(sw.Corrupt, match="found the key .*_METADATA, needed one that is a path in the folder itself"):
        if look:
            _import_orbax.described(str(tmp_path / "bad"))
        sw.import_orbax(tmp_path / "bad", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", range(12))
def test_links_of_orbax_stay_in_the_folder(tmp_path, orbax, seed):
    rng = random.Random(seed)
    shutil.copytree(orbax / "good", tmp_path / "bad")
    shutil.copytree(orbax / "outside", tmp_path / "outside")
    every = [path for path in (tmp_path / "bad").rglob("*") if path.name != "commit_success.txt"]
    victim = rng.choice(sorted(every))
    outside = tmp_path / "outside" / victim.relative_to(tmp_path / "bad")
    shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
    victim.symlink_to(rng.choice((outside, os.path.relpath(outside, victim.parent))))
    with pytest.raises(sw.Corrupt, match="found a link to .*outside.*, needed a file in .*: `cp -rL`"):
        sw.import_orbax(tmp_path / "bad", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_stays_in_orbaxs_folder_is_read(tmp_path, orbax):
    shutil.copytree(orbax / "good", tmp_path / "good")
    os.rename(tmp_path / "good" / "w", tmp_path / "good" / "elsewhere")
    (tmp_path / "good" / "w").symlink_to("elsewhere")
    (tmp_path / "link").symlink_to("good")
    read = sw.load(sw.import_orbax(tmp_path / "link", tmp_path / "out"))
    assert read["w"].tolist() == [1.0] * 6 and read["mlp/~/l/b"].tolist() == [1.0] * 2
    keyed = sw.load(sw.import_orbax(orbax / "database", tmp_path / "keyed"))  # keys of a database are no paths
    assert sorted(value.shape for value in keyed.values()) == [(3,), (6,)]


@pytest.fixture
def dcp(tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import torch.distributed.checkpoint as dcp

    for name, value in (("bad", 1.0), ("outside", SECRET)):
        dcp.save({"w": torch.full((6,), value), "step": 5}, storage_writer=dcp.FileSystemWriter(tmp_path / name))
    return tmp_path


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("is_relative", [False, True])
def test_links_of_dcp_stay_in_the_folder(dcp, name, is_relative):
    outside = dcp / "outside" / name
    (dcp / "bad" / name).unlink()
    (dcp / "bad" / name).symlink_to(f"../outside/{name}" if is_relative else outside)
    with pytest.raises(sw.Corrupt, match="found a link to .*outside.*, needed a file in .*: `cp -rL`"):
        sw.import_dcp(dcp / "bad", dcp / "out")
    assert not (dcp / "out").exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_links_of_dcp_inside_are_read(dcp):
    os.rename(dcp / "bad" / "__0_0.distcp", dcp / "bad" / "data")
    (dcp / "bad" / "__0_0.distcp").symlink_to("data")
    (dcp / "link").symlink_to("bad")
    assert sw.load(sw.import_dcp(dcp / "link", dcp / "out"))["w"].tolist() == [1.0] * 6


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("seed", range(8))
def test_names_of_dcp_stay_in_the_folder(dcp, seed):
    import dataclasses

    with open(dcp / "bad" / ".metadata", "rb") as file:
        metadata = pickle.load(file)
    path = spellings(random.Random(seed), dcp / "outside" / "__0_0.distcp", dcp / "bad")
    metadata.storage_data = {index: dataclasses.replace(info, relative_path=path)
                             for index, info in metadata.storage_data.items()}
    with open(dcp / "bad" / ".metadata", "wb") as file:
        pickle.dump(metadata, file)
    with pytest.raises(sw.Corrupt, match="needed a file in the folder itself"):
        sw.import_dcp(dcp / "bad", dcp / "out")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("suffix", ["safetensors", "npz", "h5"])
def test_indexes_stay_in_the_folder(tmp_path, seed, suffix):
    (tmp_path / "model").mkdir()
    sw.save(tmp_path / "c", {"w": np.full(3, SECRET)})
    sw.export_model(tmp_path / "c", tmp_path / f"outside.{suffix}")
    path = spellings(random.Random(seed), tmp_path / f"outside.{suffix}", tmp_path / "model")
    (tmp_path / "model" / f"model.{suffix}.index.json").write_text(json.dumps({"weight_map": {"w": path}}))
    for read in (sw.load, lambda source: sw.import_model(source, tmp_path / "out")):
        with pytest.raises(sw.Corrupt, match="is not a plain name of a file beside the index"):
            read(tmp_path / "model")


def test_links_of_a_cache_of_hugging_face_are_read(tmp_path):
    """The user's own cache consists of links, which no file has named."""
    sw.save(tmp_path / "c", {"w": np.arange(3.0)})
    snapshot = tmp_path / "models--x" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--x" / "blobs").mkdir()
    sw.export_model(tmp_path / "c", tmp_path / "model.safetensors")
    os.rename(tmp_path / "model.safetensors", tmp_path / "models--x" / "blobs" / "abc")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    assert sw.load(snapshot)["w"].tolist() == [0.0, 1.0, 2.0]


def test_files_of_hdf5_lead_nowhere(tmp_path):
    h5py = pytest.importorskip("h5py", reason="needs h5py, which this environment has not")

    raw = tmp_path / "raw"
    raw.write_bytes(np.full(4, SECRET).tobytes())
    with h5py.File(tmp_path / "outside.h5", "w") as file:
        file["w"] = np.full(4, SECRET)
    with h5py.File(tmp_path / "bad.h5", "w") as file:
        file["own"] = np.ones(4)
        file["linked"] = h5py.ExternalLink(str(tmp_path / "outside.h5"), "/w")
        file.create_dataset("external", (4,), "f8", external=[(str(raw), 0, 32)])
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(tmp_path / "outside.h5", "w", (4,))
        file.create_virtual_dataset("virtual", layout)
    with pytest.warns(UserWarning, match="left out"):
        path = sw.import_model(tmp_path / "bad.h5", tmp_path / "out")
    assert list(sw.load(path)) == ["own"]
