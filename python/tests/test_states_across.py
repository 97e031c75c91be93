"""numpy, torch and JAX read the state of an object that another has saved, as the object or as a subtree."""

import itertools

import numpy as np
import pytest

import shardwise as sw

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
jax = pytest.importorskip("jax", reason="needs jax, which this environment has not")

import jax.numpy as jnp  # noqa: E402

import shardwise.jax as swj  # noqa: E402
import shardwise.torch as swt  # noqa: E402


class Counter:
    """An object with a state of plain values, and with one of arrays."""

    def __init__(self, at=0, array=None):
        self.at, self.array = at, array

    def state_dict(self):
        state = {"at": self.at, "list": [1, (2, 3)], "dict": {"x": 1}, 7: "seven"}
        return state if self.array is None else {**state, "array": self.array}

    def load_state_dict(self, state):
        self.given = state
        self.at = state["at"]
        self.array = state.get("array")


def loader():
    return sw.Loader({"x": np.arange(40.0).reshape(10, 4)}, batch_size=2, seed=3)


SAVES = {"swj": lambda path, value: swj.save(path, {"w": jnp.arange(3.0), "run": {"at": value}}),
         "swt": lambda path, value: swt.save(path, {"w": torch.arange(3.0), "run": {"at": value}})}


def loaded(face, path, target):
    if face == "swj":
        found = swj.load(path, {"w": jnp.zeros(3), "run": {"at": target}})
    else:
        found = {"w": torch.zeros(3), "run": {"at": target}}
        swt.load(path, found)
    assert np.array_equal(np.asarray(found["w"]), [0, 1, 2])
    return found["run"]["at"]


@pytest.mark.parametrize("writes, reads, as_state", [*itertools.product(("swj", "swt"), ("swj", "swt"), (False, True))])
def test_a_loader_goes_on(tmp_path, writes, reads, as_state):
    first = loader()
    batches = iter(first)
    next(batches), next(batches)
    SAVES[writes](tmp_path / "c", first.state_dict() if as_state else first)
    second = loaded(reads, tmp_path / "c", loader())
    for one, other in zip(batches, second, strict=True):
        assert np.array_equal(one["x"], other["x"])


@pytest.mark.parametrize("writes, reads, as_state, array", [*itertools.product(
    ("swj", "swt"), ("swj", "swt"), (False, True), (None, np.arange(4.0)))])
def test_a_state_is_given_as_it_was(tmp_path, writes, reads, as_state, array):
    one = Counter(5, array)
    SAVES[writes](tmp_path / "c", one.state_dict() if as_state else one)
    given = loaded(reads, tmp_path / "c", Counter(0, None if array is None else np.zeros(4))).given
    if array is not None:
        assert np.array_equal(np.asarray(given.pop("array")), array)
    assert given == Counter(5).state_dict()


@pytest.mark.parametrize("writes", ("swj", "swt"))
def test_none_is_filled_by_either(tmp_path, writes):
    SAVES[writes](tmp_path / "c", Counter(5).state_dict())
    expected = {"run": {"at": Counter(5).state_dict()}}
    assert swj.load(tmp_path / "c", {"run": None}, strict=False) == expected
    assert swt.load(tmp_path / "c", {"run": None}, unused="ignore") == expected


def test_nested_trees_of_arrays(tmp_path):
    """The places are the same, though the names of the frameworks differ."""
    swt.save(tmp_path / "t", {"a": {"b": [torch.ones(2), torch.zeros(2)]}, "n": 3})
    found = swj.load(tmp_path / "t", {"a": {"b": [jnp.zeros(2), jnp.ones(2)]}, "n": 0})
    assert found["n"] == 3 and [list(map(float, x)) for x in found["a"]["b"]] == [[1, 1], [0, 0]]
    swj.save(tmp_path / "j", {"a": {"b": (jnp.ones(2), jnp.zeros(2))}, "n": 3})
    state = {"a": {"b": (torch.zeros(2), torch.ones(2))}, "n": 0}
    state = swt.load(tmp_path / "j", state)
    assert state["n"] == 3 and [x.tolist() for x in state["a"]["b"]] == [[1, 1], [0, 0]]
    flat = {"a/b/0": torch.zeros(2), "a/b/1": torch.ones(2)}  # names as they are stored are known, too
    swt.load(tmp_path / "j", flat, unused="ignore")
    assert flat["a/b/0"].tolist() == [1, 1] and flat["a/b/1"].tolist() == [0, 0]


def test_names_that_lack_are_told(tmp_path):
    swt.save(tmp_path / "t", {"a": {"b": torch.ones(2)}})
    with pytest.raises(sw.InvalidArgument, match="'a/c' is not in the checkpoint"):
        swj.load(tmp_path / "t", {"a": {"c": jnp.ones(2)}})
    swj.save(tmp_path / "j", {"a": {"b": jnp.ones(2)}})
    with pytest.raises(sw.InvalidArgument, match="'a.c'"):
        swt.load(tmp_path / "j", {"a": {"c": torch.ones(2)}})
