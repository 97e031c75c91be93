"""Saved values load unchanged: random trees of containers, arrays and plain values, by numpy, torch and JAX."""

import collections
import enum
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise import _core
from shardwise._trees import objects as _objects
from shardwise._arrays.arrays import Sources


class Level(enum.IntEnum):
    low = 1
    high = 2


class Mode(enum.Flag):
    a = 1
    b = 2


class Point(NamedTuple):
    x: Any
    y: Any


SCALARS: list[Any] = [
    None, True, False, 0, -7, 2**80, 10**5000, 0.5, float("inf"), -0.0, 1 - 2j, "text", "", "αβ", "$tuple", b"\x00\xff",
    Level.high, Mode.a | Mode.b, {1, 2}, frozenset("ab"), np.float32(0.1), np.int64(-3), np.bool_(True), ml_dtypes.bfloat16(1.5),
    collections.Counter("aab"), collections.deque([1, (2,)], 5), collections.defaultdict(list, a=[1]), Point(1, (2,)),
    {2.5: "a", (1, "b"): [None]}, {"$x": 1},
]  # fmt: skip


def numpy_array(rng: np.random.Generator) -> Any:
    shape = tuple(rng.integers(0, 4, rng.integers(0, 3)).tolist())
    dtype = rng.choice([np.float32, np.int8, np.uint64, np.complex64, np.bool_, ml_dtypes.bfloat16])
    return np.asarray(rng.integers(0, 2, shape)).astype(dtype)


def random_tree(rng: np.random.Generator, array: Callable[[np.random.Generator], Any], depth: int, plain: bool = False) -> Any:
    """plain: only of containers that JAX takes for nodes."""
    kind = rng.integers(0, 8) if depth else rng.integers(0, 3)
    if kind < 1:
        return SCALARS[rng.integers(0, 10 if plain else len(SCALARS))]
    if kind < 3:
        return array(rng)
    inner = [random_tree(rng, array, depth - 1, plain) for _ in range(rng.integers(0, 4))]
    if kind == 3:
        return inner
    if kind == 4:
        return tuple(inner)
    if kind == 5:
        return dict(enumerate(inner))
    keys = rng.permutation(["a", "b.c", "0", "x/y", 0, 3, -1] if not plain else ["a", "b.c", "z"])
    keys = [int(key) if key in ("3", "-1") else str(key) for key in keys]
    found = dict(zip(keys, inner))
    if kind == 6 or plain:
        return found
    return rng.choice([lambda: collections.OrderedDict(found), lambda: Point(inner, found),
                       lambda: collections.deque(inner, 7)])()


def assert_same(found: Any, saved: Any, at: str = "") -> None:
    assert type(found) is type(saved), at
    if isinstance(saved, dict):
        assert list(found) == list(saved) and [type(k) for k in found] == [type(k) for k in saved], at
        for key in saved:
            assert_same(found[key], saved[key], f"{at}[{key!r}]")
        assert getattr(found, "default_factory", None) is getattr(saved, "default_factory", None)
    elif isinstance(saved, (list, tuple, collections.deque)):
        assert len(found) == len(saved) and getattr(found, "maxlen", None) == getattr(saved, "maxlen", None), at
        for i, value in enumerate(saved):
            assert_same(found[i], value, f"{at}[{i}]")
    elif hasattr(saved, "dtype"):
        assert found.dtype == saved.dtype and found.shape == saved.shape, at
        assert bytes_of(found) == bytes_of(saved), at
    else:
        assert found == saved or repr(found) == repr(saved), at


def bytes_of(array: Any) -> bytes:
    if hasattr(array, "view") and type(array).__module__.startswith("torch"):
        return b"" if array.numel() == 0 else bytes(array.detach().contiguous().reshape(-1).view(_torch_u8()).tolist())
    return np.asarray(array).tobytes()


def _torch_u8() -> Any:
    import torch

    return torch.uint8


def named(rng: np.random.Generator, array: Callable[[np.random.Generator], Any], plain: bool = False) -> dict[str, Any]:
    return {name: random_tree(rng, array, int(rng.integers(0, 5)), plain) for name in ("m", "a.b", "z/0", "k")}


@pytest.mark.parametrize("seed", range(60))
def test_any_tree_of_numpy(tmp_path, seed):
    rng = np.random.default_rng(seed)
    tree = named(rng, numpy_array)
    sw.save(tmp_path / "a", tree)
    assert_same({k: v for k, v in sorted(sw.load(tmp_path / "a").items())}, {k: v for k, v in sorted(tree.items())})
    with sw.CheckpointManager(tmp_path / "run") as manager:
        manager.save_async(1, tree)
    assert_same(dict(sorted(sw.load(manager.step(1)).items())), dict(sorted(tree.items())))


@pytest.mark.parametrize("seed", range(60))
def test_any_tree_of_torch(tmp_path, seed):
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    rng = np.random.default_rng(seed)
    dtypes = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2]

    def array(rng: np.random.Generator) -> Any:
        if rng.random() < 0.3:
            return numpy_array(rng)
        shape = tuple(rng.integers(0, 4, rng.integers(0, 3)).tolist())
        return torch.from_numpy(np.asarray(rng.integers(0, 2, shape))).to(dtypes[rng.integers(0, len(dtypes))])

    tree = named(rng, array)
    swt.save(tmp_path / "a", tree)
    assert_same(swt.load_state_dict(tmp_path / "a"), tree)
    found = swt.load(tmp_path / "a", dict.fromkeys(tree))  # None: whatever there is
    assert_same(dict(found), tree)
    assert_same(dict(swt.load(tmp_path / "a", zeroed(tree))), tree)
    own = swt.PerRank(tree)
    swt.save(tmp_path / "b", {"own": own})
    assert_same(swt.load(tmp_path / "b", {"own": swt.PerRank(None)})["own"], tree)


def zeroed(tree: Any) -> Any:
    """Returns the same containers, arrays of other values, and no plain values."""
    import torch

    if isinstance(tree, torch.Tensor):
        return torch.zeros_like(tree.view(torch.uint8) if tree.numel() and tree.ndim else tree).view(tree.dtype).reshape(tree.shape)
    if isinstance(tree, np.ndarray):
        return np.zeros_like(tree)
    if isinstance(tree, (collections.Counter, collections.defaultdict)):
        return tree
    if isinstance(tree, dict):
        return type(tree)((key, zeroed(value)) for key, value in tree.items())
    if isinstance(tree, Point):
        return Point(*map(zeroed, tree))
    if isinstance(tree, collections.deque):
        return collections.deque(map(zeroed, tree), tree.maxlen)
    return type(tree)(map(zeroed, tree)) if isinstance(tree, (list, tuple)) else None


@pytest.mark.parametrize("seed", range(30))
def test_any_tree_of_jax(tmp_path, monkeypatch, seed):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytest.importorskip("jax", reason="needs jax, which this environment has not")
    import shardwise.jax as swj

    rng = np.random.default_rng(seed)
    tree = named(rng, numpy_array, plain=True)
    swj.save(tmp_path / "a", tree)
    assert_same(swj.load(tmp_path / "a"), tree)


def test_patterns_give_arrays_within_trees_by_name(tmp_path):
    sw.save(tmp_path / "a", {"net": {"w": np.ones(2), "l": [np.zeros(1), 3]}, "n": {"plain": 1}})
    assert list(sw.open(tmp_path / "a")) == ["net/l/0", "net/w"]
    assert sw.load(tmp_path / "a", "net/*").keys() == {"net/w", "net/l/0", "net/l/1"}
    assert sw.load(tmp_path / "a")["net"]["l"][1] == 3


def test_what_is_too_deep_or_holds_itself_is_refused(tmp_path):
    own: list[Any] = []
    own.append(own)
    mixed: dict[str, Any] = {"w": np.ones(1)}
    mixed["again"] = mixed
    deep: Any = 1
    for _ in range(700):
        deep = (deep,)
    for bad in (own, mixed, deep):
        with pytest.raises(sw.InvalidArgument, match="deeper.*'a|'a.*(deeper|holds it)"):
            sw.save(tmp_path / "a", {"a": bad})
    with pytest.raises(sw.InvalidArgument, match="user"):
        sw.save(tmp_path / "a", {}, user=_nested_list(100_000))
    for levels in (60, 95, 99):  # a tree that can be saved loads
        deep = 1
        for _ in range(levels):
            deep = (deep,)
        sw.save(tmp_path / "b", {"a": deep}, existing="replace")
        assert sw.load(tmp_path / "b")["a"] == deep


def _nested_list(levels: int) -> Any:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


def test_texts_that_utf8_cannot_hold(tmp_path):
    for bad in ({"\ud800": np.ones(1)}, {"\ud800": 1}, {"a": {"\ud800": np.ones(1)}}):
        with pytest.raises(sw.InvalidArgument, match="surrogate"):
            sw.save(tmp_path / "a", bad)
    with pytest.raises(sw.InvalidArgument, match="user.*surrogate"):
        sw.save(tmp_path / "a", {}, user=["\ud800"])
    sw.save(tmp_path / "a", {"value": "\ud800"})
    assert sw.load(tmp_path / "a")["value"] == "\ud800"


def test_masked_arrays_are_refused(tmp_path):
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    for bad in (masked, {"b": masked}, [masked]):
        with pytest.raises(TypeError, match="mask"):
            sw.save(tmp_path / "a", {"m": bad})


def test_classes_that_are_not_imported_are_not_imported():
    assert _objects.loads('{"$enum":["nowhere:Level","low",1]}') == 1
    assert _objects.loads('{"$kept":[{"namedtuple":"nowhere:Point","fields":["x","y"]},[[0,1],[1,2]]]}') == {"x": 1, "y": 2}
    assert _objects.loads('{"$enum":["os:system","low",1]}') == 1
    assert _objects.loads('{"$kept":[{"namedtuple":"os:stat_result","fields":["x"]},[[0,1]]]}') == {"x": 1}


def test_parts_that_overlap_are_refused():
    w = np.ones((4, 4), np.float32)
    sources = Sources()
    sources.add("w", "f32", (4, 8), [((0, 0), w), ((0, 4), w)])
    for begins in ([(0, 0), (0, 3)], [(0, 0), (3, 0)], [(0, 4), (0, 4)]):
        with pytest.raises(sw.InvalidArgument, match='"w": found parts that overlap'):
            sources.add("w", "f32", (8, 8), [(begin, w) for begin in begins])
    one = np.ones((), np.float32)
    with pytest.raises(sw.InvalidArgument, match="overlap"):
        _core.Source("s", "f32", [], [([], [], one.__array_interface__["data"][0], [])] * 2)


class OwnList(list[Any]):
    pass


class OwnTuple(tuple[Any, ...]):
    pass


class OwnText(str):
    def __str__(self) -> str:
        return "another text"


class Unequal(list[Any]):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unequal)

    def __ne__(self, other: object) -> bool:
        return not self == other


OF_OTHER_CLASSES: list[Any] = [
    {Point(1, (2,)): 3, (Point(4, 5), 6): 7}, {Point(1, 2), Point(3, 4)}, {Level.high: {np.str_("k"): 1}},
    OwnList([1, OwnTuple([2])]), OwnTuple([]), OwnText("text"), np.str_("αβ"), np.bytes_(b"\x00a"), {OwnText("k"): [OwnText("v")]},
    collections.UserString("u"), {np.int64(3): Point(1, 2)}, time.gmtime(0),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(OF_OTHER_CLASSES)))
def test_values_of_other_classes_come_back_equal_or_are_refused(tmp_path, number):
    value, w = OF_OTHER_CLASSES[number], np.ones(2)
    if isinstance(value, collections.UserString):
        with pytest.raises(TypeError, match="'v'.*UserString cannot be stored"):
            sw.save(tmp_path / "a", {"v": value})
        return
    sw.save(tmp_path / "a", {"v": value, "list": [value, w], "key": {value: w} if _is_key(value) else 0})
    found = sw.load(tmp_path / "a")
    assert found["v"] == value and found["list"][0] == value
    assert not _is_key(value) or list(found["key"]) == [value]
    assert isinstance(found["v"], tuple(k for k in (list, tuple, str, bytes, dict, set) if isinstance(value, k)))
    within = OwnList([w, value]), OwnTuple([w, value]), collections.deque([w, value])
    sw.save(tmp_path / "b", {"within": list(within)})
    for given, inner in zip(within, sw.load(tmp_path / "b")["within"]):
        assert isinstance(given, type(inner)) and inner[0].tolist() == [1, 1] and inner[1] == value


def _is_key(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def test_what_would_come_back_as_another_value_is_refused(tmp_path):
    class Local(NamedTuple):
        x: Any

    w = np.ones(1)
    for bad, why in ((Local(1), "named tuple .*Local cannot be stored"), (Unequal([1]), "Unequal cannot be stored.*not equal to the list")):
        keyed = [{"v": {bad: 1}}, {"v": {(1, bad): w}}, {"v": {bad}}] if isinstance(bad, tuple) else []
        for tree in ({"v": bad}, {"v": [w, bad]}, {"v": type(bad)([w])}, *keyed):
            with pytest.raises(TypeError, match=f"'v.*{why}"):
                sw.save(tmp_path / "a", tree)


def test_keys_and_members_whose_classes_are_not_imported_are_tuples():
    point = '{"$kept":[{"namedtuple":"nowhere:Point","fields":["x","y"]},[[0,1],[1,{"$tuple":[2]}]]]}'
    assert _objects.loads(f'{{"$items":[[{point},1]]}}') == {(1, (2,)): 1}
    assert _objects.loads(f'{{"$items":[[{{"$tuple":[{point},0]}},1]]}}') == {((1, (2,)), 0): 1}
    for tag, kind in (("$set", set), ("$frozenset", frozenset)):
        assert _objects.loads(f'{{"{tag}":[{point}]}}') == kind([(1, (2,))])
    assert _objects.loads('{"$items":[[{"$enum":["nowhere:E","a",[1,2]]},1]]}') == {(1, 2): 1}
    assert _objects.loads(f'{{"$kept":["OrderedDict",[[{point},1]]]}}') == {(1, (2,)): 1}


def test_named_tuples_as_keys_in_a_checkpoint_whose_class_is_not_imported(tmp_path, monkeypatch):
    sw.save(tmp_path / "a", {"v": {Point(1, 2): np.ones(2)}})
    monkeypatch.delattr(f"{__name__}.Point")
    with sw.open(tmp_path / "a") as c:
        assert list(c.paths.values()) == [("v", (1, 2))]
    assert {key: w.tolist() for key, w in sw.load(tmp_path / "a")["v"].items()} == {(1, 2): [1, 1]}
