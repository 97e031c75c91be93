"""What the command shows of a checkpoint beside its tensors."""

import json
import pathlib
import subprocess

import numpy as np
import pytest

import shardwise as sw

COMMAND = pathlib.Path(str(sw._core.__file__)).parent / "bin" / "shardwise"


def told(*words, status=0):
    if not COMMAND.exists():
        pytest.skip("the command is not built")
    done = subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == status, done
    return done.stderr if status else done.stdout


def test_objects_and_metrics_are_shown(tmp_path):
    state = {"w": np.zeros(4, "f4"), "epoch": 3, "note": "\x1b[31m" + "é" * 80, "of": {"lr": [0.1, 0.2]}}
    with sw.CheckpointManager(tmp_path) as manager:
        manager.save(1, state, metrics={"loss": 0.5})
        manager.save(2, {"w": state["w"], **{f"n{i:02}": i for i in range(23)}})
        manager.save(3, {"w": state["w"]})
    text = told("inspect", tmp_path / "step-00000001")
    shown = [line.split(None, 1) for line in text[text.index("\nobject"):].splitlines()[1:]]
    assert shown[:3] == [["object", "value"], ["metrics", '{"loss":0.5}'], ["epoch", "3"]]
    assert dict(shown[3:])["note"] == '"\\u001b[31m' + "é" * 24 + ".."  # 60 bytes, of whole characters
    assert dict(shown[3:])["of"] == '{"lr":[0.1,0.2]}'
    said = json.loads(told("inspect", tmp_path / "step-00000001", "--json"))
    assert said["metrics"] == {"loss": 0.5} and said["objects"] == {key: value for key, value in state.items() if key != "w"}
    assert "\nobject" not in told("inspect", tmp_path)
    assert "\nn19        19\nand 3 more, which --json shows\n" in told("inspect", tmp_path / "step-00000002")
    assert "\nobject" not in told("inspect", tmp_path / "step-00000001", "w")


def test_what_a_save_notes_for_itself_is_no_object(tmp_path):
    sw.save(tmp_path / "a", {"of": {"w": np.zeros(4, "f4")}})  # with the kinds of its dicts
    assert "\nobject" not in told("inspect", tmp_path / "a")
    assert json.loads(told("inspect", tmp_path / "a", "--json"))["objects"] == {}
    assert 'has no tensor "tree"' in told("cat", tmp_path / "a", "tree", status=3)


def test_cat_shows_an_object(tmp_path):
    sw.save(tmp_path / "a", {"w": np.zeros(4, "f4"), "epoch": 3, "of": {"lr": 0.1}})
    assert told("cat", tmp_path / "a", "epoch") == "3\n"
    assert told("cat", tmp_path / "a", "epoch", "--json") == '{"object":"epoch","value":3}\n'
    assert told("cat", tmp_path / "a", "of") == '{"lr":0.1}\n'
    assert told("cat", tmp_path / "a", "of", "--box", "1", status=2) == 'shardwise: cat: --box: found the object "of", needed a tensor\n'
    assert told("cat", tmp_path / "a", "of", "--npy", "x", status=2) == 'shardwise: cat: --npy: found the object "of", needed a tensor\n'
    assert 'has no tensor "epoc"' in told("cat", tmp_path / "a", "epoc", status=3)
