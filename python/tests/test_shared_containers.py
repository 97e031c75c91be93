"""Trees whose containers are shared so often that they have 2^40 places, and containers that hold themselves: each door
refuses them at once."""

import numpy as np
import pytest

import shardwise as sw

SHARED = {
    "list": lambda inner: [inner, inner],
    "tuple": lambda inner: (inner, inner),
    "dict": lambda inner: {"a": inner, "b": inner},
    "mixed": lambda inner: [{"a": (inner,)}, inner],
}


def door(name):
    if name == "sw":
        return sw.save, lambda path, target: sw.load(path, target=target)
    module = pytest.importorskip(f"shardwise.{name}")
    return module.save, module.load


def refused(tmp_path, name, tree, match):
    save, load = door(name)
    sw.save(tmp_path / "there", {"m/0": np.ones(2, np.float32)}, existing="replace")
    for call in (lambda: save(tmp_path / "c", {"m": tree}), lambda: load(tmp_path / "there", {"m": tree})):
        with pytest.raises(sw.InvalidArgument, match=match) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("leaf", [np.ones(2, np.float32), 3, "text"], ids=["array", "int", "str"])
@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("name", ["sw", "torch", "jax"])
def test_too_many_places_are_refused(tmp_path, name, kind, leaf):
    tree = leaf
    for _ in range(40):
        tree = SHARED[kind](tree)
    refused(
        tmp_path, name, tree, "'m/.*': found containers at [0-9]+ places, .* save a shared container once"
    )


@pytest.mark.parametrize("name", ["sw", "torch", "jax"])
def test_a_container_that_holds_itself_is_refused(tmp_path, name):
    array = np.ones(2, np.float32)
    as_list, as_dict, within = [array], {"w": array}, (array, [])
    as_list.append(as_list)
    as_dict["a"] = {"b": as_dict}
    within[1].append(within)
    for tree in (as_list, as_dict, within):
        refused(tmp_path, name, tree, "'m/.*': found the container that holds it")


def test_user_values_too(tmp_path):
    user, cycle = [1], {}
    for _ in range(40):
        user = [user, user]
    cycle["a"] = cycle
    for value, match in ((user, "'user/.*': found containers at"), (cycle, "'user/a': found the container that holds it")):
        with pytest.raises(sw.InvalidArgument, match=match):
            sw.save(tmp_path / "c", {"w": np.ones(2)}, user=value)


def test_containers_that_are_shared_now_and_then_are_saved(tmp_path):
    row, pair = [0, 0], {"w": np.arange(3, dtype=np.float32)}
    sw.save(tmp_path / "c", {"rows": [row] * 3000, "pairs": [pair] * 50})
    loaded = sw.load(tmp_path / "c")
    assert loaded["rows"] == [row] * 3000 and len(loaded["pairs"]) == 50
    assert all((found["w"] == pair["w"]).all() for found in loaded["pairs"])
