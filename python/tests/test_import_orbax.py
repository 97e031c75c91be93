"""Checkpoints of Orbax's that are damaged, or were made to do harm: the error is ours, and nothing is written."""

import json
import logging
import os
import shutil

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
import pytest

import shardwise as sw

ocp = pytest.importorskip("orbax.checkpoint", reason="needs orbax.checkpoint, which this environment has not")

logging.getLogger("absl").setLevel(logging.CRITICAL)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("orbax") / "good"
    ocp.PyTreeCheckpointer().save(path, {"a": {"b": np.random.default_rng(0).standard_normal((200, 300))}, "i": 3, "s": "x"})
    return path


def put(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def fifo(name):
    def change(folder):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    return change


def said(change):
    def write(folder):
        found = json.loads((folder / "_METADATA").read_text())
        change(found["tree_metadata"])
        (folder / "_METADATA").write_text(json.dumps(found))
    return write


def to_all_data(change):
    def write(folder):
        for path in [*folder.glob("d/*"), *folder.glob("ocdbt.process_0/d/*")]:
            path.write_bytes(change(path.read_bytes()))
    return write


def one_more(tree):
    tree["('z',)"] = {**tree["('i',)"], "key_metadata": [{"key": "z", "key_type": 2}]}


HARM = {
    "no metadata in it": put("_METADATA", b""), "a list": put("_METADATA", b"[]"), "no text": put("_METADATA", b"\xff\xfe{"),
    "nothing in it": put("_METADATA", b"{}"), "nested": put("_METADATA", b"[" * 100_000),
    "an array that is not there": said(one_more), "an unknown type": said(lambda tree: tree["('i',)"]["value_metadata"].update(value_type="os.system")),
    "no manifest": lambda folder: (folder / "manifest.ocdbt").unlink(), "another manifest": put("manifest.ocdbt", b"garbage" * 10),
    "no data": lambda folder: shutil.rmtree(folder / "ocdbt.process_0"),
    "short data": to_all_data(lambda data: data[:50]), "other data": to_all_data(lambda data: bytes(255 - byte for byte in data)),
    "no strings": put("_strings.json", b"{"), "no JSON of the checkpoint": put("_CHECKPOINT_METADATA", b"[1,"),
    "a list of the checkpoint": put("_CHECKPOINT_METADATA", b"[1]"),
    "a FIFO": fifo("_METADATA"), "a FIFO of data": fifo("manifest.ocdbt"),
}


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("what", list(HARM))
def test_harm_is_an_error_of_ours(tmp_path, good, what):
    shutil.copytree(good, tmp_path / "bad")
    HARM[what](tmp_path / "bad")
    with pytest.raises(sw.Corrupt, match=f"import {tmp_path / 'bad'}.*(Orbax does not read it: .|found )") as error:
        sw.import_orbax(tmp_path / "bad", tmp_path / "out")
    assert "\n" not in str(error.value) and os.listdir(tmp_path) == ["bad"]


@pytest.fixture(scope="module")
def of_files(tmp_path_factory):
    """Each array is a folder of zarr's."""
    path = tmp_path_factory.mktemp("orbax") / "files"
    ocp.PyTreeCheckpointer(use_ocdbt=False).save(path, {"w": np.arange(60_000.0).reshape(200, 300), "i": 3})
    return path


def array(**said):
    def change(folder):
        path = folder / "w" / ".zarray"
        path.write_text(json.dumps({**json.loads(path.read_text()), **said}))
    return change


ABSURD = {
    "a chunk of 2^62": (array(shape=[2**62], chunks=[2**62]), "Total number of bytes per chunk is too large"),
    "2^62 chunks": (array(shape=[2**62], chunks=[1]), "found [0-9,]+ bytes in all files, needed one for each chunk"),
    "2^40 elements": (array(shape=[2**40], chunks=[2**40]), "found [0-9]+ bytes in all files, which cannot hold them"),
    "a shape of 2^124": (array(shape=[2**62, 2**62], chunks=[2**30, 2**30]), "too large|in chunks"),
    "a chunk larger than all": (array(shape=[10, 10], chunks=[2**20, 2**20]), r"in chunks of \[1048576, 1048576\], needed chunks of 1 to"),
    "negative": (array(shape=[-3, 300]), "but received: -3"), "chunks of 0": (array(chunks=[0, 0]), "but received: 0"),
    "negative chunks": (array(chunks=[-1, 300]), "but received: -1"), "another rank": (array(chunks=[200]), "has length 1 but should have length 2"),
    "a million chunks that are not there": (array(shape=[1000, 1000], chunks=[1, 1]), "Orbax does not read it: .|found no "),
    "a chunk that is not there": (lambda folder: (folder / "w" / "0.0").unlink(), "Orbax does not read it: .|found no "),
    "no dtype": (array(dtype="<q99"), "dtype|Unsupported zarr"), "objects": (array(dtype="|O"), "dtype|Unsupported zarr"),
    "no JSON": (lambda folder: (folder / "w" / ".zarray").write_text("{"), "JSON"),
    "nested": (lambda folder: (folder / "w" / ".zarray").write_text("[" * 100_000), "JSON"),
    "another's": (array(shape=[100, 300], chunks=[100, 300]), "Orbax does not read it: .|found "),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", list(ABSURD))
def test_absurd_arrays_are_one_clear_error(tmp_path, of_files, what):
    shutil.copytree(of_files, tmp_path / "bad")
    change, said = ABSURD[what]
    change(tmp_path / "bad")
    with pytest.raises(sw.Corrupt, match=f"import {tmp_path / 'bad'}.*({said})") as error:
        sw.import_orbax(tmp_path / "bad", tmp_path / "out")
    assert "\n" not in str(error.value) and "tensorstore_spec" not in str(error.value) and os.listdir(tmp_path) == ["bad"]


def test_an_array_larger_than_memory_is_refused_before_it_is_read(tmp_path, of_files, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 480_000 - 1}.get)
    with pytest.raises(sw.ResourceExhausted, match="480000 bytes, which are read at once, found 479999 bytes of memory"):
        sw.import_orbax(of_files, tmp_path / "out")


def test_what_is_whole_is_read(tmp_path, good):
    assert sw.load(sw.import_orbax(good, tmp_path / "out"))["i"] == 3


def test_what_is_not_selected_is_never_looked_at(tmp_path):
    import jax.numpy as jnp

    tree = {"a": {"w": jnp.arange(3.0), "v": jnp.ones(2)}, "q": jnp.ones(4, jnp.int4), "i": 3}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "run" / "100", tree)
    with pytest.raises(sw.Unsupported, match="'q'.*names="):
        sw.import_orbax(tmp_path / "run" / "100", tmp_path / "none")
    found = sw.load(sw.import_orbax(tmp_path / "run" / "100", tmp_path / "some", names="a/*"))
    assert sorted(found) == ["a/v", "a/w"] and np.array_equal(found["a/w"], [0, 1, 2])
    sw.import_orbax(tmp_path / "run", tmp_path / "all", steps="all", names=["*w"])
    assert list(sw.load(tmp_path / "all" / "step-00000100")) == ["a/w"]
    with pytest.raises(sw.InvalidArgument, match="'w' matches none of 4 names"):
        sw.import_orbax(tmp_path / "run" / "100", tmp_path / "none", names="w")
    assert not (tmp_path / "none").exists()
