"""Tests how the command shows the objects of a checkpoint."""

import collections
import dataclasses
import datetime
import enum
import json
import math
import pathlib
import subprocess
import types
import typing

import numpy as np
import pytest

import shardwise as sw
from shardwise._checkpoint import save as _save

COMMAND = pathlib.Path(str(sw._core.__file__)).parent / "bin" / "shardwise"


def told(*words, status=0, fails=False):
    if not COMMAND.exists():
        pytest.skip("the command is not built")
    done = subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == (1 if fails else status), done
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


class Level(enum.Enum):
    low = 1


class Point(typing.NamedTuple):
    x: int
    y: float


@dataclasses.dataclass
class Config:
    name: str
    level: Level


SHOWN = {
    "1": 1, '"a"': "a", "null": None, "nan": math.nan, "-inf": -math.inf, '[1,"b"]': [1, "b"], "(1,(2,))": (1, (2,)), "()": (),
    "{1,2}": {1, 2}, "set()": set(), "frozenset(1)": frozenset([1]), '{1:"a"}': {1: "a"}, '{"$x":1}': {"$x": 1},
    "complex(1.0,-2.0)": 1 - 2j, "bytes(00ff)": b"\x00\xff", "date(2026-11-27)": datetime.date(2026, 11, 27),
    "datetime(2026-11-27T01:02:03+00:00)": datetime.datetime(2026, 11, 27, 1, 2, 3, tzinfo=datetime.timezone.utc),
    'Path("/a b")': pathlib.Path("/a b"), "slice(1,null,2)": slice(1, None, 2), "range(1,9,2)": range(1, 9, 2), "ellipsis()": ...,
    "dtype(<f4)": np.dtype("f4"), 'namespace({"a":array(f32 [2]),"b":numpy(<f4,0.5)})': types.SimpleNamespace(a=np.zeros(2, "f4"), b=np.float32(0.5)),
    "Level.low": Level.low, "Point(x=1,y=0.5)": Point(1, 0.5), 'Config(name="a",level=Level.low)': Config("a", Level.low),
    'OrderedDict{"a":1}': collections.OrderedDict(a=1), 'Counter{"a":2}': collections.Counter("aa"), "deque[1,2]": collections.deque([1, 2]),
    'defaultdict{"a":1}': collections.defaultdict(int, a=1),
    **{str(n): n for n in (2**63, -(2**63), 2**64 - 1, 2**64, -(2**64), 10**20, 10**301 + 1)}, "1e+300": 1e300,
}  # fmt: skip


def test_values_are_shown_as_python_writes_them(tmp_path):
    sw.save(tmp_path / "a", {"w": np.zeros(1), **{f"v{number:03}": value for number, value in enumerate(SHOWN.values())}})
    text = told("inspect", tmp_path / "a")
    shown = dict(line.split(None, 1) for line in text[text.index("\nobject"):].splitlines()[2:] if line.startswith("v0"))
    assert len(shown) == 20
    for number, expected in enumerate(SHOWN):
        name = f"v{number:03}"
        assert (shown[name] if name in shown else told("cat", tmp_path / "a", name).rstrip("\n")) == expected


def test_whole_numbers_are_exact(tmp_path):
    numbers = {"a": 2**64, "b": [-(2**63) - 1, {"c": 10**300 + 7}], "d": 1.5e300, "e": "12345678901234567890", "f": "\x01123",
               "x": ["\x01" * 5 + "1", "\x01" * 9], "g\\": 10**25}
    sw.save(tmp_path / "a", {"w": np.zeros(1), **numbers, "huge": -(10**400)}, user=numbers)
    said = json.loads(told("inspect", tmp_path / "a", "--json"))
    assert said["user"] == numbers and said["objects"] == {**numbers, "huge": {"$int": hex(-(10**400))}}
    assert json.loads(told("cat", tmp_path / "a", "b", "--json")) == {"object": "b", "value": numbers["b"]}
    assert told("cat", tmp_path / "a", "a") == "18446744073709551616\n" and sw.load(tmp_path / "a")["huge"] == -(10**400)


HOSTILE = [{"$items": 1}, {"$items": [[1]]}, {"$kept": []}, {"$kept": [{}, []]}, {"$kept": [{"namedtuple": 1, "fields": []}, [[0, 1]]]},
           {"$kept": [[], [[1, 2]]]}, {"$enum": [1, 2, 3]}, {"$path": [[], {}]}, {"$array": [1, 2, 3]}, {"$tuple": {"a": 1}}, {"$": "\x1b[31m"},
           {"$set": None}, {"$float": []}, {"$date": "\x1b]0;title\x07"}]  # fmt: skip


def test_what_no_save_has_written_is_shown_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(_save, "encode_objects", lambda objects: {f"v{n}": value for n, value in enumerate(HOSTILE)})
    sw.save(tmp_path / "a", {"bad": 0, "w": np.zeros(1)})
    text = told("inspect", tmp_path / "a")
    assert text.count("\nv") == len(HOSTILE) and "\x1b" not in text and 'path([],{})' not in text
    for number in range(len(HOSTILE)):
        assert "\x1b" not in told("cat", tmp_path / "a", f"v{number}")


def test_one_long_name_does_not_widen_all_rows(tmp_path):
    long = "n" * 1000
    sw.save(tmp_path / "a", {"short": np.zeros(1), long: np.zeros(2), "x" * 120: np.zeros(1), long + "o": 1, "p": 2})
    sw.save(tmp_path / "b", {"short": np.ones(1), long: np.ones(2), "x" * 120: np.zeros(1)})
    for words in (["inspect", tmp_path / "a"], ["inspect", "--flat", tmp_path / "a"], ["stats", tmp_path / "a"]):
        lines = told(*words).splitlines()
        assert all(len(line) < 250 or long in line for line in lines) and any(line.startswith(long + " ") for line in lines), words
    assert all(len(line) < 250 or long in line for line in told("diff", tmp_path / "a", tmp_path / "b", fails=True).splitlines())


def test_an_empty_path_is_said(tmp_path):
    needed = 'shardwise: the path is "", needed is a checkpoint, or a directory of checkpoints\n'
    for words in (["inspect", ""], ["ls", ""], ["cat", "", "w"], ["diff", "", tmp_path], ["verify", ""], ["du", ""]):
        assert told(*words, status=3) == needed


def test_cat_shows_metrics_and_user_data(tmp_path):
    with sw.CheckpointManager(tmp_path) as manager:
        manager.save(1, {"w": np.zeros(4, "f4"), "epoch": 3}, metrics={"loss": 0.5, "accuracy": 1.0})
        manager.save(2, {"w": np.zeros(4, "f4"), "user": {"mine": 1}})
    assert json.loads(told("cat", f"{tmp_path}@1", "metrics")) == {"accuracy": 1.0, "loss": 0.5}
    assert json.loads(told("cat", tmp_path, "1", "metrics", "--json")) == {
        "object": "metrics", "value": {"accuracy": 1.0, "loss": 0.5}}
    user = json.loads(told("inspect", f"{tmp_path}@1", "--json"))["user"]
    assert json.loads(told("cat", f"{tmp_path}@1", "user")) == user
    assert json.loads(told("cat", f"{tmp_path}@2", "user")) == {"mine": 1}  # an object of the user's
    assert 'has no tensor "metrics"' in told("cat", f"{tmp_path}@2", "metrics", status=3)
    assert "needed a tensor" in told("cat", f"{tmp_path}@1", "metrics", "--box", "0", status=2)


def test_ls_shows_times_metrics_and_pins(tmp_path):
    before = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    with sw.CheckpointManager(tmp_path) as manager:
        for step, loss in ((1, 0.5), (2, 0.25), (3, 0.75)):
            manager.save(step, {"w": np.zeros(4, "f4")}, metrics={"loss": loss})
        manager.save(4, {"w": np.zeros(4, "f4")})
        manager.pin(2, "best")
    steps = json.loads(told("ls", tmp_path, "--json"))["steps"]
    assert [step["metrics"] for step in steps] == [{"loss": 0.5}, {"loss": 0.25}, {"loss": 0.75}, {}]
    assert [step["pinned"] for step in steps] == [[], ["best"], [], []]
    times = [datetime.datetime.fromisoformat(step["time"].replace("Z", "+00:00")) for step in steps]
    assert before <= times[0] <= times[-1] <= datetime.datetime.now(datetime.timezone.utc)
    lines = told("ls", tmp_path).splitlines()
    assert lines[0].split() == ["step", "time", "tensors", "bytes", "alone", "shared", "mesh", "metrics", "pinned", "state"]
    assert "loss=0.25  best" in lines[2] and max(map(len, lines)) <= 110
    assert json.loads(told("cat", f"{tmp_path}@best", "metrics")) == {"loss": 0.25}


@pytest.mark.parametrize("mark", ["\x07", "\x1b[31m", "\x7f", "\x9b2J", "\u00ad", "\u202e", "\u2066", "\u200f", "\u061c", "\u2028",
                                  "\u2029", "\u200b", "\ufeff", "\ufff9", "\U000e0041", "é€\U0001f600"])
def test_no_name_moves_the_cursor_or_turns_text(tmp_path, mark):
    name, note = f"a{mark}b", f"note{mark}"
    with sw.CheckpointManager(tmp_path) as manager:
        manager.save(1, {name: np.zeros(4, "f4"), note: [mark, {mark: mark}]}, metrics={mark: 1.0})
    seen = mark.isprintable()
    for words in (("inspect",), ("inspect", "--flat"), ("stats",), ("ls",), ("cat", note), ("verify",), ("du",)):
        text, as_json = (told(words[0], tmp_path, *words[1:], *more) for more in ((), ("--json",)))
        json.loads(as_json)
        for shown in (text, as_json):
            assert all(c.isprintable() or c == "\n" for c in shown), (words, shown)
            if words[0] in ("inspect", "stats"):
                assert (mark in shown) == seen
    assert json.loads(told("inspect", tmp_path, "--json"))["tensors"][0]["name"] == name
    assert json.loads(told("inspect", tmp_path, "--json"))["objects"] == {note: [mark, {mark: mark}]}
    assert json.loads(told("cat", tmp_path, note, "--json")) == {"object": note, "value": [mark, {mark: mark}]}
    assert json.loads(told("ls", tmp_path, "--json"))["steps"][0]["metrics"] == {mark: 1.0}
    wrong = subprocess.run([COMMAND, "cat", tmp_path, f"no{mark}", "--json"], capture_output=True, text=True)
    assert wrong.returncode == 3 and f"no{mark}" in json.loads(wrong.stdout)["error"]["message"]
    assert all(c.isprintable() or c == "\n" for c in wrong.stdout + wrong.stderr)


def test_lone_surrogates_in_objects_are_shown_as_escapes(tmp_path):
    sw.save(tmp_path / "a", {"w": np.zeros(4, "f4"), "note": "a\ud800b", "deep": ["\udfff"]})
    assert "\\ud800" in told("cat", tmp_path / "a", "note")
    assert "\\ud800" in told("inspect", tmp_path / "a") and "\\udfff" in told("inspect", tmp_path / "a")
    said = json.loads(told("inspect", tmp_path / "a", "--json"))["objects"]
    assert said == {"note": {"$text": "61eda08062"}, "deep": [{"$text": "edbfbf"}]}  # as it is stored
