"""shardwise.jax in one process of 8 CPU devices."""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import pytest

pytest.importorskip("jax", reason="needs jax, which this environment has not")
pytest.importorskip("optax", reason="needs optax, which this environment has not")
pytest.importorskip("flax", reason="needs flax, which this environment has not")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from flax import nnx, struct
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

import shardwise as sw
import shardwise.jax as swj
from shardwise import _core
from shardwise._dtypes import name_of
from shardwise.jax import _devices, _tree
from told import names, told

KNOWN = {name for name, _ in _core.dtypes()}
DTYPES = [np.dtype(d) for d in ("f4", "f2", ml_dtypes.bfloat16, "i1", "u4", "?", "c8", ml_dtypes.float8_e4m3fn,
                                ml_dtypes.float8_e5m2) if name_of(d) in KNOWN]


def same(a: Any, b: Any) -> bool:
    """Bit for bit, leaf by leaf."""
    def bits(x: Any) -> Any:
        if _tree.is_key(x):
            x = jax.random.key_data(x)
        return (np.asarray(x).dtype, np.asarray(x).shape, np.asarray(x).tobytes())

    return [bits(x) for x in jax.tree.leaves(a)] == [bits(x) for x in jax.tree.leaves(b)]


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...], order: Any = None) -> Mesh:
    devices = np.array(jax.devices())[: int(np.prod(shape))]
    return Mesh((devices if order is None else devices[order]).reshape(shape), names)


def abstract(tree: Any, sharding: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def random_sharding(rng: np.random.Generator, rank: int) -> NamedSharding:
    shapes = [(8,), (4, 2), (2, 4), (2, 2, 2), (1, 8), (4,), (2, 3), (1,)]
    shape = shapes[rng.integers(len(shapes))]
    names = ("data", "fsdp", "model")[: len(shape)]
    axes = [str(a) for a in rng.permutation(names)][: rng.integers(len(names) + 1)]
    entries: list[Any] = [()] * rank
    for axis in axes:
        dim = rng.integers(rank) if rank else None
        if dim is not None:
            entries[dim] = (*entries[dim], axis)
    texts = [None if not e else e[0] if len(e) == 1 else e for e in entries]
    return NamedSharding(mesh_of(shape, names, rng.permutation(int(np.prod(shape)))), P(*texts))


@pytest.mark.parametrize("seed", range(6))
def test_round_trips_over_meshes(tmp_path, seed):
    rng = np.random.default_rng(seed)
    values, tree, target = {}, {}, {}
    for i in range(12):
        shape = tuple(int(n) for n in rng.choice([24, 48], rng.integers(4)))
        dtype = DTYPES[i % len(DTYPES)]
        values[f"x{i}"] = (rng.random(shape) * 200 - 100).astype(dtype)
        tree[f"x{i}"] = jax.device_put(values[f"x{i}"], random_sharding(rng, len(shape)))
        target[f"x{i}"] = jax.ShapeDtypeStruct(shape, dtype, sharding=random_sharding(rng, len(shape)))
    swj.save(tmp_path / "c", tree)
    assert same(swj.load(tmp_path / "c"), values)
    got = swj.load(tmp_path / "c", target)
    assert same(got, values)
    assert all(got[name].sharding == target[name].sharding for name in got)
    with sw.open(tmp_path / "c") as c:  # how it was cut is there for others
        for name, array in tree.items():
            assert sw.Mesh(c[name].mesh) == sw.Mesh.from_jax(array.sharding.mesh)
            assert sw.Sharding(c[name].mesh, c[name].spec).boxes(array.shape) == {
                d.id: tuple(slice(*s.indices(n)[:2]) for s, n in zip(index, array.shape))
                for d, index in array.sharding.devices_indices_map(array.shape).items()}
    assert sw.verify(tmp_path / "c")


def test_shardings_that_have_no_words(tmp_path):
    odd = NamedSharding(mesh_of((4, 2), ("a-b", "c d")), P("c d"))
    x = np.arange(32, dtype="f4").reshape(8, 4)
    tree = {"odd": jax.device_put(x, odd), "one": jax.device_put(x, jax.devices()[3]), "free": jnp.asarray(x)}
    swj.save(tmp_path / "c", tree)
    got = swj.load(tmp_path / "c", tree)
    assert same(got, tree) and got["odd"].sharding == odd
    assert got["one"].committed and got["one"].devices() == {jax.devices()[3]} and not got["free"].committed
    with sw.open(tmp_path / "c") as c:
        assert c["odd"].mesh == ""
    host = NamedSharding(mesh_of((2,), ("a",)), P("a"), memory_kind="pinned_host")
    assert swj.load(tmp_path / "c", {"odd": host, "one": swj.ANY, "free": swj.ANY})["odd"].sharding == host


def test_numbers_of_devices():
    def devices(ids: list[list[int]]) -> tuple[Any, ...]:
        return tuple(types.SimpleNamespace(id=i, process_index=p) for p, of_one in enumerate(ids) for i in of_one)

    class Device(types.SimpleNamespace):
        __hash__ = object.__hash__

    def numbering(ids: list[list[int]]) -> Any:
        return _devices._numbering(len(ids), tuple(Device(**vars(d)) for d in devices(ids)))

    cpu = numbering([[0, 1], [2048, 2049]])
    assert cpu.starts == (0, 2, 2050) and list(cpu.numbers.values()) == [0, 1, 2048, 2049]
    pod = numbering([[0, 1, 4, 5], [2, 3, 6, 7]])  # hosts of a torus
    assert pod.starts == (0, 4, 8) and list(pod.numbers.values()) == list(range(8))


class Pair(collections.namedtuple("Pair", "x y")):
    def __new__(cls, *_: Any) -> "Pair":
        raise AssertionError("a checkpoint must not run code")


def test_trees(tmp_path):
    tree = {"d": {"b": 1, "a": [2.5, (None, "é\ud800"), {}]}, "k": {3: b"\0", 2: 0}, "t": True, "z": jnp.zeros((0, 4)), "n": None,
            "s": np.float32(2.5), "o": collections.OrderedDict(q=np.arange(3)), "big": 2**80, "nan": float("nan"),
            "pair": tuple.__new__(Pair, (np.ones(2), "y")), "c": 1j, "empty": (), "adam": optax.EmptyState()}
    swj.save(tmp_path / "c", tree, user={"lr": 1})
    got = swj.load(tmp_path / "c")
    assert list(got) == list(tree) and got["d"] == tree["d"] and got["k"] == {3: b"\0", 2: 0} and got["t"] is True
    assert got["z"].shape == (0, 4) and got["n"] is None and got["empty"] == () and got["big"] == 2**80
    assert type(got["pair"]) is Pair and got["pair"].y == "y" and type(got["adam"]) is optax.EmptyState
    assert type(got["o"]) is dict and got["s"].dtype == np.float32 and got["s"].shape == ()
    again = swj.load(tmp_path / "c", {**tree, "o": swj.ANY, "d": swj.ANY, "pair": swj.ANY})
    assert type(again["s"]) is np.float32 and again["d"] == tree["d"] and type(again["pair"]) is Pair
    assert sw.open(tmp_path / "c").user == {"lr": 1}


def test_named_tuples_of_modules_that_are_not_there(tmp_path, monkeypatch):
    module = types.ModuleType("shardwise_test_gone")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kind = collections.namedtuple("Kind", "a b")
    kind.__module__, kind.__qualname__ = module.__name__, "Kind"
    swj.save(tmp_path / "c", {"k": kind(1, kind(2, 3))})
    assert swj.load(tmp_path / "c") == {"k": {"a": 1, "b": {"a": 2, "b": 3}}}
    module.Kind = collections.namedtuple("Kind", "a other")  # another one since
    assert swj.load(tmp_path / "c") == {"k": {"a": 1, "b": {"a": 2, "b": 3}}}
    module.Kind = kind
    assert type(swj.load(tmp_path / "c")["k"].b) is kind


@pytest.mark.parametrize("tree", [{"w": [1, 2]}, {"a": optax.adamw(1e-3).init({"x": jnp.ones(2)})}, (1, [2, {"q": 3}])])
def test_names_are_jaxs(tmp_path, tree):
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in
             jax.tree_util.tree_flatten_with_path(tree)[0]]
    assert sorted(_tree.flatten(tree)[0]) == sorted(names)


def test_a_tree_that_is_a_leaf(tmp_path):
    swj.save(tmp_path / "c", jnp.arange(3))
    assert swj.load(tmp_path / "c").tolist() == [0, 1, 2] and list(sw.open(tmp_path / "c")) == ["value"]
    assert isinstance(swj.load(tmp_path / "c", jnp.zeros(3, jnp.int32)), jax.Array)


@struct.dataclass
class Config:
    w: Any
    name: str = struct.field(pytree_node=False, default="static")


def test_flax_and_optax(tmp_path):
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.layer = nnx.Linear(4, 2, rngs=nnx.Rngs(0))

    state = nnx.state(Model())
    fresh = TrainState.create(apply_fn=None, params={"k": jnp.ones((4, 2), jnp.bfloat16)}, tx=optax.adamw(1e-3))
    trained = jax.jit(lambda s: s.apply_gradients(grads={"k": jnp.ones((4, 2), jnp.bfloat16)}))(fresh)
    tree = {"nnx": state, "train": trained, "own": Config(jnp.ones(2))}
    swj.save(tmp_path / "c", tree)
    got = swj.load(tmp_path / "c", jax.tree.map(jnp.zeros_like, tree))
    assert jax.tree.structure(got) == jax.tree.structure(tree) and same(got, tree)
    got = swj.load(tmp_path / "c", {**tree, "train": fresh})["train"]  # its step is an int, as of every fresh start
    assert got.step == 1 and type(got.step) is int and same(got.opt_state, trained.opt_state)
    plain = swj.load(tmp_path / "c")
    assert plain["own"]["w"].tolist() == [1, 1] and int(plain["train"]["step"]) == 1
    assert type(plain["train"]["opt_state"][0]).__name__ == "ScaleByAdamState"


def test_random_keys(tmp_path):
    mesh = mesh_of((4, 2), ("a", "b"))
    tree = {"one": jax.random.key(1), "rbg": jax.random.key(2, impl="rbg"), "old": jax.random.PRNGKey(3),
            "many": jax.device_put(jax.random.split(jax.random.key(4), 8), NamedSharding(mesh, P(("b", "a"))))}
    swj.save(tmp_path / "c", tree)
    got = swj.load(tmp_path / "c", tree)
    assert same(got, tree) and got["many"].sharding == tree["many"].sharding and got["rbg"].dtype == tree["rbg"].dtype
    other = NamedSharding(mesh, P("a"))
    assert swj.load(tmp_path / "c", {**tree, "many": other})["many"].sharding == other
    assert np.array_equal(swj.load(tmp_path / "c")["rbg"], jax.random.key_data(tree["rbg"]))
    with pytest.raises(sw.InvalidArgument, match=r"3 of 4 leaves.*'old' is uint32 \[2\], the target key<fry> \[\].*'one' is a "
                                                 r"PRNG key \(threefry2x32\) \[\], the target key<rbg> \[\].*'rbg'.*uint32"):
        swj.load(tmp_path / "c", {**tree, "one": tree["rbg"], "old": tree["one"], "rbg": jnp.zeros(4, "uint32")})


def test_all_that_does_not_fit_is_one_error(tmp_path):
    mesh = mesh_of((4, 2), ("a", "b"))
    swj.save(tmp_path / "c", {"w": jnp.ones((8, 2)), "b": jnp.ones(3), "i": 1, "more": jnp.ones(1), "h": np.ones(2)})
    want = {"w": jax.ShapeDtypeStruct((8, 2), jnp.int8), "b": jax.ShapeDtypeStruct((3,), jnp.float32,
            sharding=NamedSharding(mesh, P("a"))), "i": 1.0, "bb": jnp.ones(1), "h": jax.ShapeDtypeStruct((2,), np.float64)}
    with pytest.raises(ValueError) as caught:
        swj.load(tmp_path / "c", want)
    for text in ["6 of 6 leaves", "'w' is float32 [8, 2], the target int8 [8, 2]", "'b' is [3], which NamedSharding",
                 "'i' is an object, a int, the target a float", "'bb' is not in the checkpoint, nearest 'b'",
                 "'h' is float64, which JAX cannot hold", "'more' is in the checkpoint, not in the target"]:
        assert text in str(caught.value)
    assert isinstance(caught.value, sw.InvalidArgument)
    assert swj.load(tmp_path / "c", {"h": np.zeros(2)}, strict=False)["h"].dtype == np.float64
    with pytest.raises(sw.InvalidArgument, match="'gone' is not in"):
        swj.load(tmp_path / "c", {"gone": swj.ANY}, strict=False)
    with pytest.raises(sw.InvalidArgument, match="the target float32"):
        swj.load(tmp_path / "c", {"i": jnp.ones(())}, strict=False)
    with pytest.raises(sw.InvalidArgument, match="the target a int"):
        swj.load(tmp_path / "c", {"w": 1}, strict=False)
    with pytest.raises(sw.NotFound):
        swj.load(tmp_path / "nothing")


def test_an_empty_target_is_told(tmp_path):
    swj.save(tmp_path / "a", {"w": np.ones(3)})
    for target in ({}, {"a": []}, None):
        for strict in (True, False):
            if target is None:
                assert swj.load(tmp_path / "a", target, strict=strict)["w"].tolist() == [1, 1, 1]
                continue
            with pytest.raises(sw.InvalidArgument, match="the target is empty, needed is at least one"):
                swj.load(tmp_path / "a", target, strict=strict)
    swj.save(tmp_path / "b", {})
    assert swj.load(tmp_path / "b", {}) == {}


@pytest.mark.parametrize("save", [swj.save, lambda path, tree: swj.save_async(path, tree).result()])
def test_loaders_are_saved_by_their_state(tmp_path, save):
    def loader() -> Any:
        return sw.Loader({"y": np.arange(40)}, batch_size=4, seed=3)

    one, alone = loader(), loader()
    expected = [batch["y"].tolist() for batch in alone]
    assert [next(one)["y"].tolist() for _ in range(3)] == expected[:3]
    save(tmp_path / "a", {"w": jnp.ones(2), "loader": one})
    state = one.state_dict()
    assert swj.load(tmp_path / "a")["loader"] == state
    other = loader()
    found = swj.load(tmp_path / "a", {"w": np.zeros(2, np.float32), "loader": other})
    assert found["loader"] is other and [batch["y"].tolist() for batch in other] == expected[3:]
    fresh = loader()
    with pytest.raises(sw.InvalidArgument, match="'w' is"):
        swj.load(tmp_path / "a", {"w": np.zeros(3, np.float32), "loader": fresh})
    assert fresh.state_dict() == loader().state_dict()  # nothing is given if something does not fit
    with pytest.raises(sw.InvalidArgument, match="'w' is float32"):
        swj.load(tmp_path / "a", {"w": fresh, "loader": other})


def test_numbers_and_arrays_without_dims(tmp_path):
    f32, i8 = jnp.float32, jnp.int8
    replicated = NamedSharding(mesh_of((8,), ("a",)), P())
    swj.save(tmp_path / "c", {"i": 3, "f": 0.5, "b": True, "a": jnp.int32(7), "h": jnp.bfloat16(1.5), "big": 300, "odd": 0.1})
    want = {"i": jax.ShapeDtypeStruct((), i8, sharding=replicated), "f": np.zeros((), f32), "b": jnp.zeros((), bool), "a": 0,
            "h": 0.0, "big": 0, "odd": np.float64(0)}
    got = swj.load(tmp_path / "c", want)
    assert jax.tree.map(lambda x: x.item() if hasattr(x, "item") else x, got) == {
        "i": 3, "f": 0.5, "b": True, "a": 7, "h": 1.5, "big": 300, "odd": 0.1}
    assert got["i"].sharding == replicated and type(got["a"]) is int and type(got["odd"]) is np.float64
    with pytest.raises(sw.InvalidArgument, match="6 of 7.*'a' is int32.*a float.*'b' is.*int8.*'big' is 300, which no int8.*'f'.*"
                                                 "int8.*'i'.*float32.*'odd' is 0.1, which no float32"):
        swj.load(tmp_path / "c", {**want, "i": f32(0), "f": i8(0), "b": i8(0), "a": 0.0, "big": i8(0), "odd": f32(0)})


def test_bad_trees(tmp_path):
    with pytest.raises(sw.InvalidArgument, match="two leaves of the tree have the name 'a/b'"):
        swj.save(tmp_path / "c", {"a/b": 1, "a": {"b": 2}})
    with pytest.raises(sw.InvalidArgument, match="empty name"):
        swj.save(tmp_path / "c", {"": 1})
    donated = jnp.ones(2)
    donated.delete()
    with pytest.raises(TypeError, match=r"4 of 5 leaves.*'f'.*function.*'o'.*'s'.*'d' is an array that has been deleted"):
        swj.save(tmp_path / "c", {"f": lambda: 1, "o": np.array([None]), "s": np.array(["x"]), "ok": 1, "d": donated})
    with pytest.raises(sw.Unsupported, match="1 of 1 leaves.*'i4' has dtype int4"):
        swj.save(tmp_path / "c", {"i4": jnp.zeros(4, "int4")})
    with pytest.raises(TypeError, match="is being traced"):
        jax.jit(lambda x: swj.save(tmp_path / "c", {"x": x}))(1.0)
    with pytest.raises(ValueError, match="existing is 'maybe'"):
        swj.save(tmp_path / "c", {}, existing="maybe")
    with pytest.raises(TypeError, match="user"):
        swj.save(tmp_path / "c", {}, user=object())
    assert os.listdir(tmp_path) == []
    swj.save(tmp_path / "c", {})
    with pytest.raises(FileExistsError):
        swj.save_async(tmp_path / "c", {}).result()
    assert swj.load(tmp_path / "c") == {}


def test_tied_arrays_are_stored_once(tmp_path):
    w = jnp.ones((256, 256))
    assert swj.save(tmp_path / "c", {"in": w, "out": w}).logical_bytes == w.nbytes
    assert same(swj.load(tmp_path / "c", {"in": w, "out": w}), [w, w]) and same(swj.load(tmp_path / "c"), [w, w])


def test_checkpoints_without_a_tree(tmp_path):
    sw.save(tmp_path / "c", {"a/b": np.arange(3, dtype="i4"), "s": "x"})
    assert swj.load(tmp_path / "c")["s"] == "x"
    assert swj.load(tmp_path / "c", {"a": {"b": jnp.zeros(3, "int32")}, "s": ""})["a"]["b"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])  # of which one has Python's buffers
def test_training_goes_on_while_it_saves(tmp_path, dtype, waits_alone_let_others_run):
    sharding = NamedSharding(mesh_of((8,), ("a",)), P("a"))
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jax.device_put(jnp.zeros((1024, 256), dtype), sharding)
    host = np.zeros(1000)
    pending = []
    for i in range(4):
        said = {"list": [i]}
        pending.append(swj.save_async(tmp_path / f"{i}", {"x": x, "host": host, **said}, user=said))
        said["list"].append("later")
        x = step(x)
        host += 1
    for i, p in enumerate(pending):
        assert p.result().path == str(tmp_path / f"{i}")
        got = swj.load(tmp_path / f"{i}")
        assert (got["x"] == i).all() and (got["host"] == i).all() and got["list"] == [i]
        assert sw.info(tmp_path / f"{i}").user == {"list": [i]}
    # What is restored is JAX's own: donating it changes nothing else.
    back = swj.load(tmp_path / "3", {"x": x, "host": host, "list": [0]})
    assert (np.asarray(step(back["x"])) == 4).all() and (swj.load(tmp_path / "3")["x"] == 3).all()


def test_needs_no_devices(tmp_path):
    swj.save(tmp_path / "c", {"w": jax.device_put(jnp.arange(16.0), NamedSharding(mesh_of((8,), ("a",)), P("a")))})
    code = ("import sys, jax, shardwise.jax as swj; assert swj.load(sys.argv[1])['w'].sum() == 120; "
            "from jax._src import xla_bridge; assert not xla_bridge._backends")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "c")], check=True,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


# CheckpointManager


def manager(root: Any, **options: Any) -> swj.CheckpointManager:
    return swj.CheckpointManager(root, options=swj.CheckpointManagerOptions(**options))


def save_all(m: swj.CheckpointManager, steps: Any, **more: Any) -> list[int]:
    saved = [s for s in steps if m.save(s, {"w": jnp.full(3, s)}, **more)]
    m.wait_until_finished()
    return saved


def test_a_save_under_way_is_left_alone_or_followed(tmp_path):
    for when_busy, saved, steps in (("skip", [False, False], []), ("replace", [True, True], [3])):
        with manager(tmp_path / when_busy, when_busy=when_busy) as m:
            may_go_on, w = threading.Event(), np.zeros(2)
            m._queue.add(sw.PendingSave(1, lambda progress: may_go_on.wait() and None), None)
            assert [m.save(2, {"w": w}), m.save(3, {"w": w})] == saved
            w += 1
            may_go_on.set()
            m.wait_until_finished()
            assert m.all_steps() == steps and m.should_save(3) == (when_busy == "skip")
            assert m.save(4, {"w": w})
    with pytest.raises(sw.InvalidArgument, match="when_busy is 'drop', needed is 'wait' or 'skip' or 'replace'"):
        manager(tmp_path, when_busy="drop")


def test_manager(tmp_path):
    with manager(tmp_path, max_to_keep=2, save_interval_steps=2) as m:
        assert m.latest_step() is None and m.all_steps() == [] and m.best_step() is None
        with pytest.raises(sw.NotFound, match="holds no step"):
            m.restore(None)
        assert save_all(m, range(6), metrics={"loss": np.float32(0.5), "nan": float("nan")}, custom_metadata={"lr": 1}) == [0, 2, 4]
        assert m.all_steps() == [2, 4] and m.latest_step() == 4 and m.best_step() == 4
        assert m.metrics(4)["loss"] == 0.5 and m.metadata(4).custom_metadata == {"lr": 1}
        assert not m.should_save(4) and not m.save(4, {"w": 1}) and m.restore(4)["w"].tolist() == [4] * 3
        assert m.save(4, {"w": 7}, force=True)
        assert m.restore(None if m.wait_until_finished() else 4) == {"w": 7}
        assert m.item_metadata(2) == {"w": jax.ShapeDtypeStruct((3,), jnp.int32)}
        assert m.restore(2, args=swj.args.StandardRestore(m.item_metadata(2)))["w"].tolist() == [2] * 3
        m.delete(2)
        with pytest.raises(KeyError):
            m.delete(2)
        with pytest.raises(FileNotFoundError):
            m.restore(2)
        assert not m.reached_preemption(5)
    with sw.CheckpointManager(tmp_path) as ours:  # the same folder, the same steps
        assert ours.steps() == [4] and ours.latest().path == str(tmp_path / "step-00000004")
    with manager(tmp_path, read_only=True) as m:
        assert not m.save(10, {"w": 1}) and m.restore(None) == {"w": 7}
    with pytest.raises(sw.NotFound):
        manager(tmp_path / "none", create=False)


def test_several_items(tmp_path):
    args = swj.args
    with manager(tmp_path, max_to_keep=3) as m:
        m.save(0, args=args.Composite(state=args.StandardSave({"w": jnp.ones(3)}), loader=args.JsonSave({"i": (1, 2), 3: None})))
        m.save(1, args=args.JsonSave([1]))
        got = m.restore(0)
        assert got.loader == {"i": (1, 2), 3: None} and got["state"]["w"].tolist() == [1] * 3 and set(got) == {"state", "loader"}
        one = m.restore(0, args=args.Composite(state=args.StandardRestore({"w": jnp.zeros(3)})))
        assert list(one) == ["state"] and isinstance(one.state["w"], jax.Array)
        assert m.restore(0, args=args.Composite(state=None, loader=args.JsonRestore())).loader[3] is None
        assert m.restore(1) == [1] and m.item_metadata(0).state["w"].shape == (3,)
        with pytest.raises(sw.InvalidArgument, match="'state/v' is not in.*nearest 'state/w'; 'state/w' is in the checkpoint, not"):
            m.restore(0, args=args.Composite(state=args.StandardRestore({"v": swj.ANY})))
        for bad in (args.StandardRestore(), args.Composite(other=None), args.Composite(state=3)):
            with pytest.raises((sw.InvalidArgument, sw.NameNotFound), match="item|needed"):
                m.restore(0, args=bad)
        with pytest.raises(sw.InvalidArgument, match="no items"):
            m.restore(1, args=args.Composite(state=None))
        for bad in ({}, {"items": 1, "args": args.JsonSave(1)}, {"args": 3}, {"args": args.Composite(a=3)}):
            with pytest.raises(sw.InvalidArgument):
                m.save(2, **bad)
    with sw.open(tmp_path / "step-00000000") as c:
        assert list(c) == ["state/w"] and list(c.objects) == ["loader"]
    with pytest.raises(sw.InvalidArgument, match="none of item_names"):
        swj.CheckpointManager(tmp_path, item_names=("a",)).save(5, args=args.Composite(b=args.JsonSave(1)))


def test_best_steps_stay(tmp_path):
    with manager(tmp_path, max_to_keep=2, best_fn=lambda metrics: metrics["loss"], best_mode="min") as m:
        for step, loss in enumerate([3.0, float("nan"), 1.0, 2.0, 5.0, 4.0]):
            m.save(step, {"w": step}, metrics={"loss": loss})
        m.wait_until_finished()
        assert m.all_steps() == [2, 3, 5] and m.best_step() == 2 and m.latest_step() == 5
    with sw.CheckpointManager(tmp_path, best=("loss", "min", 1)) as ours:  # and it can rank them, too
        ours.save(6, {}, metrics={"loss": 9})
        assert ours.steps() == [2, 6]


def test_policies(tmp_path):
    p = swj.policies
    decision = p.AnySavePolicy([p.InitialSavePolicy(), p.FixedIntervalPolicy(3), p.SpecificStepsPolicy({5}),
                                p.PreemptionCheckpointingPolicy()])
    keep = p.AnyPreservationPolicy([p.LatestN(1), p.EveryNSteps(6), p.CustomSteps([5])])
    with manager(tmp_path / "a", save_decision_policy=decision, preservation_policy=keep) as m:
        assert save_all(m, range(1, 14)) == [1, 3, 5, 6, 9, 12] and m.all_steps() == [5, 6, 12]
    with manager(tmp_path / "b", save_decision_policy=p.ContinuousCheckpointingPolicy(minimum_interval_secs=3600)) as m:
        assert save_all(m, range(3)) == [0]
    with manager(tmp_path / "b", should_save_fn=lambda step, last: step == 7 and last == 0) as m:
        assert save_all(m, range(6, 9)) == [7]
    infos = [types.SimpleNamespace(step=s, metrics=None, time=__import__("datetime").datetime.fromtimestamp(
        s, tz=__import__("datetime").timezone.utc)) for s in (1, 4, 6, 9)]

    def kept(policy: Any) -> list[int]:
        return [i.step for i, k in zip(infos, policy.should_preserve(infos, context=p.PreservationContext())) if k]

    assert kept(p.PreserveAll()) == [1, 4, 6, 9] and kept(p.LatestN()) == [1, 4, 6, 9] and kept(p.LatestN(0)) == []
    assert kept(p.EveryNSeconds(4)) == [1, 6] and kept(p.EveryNSteps(3, exact_interval=False)) == [1, 4, 9]
    assert kept(p.EveryNSteps(1, max_to_keep=2)) == [6, 9] and kept(p.EveryNSteps(1, max_to_keep=0)) == []
    assert kept(p.BestN(get_metric_fn=float, n=1, keep_checkpoints_without_metrics=False)) == []
    for bad in ({"best_mode": "most"}, {"save_interval_steps": 0}, {"keep_period": 0}, {"max_to_keep": -1}):
        with pytest.raises(sw.InvalidArgument):
            swj.CheckpointManagerOptions(**bad)
    with pytest.raises(sw.InvalidArgument):
        p.EveryNSteps(0)


def test_what_readers_have_open_stays(tmp_path):
    with manager(tmp_path, max_to_keep=1) as m:
        save_all(m, [0])
        with sw.open(tmp_path / "step-00000000") as reader:
            save_all(m, [1, 2])
            assert m.all_steps() == [0, 2] and reader["w"][0] == 0
        save_all(m, [3])
        assert m.all_steps() == [3]


def test_errors_of_a_save_in_the_background_are_told(tmp_path):
    m = manager(tmp_path)
    save_all(m, [0])
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "junk").touch()
    m._known.pop(1, None)
    assert m.save(1, {"w": 1})
    with pytest.raises(FileExistsError):
        m.wait_until_finished()
    m.check_for_errors()
    os.rename(tmp_path / "step-00000001", tmp_path / "other")
    assert m.save(1, {"w": 1})
    m.close()
    with pytest.raises(TypeError):
        m.save(2, {"w": object()})
    assert m.save(2, {"w": 2}) and m.restore(None if m.wait_until_finished() else 2) == {"w": 2}


def test_damage_is_no_fresh_start(tmp_path):
    m = manager(tmp_path)
    save_all(m, [0, 1])
    (tmp_path / "step-00000001" / "manifest.json").write_text("{}")
    assert m.latest_step() == 0 and m.restore(None)["w"].tolist() == [0] * 3
    (tmp_path / "step-00000000" / "manifest.json").write_text("{}")
    for ask in (m.latest_step, lambda: m.restore(None)):
        with pytest.raises(sw.Corrupt):
            ask()


def test_a_step_that_has_a_name_stays(tmp_path):
    with manager(tmp_path, max_to_keep=1) as m:
        save_all(m, [0, 1])
        m.pin(1, "good")
        save_all(m, [2, 3])
        assert m.all_steps() == [1, 3] and m.pinned() == {"good": 1}
        with pytest.raises(sw.InvalidArgument, match="remove step 1 of .*: it is pinned as \"good\""):
            m.delete(1)
        with pytest.raises(KeyError):
            m.pin(7, "no")
        m.unpin("good")
        save_all(m, [4])
        assert m.all_steps() == [4] and m.pinned() == {}
    with sw.CheckpointManager(tmp_path) as ours:
        ours.pin(4, "best")
        assert manager(tmp_path).pinned() == {"best": 4}


def flip(step: pathlib.Path) -> None:
    """A bit of its first element."""
    file = step / "shards-00000-of-00001.h5"
    data = bytearray(file.read_bytes())
    data[4096] ^= 1
    file.write_bytes(data)


def test_a_restart_goes_back_past_damaged_bytes(tmp_path, caplog):
    with manager(tmp_path) as m:
        save_all(m, [0, 1, 2, 3])
        m.wait_until_finished()
    flip(tmp_path / "step-00000002")
    (tmp_path / "step-00000003" / "manifest.json").write_text("{}")
    with manager(tmp_path) as m:
        assert m.restore(None)["w"].tolist() == [1] * 3
        assert "step 2 of" in caplog.text and "passed over" in caplog.text and "step-00000003" in caplog.text
        assert m.should_save(2) and save_all(m, [2, 3]) == [2, 3]  # they are replaced
        assert not m.should_save(3) and save_all(m, [3]) == []
        m.wait_until_finished()
        assert m.restore(None)["w"].tolist() == [3] * 3 and sw.verify(tmp_path / "step-00000002")
        for step in range(4):
            flip(tmp_path / f"step-{step:08d}")
        with pytest.raises(sw.Corrupt, match="none of 4 is whole; step-00000003: .*; step-00000002: "):
            m.restore(None)
        with pytest.raises(sw.Corrupt, match="step-00000001"):
            m.restore(1)
    with pytest.raises(sw.NotFound, match="holds no step"):
        manager(tmp_path / "new").restore(None)


KILLED = """
import sys, numpy as np, shardwise.jax as swj
m = swj.CheckpointManager(sys.argv[1], options=swj.CheckpointManagerOptions(max_to_keep=2))
first = m.latest_step()
print("ready", flush=True)
for step in range(0 if first is None else first + 1, 10**6):
    m.save(step, {"w": np.full((512, 256), step), "i": step})
"""


def test_a_kill_leaves_a_valid_step(tmp_path):
    rng = np.random.default_rng(1)
    last = -1
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE,
                                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        process.stdout.readline()
        time.sleep(0.3 + rng.random() / 4)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with manager(tmp_path) as m:
            step = m.latest_step()
            assert step is not None and step >= last
            last = step
            got = m.restore(step)
            assert (got["w"] == step).all() and got["i"] == step and sw.verify(tmp_path / f"step-{step:08d}")


def test_the_command_shows_the_mesh_of_each_tensor_if_there_are_several(tmp_path):
    command = os.path.join(os.path.dirname(_core.__file__), "bin", "shardwise")
    if not os.path.exists(command):
        pytest.skip("the command is not built")
    grid, line = mesh_of((4, 2), ("data", "model")), mesh_of((8,), ("x",))
    b = jax.device_put(np.ones(16, np.float32), NamedSharding(line, P("x")))
    w = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(grid, P("data", "model")))
    swj.save(tmp_path / "two", {"b": b, "w": w})
    shown = subprocess.run([command, "inspect", tmp_path / "two"], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in shown.splitlines()]
    assert "name tensors dtype shape spec mesh parameters bytes stored".split() in rows
    assert ["b", "f32", "[16]", "x", "x=8", "16", "64", "B", "64", "B"] in rows
    assert ["w", "f32", "[8,", "4]", "data,model", "data=4,model=2", "32", "128", "B", "128", "B"] in rows
    swj.save(tmp_path / "one", {"w": w})
    shown = subprocess.run([command, "inspect", tmp_path / "one"], capture_output=True, text=True, check=True).stdout
    assert "\nmesh data=4,model=2\n" in shown and " mesh " not in shown.splitlines()[4]


def test_what_a_restore_finds_damaged_is_saved_whole_again(tmp_path):
    tree = {"w": jnp.asarray(np.random.default_rng(1).random(1 << 18, np.float32))}
    with swj.CheckpointManager(tmp_path) as manager:
        manager.save(1, tree)
        manager.save(2, tree)
        manager.wait_until_finished()
        linked = next((tmp_path / "step-00000002").glob("linked-*"))  # of both steps
        with open(linked, "r+b") as file:
            file.seek(5000)
            byte = file.read(1)
            file.seek(5000)
            file.write(bytes([byte[0] ^ 1]))
        for step in (2, 1):
            with pytest.raises(sw.Corrupt):
                manager.restore(step, tree)
        manager.save(2, tree, force=True)
        assert (manager.restore(2, tree)["w"] == tree["w"]).all()
        manager.save(3, tree)  # what was saved again is whole, and the next one is built on it
        manager.wait_until_finished()
        path = manager.metadata(3).path
        assert list(pathlib.Path(path).glob("linked-*")) and sw.verify(path)


def test_what_a_save_did_is_kept_beside_its_step(tmp_path):
    tree = {"w": jnp.asarray(np.random.default_rng(1).random(1 << 18, dtype="f4")), "n": np.zeros(1000)}
    with manager(tmp_path, write_stats=False) as m:
        m.save(1, tree)
    assert names(tmp_path) == ["step-00000001"]
    with manager(tmp_path, max_to_keep=2, parity_blocks=1, enable_async_checkpointing=False) as m:
        m.save(2, tree)
    whole = told(tmp_path, 2)
    assert whole["logical_bytes"] == (1 << 20) + 8000 and whole["directory"] == "step-00000002"
    assert whole["blocked_seconds"] >= whole["total_seconds"] and whole["parity_bytes"] > 0
    with manager(tmp_path, max_to_keep=2) as m:
        begun = time.monotonic()
        m.save(3, tree)
        waited = time.monotonic() - begun
        m.wait_until_finished()
        later = told(tmp_path, 3)
        assert 0 < later["blocked_seconds"] <= waited and later["unchanged_bytes"] == 1 << 20
        assert later["memory_bytes"] == whole["memory_bytes"] + 8000  # the copy of what numpy can change
        assert names(tmp_path) == ["stats-step-00000002.json", "stats-step-00000003.json", "step-00000002", "step-00000003"]
        m.save(4, tree)
        m.wait_until_finished()
        m.delete(3)
    assert names(tmp_path) == ["stats-step-00000004.json", "step-00000004"]
