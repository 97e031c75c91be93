"""shardwise.jax in one process of 8 CPU devices."""

import collections
import os
import subprocess
import sys
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
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import shardwise as sw
import shardwise.jax as swj
from shardwise import _core
from shardwise._dtypes import name_of
from shardwise.jax import _devices
from shardwise._trees import pytree as _tree

KNOWN = {name for name, _ in _core.dtypes()}
DTYPES = [np.dtype(d) for d in ("f4", "f2", ml_dtypes.bfloat16, "i1", "u4", "?", "c8", ml_dtypes.float8_e4m3fn,
                                ml_dtypes.float8_e5m2) if name_of(d) in KNOWN]


def same(a: Any, b: Any) -> bool:
    """Compares leaf by leaf, bit for bit."""
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
    with sw.open(tmp_path / "c") as c:  # the cut is stored for others
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
    assert fresh.state_dict() == loader().state_dict()  # no state is changed if a part does not fit
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
    cycle = {"w": jnp.ones(1)}
    cycle["a"] = [cycle]
    with pytest.raises(sw.InvalidArgument, match="'a/0': found the container that holds it, needed is one that does not hold"):
        swj.save(tmp_path / "c", cycle)
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])  # only float32 has Python's buffers
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
    # JAX owns the restored arrays: donating one changes nothing else.
    back = swj.load(tmp_path / "3", {"x": x, "host": host, "list": [0]})
    assert (np.asarray(step(back["x"])) == 4).all() and (swj.load(tmp_path / "3")["x"] == 3).all()


def test_needs_no_devices(tmp_path):
    swj.save(tmp_path / "c", {"w": jax.device_put(jnp.arange(16.0), NamedSharding(mesh_of((8,), ("a",)), P("a")))})
    code = ("import sys, jax, shardwise.jax as swj; assert swj.load(sys.argv[1])['w'].sum() == 120; "
            "from jax._src import xla_bridge; assert not xla_bridge._backends")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "c")], check=True,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


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
