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


def test_what_is_whole_is_read(tmp_path, good):
    assert sw.load(sw.import_orbax(good, tmp_path / "out"))["i"] == 3
