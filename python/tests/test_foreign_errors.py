"""Errors that are not of this package: those of a user's code arrive as they are, and texts that cannot be stored cause none."""

import os
import pickle

import numpy as np
import pytest

import shardwise as sw
from shardwise import sources

ARRAYS = {"w": np.ones((2, 2), np.float32)}
LONE, NUL = "\ud800", "a\0b"


class Own(TypeError):
    """An exception of a user."""


def raising(error):
    def function(*_, **__):
        raise error

    return function


class Dataset:
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 4

    def __getitem__(self, i):
        if i:
            raise self.error
        return {"x": np.zeros(2)}


@pytest.mark.parametrize("kind", [TypeError, KeyError, AttributeError, ValueError, IndexError, OverflowError, RuntimeError, Own])
@pytest.mark.parametrize("door", ["dataset", "map", "filter", "transform", "state", "progress"])
def test_errors_of_a_users_code_arrive_as_they_are(tmp_path, kind, door):
    error = kind("mine")
    data = {"x": np.arange(8.0)}

    class Stateful:
        state_dict = raising(error)
        load_state_dict = raising(error)

    def act():
        if door == "dataset":
            list(sw.Loader(Dataset(error), batch_size=2))
        elif door == "map":
            list(sw.Loader(sources.of(data).map(raising(error)), batch_size=2))
        elif door == "filter":
            list(sw.Loader(sources.of(data).filter(raising(error)), batch_size=2))
        elif door == "transform":
            list(sw.Loader(data, batch_size=2, transform=raising(error)))
        elif door == "state":
            pytest.importorskip("torch")
            import shardwise.torch as swt

            swt.save(tmp_path / "c", {"s": Stateful()})
        else:
            sw.save(tmp_path / "c", ARRAYS, progress=raising(error))

    with pytest.raises(kind) as caught:
        act()
    assert type(caught.value) is kind and caught.value.args == ("mine",)


def test_a_wrong_type_names_argument_found_and_needed(tmp_path):
    with pytest.raises(sw.InvalidArgument, match=r"^should_save step 10.0: needed is an integer, 0 or more$"):
        sw.CheckpointManager(tmp_path).should_save(10.0)
    with pytest.raises(sw.WrongType, match=r"^CheckpointManager: keep_last is 'x', a str, needed is int$") as caught:
        sw.CheckpointManager(tmp_path, keep_last="x")
    # Mesh, and not the name of a class derived from it.
    with pytest.raises(sw.WrongType, match="^Mesh: axes is 4, an int, needed is "):
        sw.Mesh(4)
    assert isinstance(caught.value, (sw.InvalidArgument, TypeError))
    assert type(pickle.loads(pickle.dumps(caught.value))) is sw.WrongType


def torch_doors(doors):
    try:
        import torch

        import shardwise.torch as swt
    except ImportError:
        return
    state = {"w": torch.ones(2, 2)}
    doors.update({
        "swt.save": lambda t: swt.save(t, state), "swt.save_async": lambda t: swt.save_async(t, state).result(),
        "swt.save name": lambda t: swt.save("new", {t: torch.ones(2)}),
        "swt.save_async name": lambda t: swt.save_async("new", {t: torch.ones(2)}).result(),
        "swt.save nested": lambda t: swt.save("new", {"a": {t: torch.ones(2)}}), "swt.save replicas": lambda t: swt.save("new", state, replicas=t),
        "swt.load": swt.load, "swt.load names": lambda t: swt.load("c", names=t), "swt.load target": lambda t: swt.load("c", {t: torch.ones(2)}),
        "swt.load device": lambda t: swt.load_state_dict("c", device=t), "swt.load unused": lambda t: swt.load("c", dict(state), unused=t),
        "swt.open": swt.open, "swt.open item": lambda t: swt.open("c")[t], "swt.CheckpointManager": swt.CheckpointManager,
        "swt.StorageWriter": swt.StorageWriter, "swt.StorageReader": swt.StorageReader})


def jax_doors(doors):
    try:
        import jax

        import shardwise.jax as swj
        from shardwise.jax import ocp
    except ImportError:
        return
    one = jax.numpy.ones(2)
    doors.update({
        "swj.save": lambda t: swj.save(t, {"w": one}), "swj.save_async": lambda t: swj.save_async(t, {"w": one}).result(),
        "swj.save name": lambda t: swj.save("new", {t: one}), "swj.load": swj.load, "swj.load target": lambda t: swj.load("c", {t: one}),
        "swj.CheckpointManager": swj.CheckpointManager, "ocp.CheckpointManager": ocp.CheckpointManager})


def text_doors():
    data = {"x": np.arange(4.0)}
    doors = {
        "save": lambda t: sw.save(t, ARRAYS), "save inside": lambda t: sw.save(f"new{t}", ARRAYS),
        "save name": lambda t: sw.save("new", {t: np.ones(2)}), "save nested": lambda t: sw.save("new", {"a": {t: np.ones(2)}}),
        "save codec": lambda t: sw.save("new", ARRAYS, codec=t), "save existing": lambda t: sw.save("new", ARRAYS, existing=t),
        "save unchanged_since": lambda t: sw.save("new", ARRAYS, unchanged_since=t),
        "load": sw.load, "load names": lambda t: sw.load("c", t), "load rename": lambda t: sw.load("c", rename={t: "v"}),
        "load cast": lambda t: sw.load("c", cast={"w": t}), "load cast name": lambda t: sw.load("c", cast={t: "bf16"}),
        "load cast all": lambda t: sw.load("c", cast=t), "load transpose": lambda t: sw.load("c", transpose=t),
        "load split": lambda t: sw.load("c", split={"w": t}), "load join": lambda t: sw.load("c", join={t: "w"}),
        "load resize": lambda t: sw.load("c", resize={"w": t}), "load target": lambda t: sw.load("c", target={t: np.ones(2)}),
        "open": sw.open, "open item": lambda t: sw.open("c")[t], "info": sw.info, "diff": lambda t: sw.diff("c", t), "verify": sw.verify,
        "import": lambda t: sw.import_model(t, "new"), "import target": lambda t: sw.import_model("c", t),
        "import_dcp": lambda t: sw.import_dcp(t, "new"), "import_orbax": lambda t: sw.import_orbax(t, "new"),
        "export": lambda t: sw.export_model("c", t), "export file": lambda t: sw.export_model("c", f"new{t}.safetensors"),
        "export format": lambda t: sw.export_model("c", "new", format=t),
        "CheckpointManager": sw.CheckpointManager, "restore": lambda t: sw.CheckpointManager("run").restore(t),
        "manager.save step": lambda t: sw.CheckpointManager("run").save(t, ARRAYS), "mesh": sw.Mesh,
        "manager.save name": lambda t: sw.CheckpointManager("run").save(1, {t: np.ones(2)}),
        "sharding": lambda t: sw.Sharding("a=2", t), "sources.open": sources.open, "sources.open csv": lambda t: sources.open(f"{t}.csv"),
        "loader": lambda t: sw.Loader(t, batch_size=2), "loader order": lambda t: sw.Loader(data, batch_size=2, order=t),
        "cast field": lambda t: sources.of(data).cast(t, "f32"), "cast dtype": lambda t: sources.of(data).cast("x", t),
        "filter cache": lambda t: sources.of(data).filter(lambda r: True, cache=t), "flip": lambda t: sources.of(data).flip(t, 0),
        "load_state_dict": lambda t: sw.Loader(data, batch_size=2).load_state_dict({t: 1}), "FileStore": sw.group.FileStore,
        "programs.load": lambda t: __import__("shardwise.programs").programs.load(t)}
    torch_doors(doors)
    jax_doors(doors)
    return doors


@pytest.mark.parametrize("text", [LONE, "w\udcff", NUL], ids=["lone", "escape", "nul"])
def test_texts_that_no_door_can_take(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    sw.save("c", ARRAYS)
    sw.CheckpointManager("run").save(0, ARRAYS)
    for name, door in text_doors().items():
        with pytest.raises(sw.Error) as caught:
            door(text)
            pytest.fail(f"{name} takes {text!r}")
        said = str(caught.value)
        said.encode()  # a log can hold it
        assert said and "\0" not in said and "\n" not in said and "Invoked with" not in said, (name, said)
    assert sorted(name for name in os.listdir(".") if name not in ("c", "run")) == []


def test_messages_do_not_end_at_a_nul(tmp_path):
    text, shown = "a\0b", "a\\x00b"
    sw.save(tmp_path / "c", ARRAYS)
    calls = {
        "it is not known; needed is one of f64,": lambda: sw.load(tmp_path / "c", cast=text),
        "matches none of 1 tensors": lambda: sw.load(tmp_path / "c", rename={text: "v"}),
        "needed is PATTERN=NAME,": lambda: sw.load(tmp_path / "c", split={"w": text}),
        "needed is one of safetensors,":
            lambda: sw.export_model(tmp_path / "c", tmp_path / "new", format=text),
        "is not an axis;": lambda: sw.Mesh(text),
        'the source has "x"': lambda: sources.of({"x": np.arange(4.0)}).cast(text, "f32"),
    }
    for rest, call in calls.items():
        with pytest.raises(sw.Error) as caught:
            call()
        said = str(caught.value)
        assert "\0" not in said and shown in said and rest in said.partition(shown)[2], said


@pytest.mark.parametrize("text", ["\ud800", {"\ud800": 1}, [["\ud800"]]])
def test_user_data_with_lone_surrogates_is_refused(tmp_path, text):
    with pytest.raises(sw.InvalidArgument, match="UTF-8"):
        sw.save(tmp_path / "c", ARRAYS, user=text)
