"""Saves values of the standard library, numpy and torch, and dataclasses: a loaded value equals the saved one, and has its type."""

import argparse
import collections
import dataclasses
import datetime
import decimal
import fractions
import functools
import io
import pathlib
import struct
import subprocess
import sys
import types
import typing
import uuid
import zoneinfo

import numpy as np
import pytest

import shardwise as sw
from shardwise._trees import objects as _objects
from shardwise._checkpoint import save as _save

UTC, EAST = datetime.timezone.utc, datetime.timezone(datetime.timedelta(hours=5, minutes=30, seconds=1))
NAMED = datetime.timezone(datetime.timedelta(hours=-3), "BRT")
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
VALUES = [
    datetime.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), datetime.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
    datetime.datetime(2026, 3, 29, 2, 30, 0, 9, tzinfo=BERLIN), datetime.time(2, tzinfo=BERLIN, fold=1), BERLIN,
    datetime.datetime(2026, 11, 27, 12, 30, 1, 7), datetime.datetime(1, 1, 1, fold=1), datetime.datetime.max.replace(tzinfo=UTC),
    datetime.datetime(2026, 1, 2, tzinfo=EAST), datetime.datetime(2026, 1, 2, tzinfo=NAMED, fold=1), datetime.date.min,
    datetime.time(3, 4), datetime.time(3, 4, 5, 6, tzinfo=NAMED), datetime.timedelta(-3, 4, 5), UTC, EAST, NAMED,
    pathlib.Path("/data/a b"), pathlib.Path("é\udc80"), pathlib.PurePosixPath("."), pathlib.PureWindowsPath("C:\\x\\y"),
    *map(decimal.Decimal, ("1.10", "-0", "1E+99999", "NaN123", "-sNaN", "Infinity")), fractions.Fraction(-(2**9000), 3),
    uuid.UUID(int=2**127 + 5), slice(None), slice(1, 2.5, "a"), range(3, -2**70, -2), ..., bytearray(b"\x00a"),
    types.SimpleNamespace(a=1, **{"$b": (2,)}), argparse.Namespace(lr=0.1, out=pathlib.Path("x")),
    np.dtype("<f4"), np.dtype(">i2"), np.dtype("M8[ms]"), np.dtype("U5"), np.dtype("O"), np.float32, np.bool_, np.str_, np.datetime64,
    np.datetime64("2026-11-27"), np.datetime64("NaT", "ns"), np.timedelta64(-5, "h"), np.complex64(1 - 2j), np.float16("nan"),
]  # fmt: skip


def same(found, value):
    if isinstance(value, types.SimpleNamespace | argparse.Namespace):
        return type(found) is type(value) and same(vars(found), vars(value))
    if isinstance(value, dict):
        return type(found) is dict and list(found) == list(value) and all(same(found[key], value[key]) for key in value)
    if isinstance(value, datetime.datetime | datetime.time):
        return type(found) is type(value) and repr(found) == repr(value) and found.tzname() == value.tzname()
    return type(found) is type(value) and (repr(found) == repr(value) or found == value)


def test_values_come_back_equal_and_of_their_types(tmp_path):
    tree = {f"v{i}": value for i, value in enumerate(VALUES)}
    kept = {value: i for i, value in enumerate(VALUES) if isinstance(value, typing.Hashable) and not isinstance(value, slice)
            and repr(value) != "Decimal('-sNaN')"}  # whose hash() raises
    sw.save(tmp_path / "a", {**tree, "in": [VALUES, {"w": np.ones(1), "of": VALUES}], "keys": kept})
    found = sw.load(tmp_path / "a")
    assert [name for name in tree if not same(found[name], tree[name])] == []
    assert all(map(same, found["in"][0], VALUES)) and all(map(same, found["in"][1]["of"], VALUES))
    assert [repr(key) for key in found["keys"]] == [repr(key) for key in kept]


def test_torch_values_are_texts_and_tuples_without_torch(tmp_path):
    torch = pytest.importorskip("torch")
    import shardwise.torch as swt

    values = {"a": torch.bfloat16, "b": torch.device("cuda:1"), "c": torch.strided, "d": torch.channels_last, "e": torch.Size([2, 3])}
    swt.save(tmp_path / "a", {"of": [values], "when": datetime.date(2026, 1, 2)})
    found = swt.load_state_dict(tmp_path / "a")
    assert found["of"] == [values] and type(found["of"][0]["e"]) is torch.Size and found["when"] == datetime.date(2026, 1, 2)
    target = {"of": [dict(values, e=torch.Size([0, 0]))], "when": None}
    assert swt.load(tmp_path / "a", target)["of"] == [values] and type(target["of"][0]["e"]) is torch.Size
    program = "import sys, shardwise as sw; print(sw.load(sys.argv[1])['of']); assert 'torch' not in sys.modules"
    told = subprocess.run([sys.executable, "-c", program, tmp_path / "a"], capture_output=True, text=True)
    assert told.stdout == ("[{'a': 'torch.bfloat16', 'b': 'cuda:1', 'c': 'torch.strided', 'd': 'torch.channels_last', 'e': (2, 3)}]\n"), told


class Own(datetime.datetime):
    pass


def test_values_that_would_not_be_the_same_are_refused(tmp_path):
    keyless = zoneinfo.ZoneInfo.from_file(io.BytesIO(b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + bytes(6) + b"UTC\0"))
    own = types.new_class("OwnZone", (datetime.tzinfo,))()
    for bad, why in ((datetime.datetime(2026, 1, 2, tzinfo=keyless), "needed is a zoneinfo.ZoneInfo with a key, a fixed offset"),
                     (keyless, "a zoneinfo.ZoneInfo without a key cannot be stored"), (datetime.time(1, tzinfo=own), "a time of the zone .*OwnZone"), (Own(2026, 1, 2), "Own cannot be stored"),
                     (np.dtype([("a", "f4")]), "dtype .* cannot be stored"), (np.dtype("f4", metadata={"a": 1}), "without parts and metadata"),
                     (types.SimpleNamespace(__array__=1), "SimpleNamespace with the name '__array__' cannot be stored"),
                     (fractions.Fraction(1, 2**70_000), "needed are integers of at most 65536 bits"), (np.floating, "type cannot be stored"), (int, "type cannot be stored"),
                     (memoryview(b""), "memoryview cannot be stored"), (np.array(["2026"], "M8"), "array of numbers|needed are numbers")):
        with pytest.raises(TypeError, match=why):
            sw.save(tmp_path / "a", {"x": bad})


def test_a_zone_that_is_not_in_the_database_of_this_machine_is_the_offset_of_then(tmp_path, monkeypatch):
    when = datetime.datetime(2026, 7, 1, 12, tzinfo=BERLIN)
    sw.save(tmp_path / "a", {"when": when, "time": datetime.time(5, tzinfo=BERLIN), "zone": BERLIN})

    def none(key):
        raise zoneinfo.ZoneInfoNotFoundError(key)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", none)
    found = sw.load(tmp_path / "a")
    assert found["when"] == when and repr(found["when"].tzinfo) == "datetime.timezone(datetime.timedelta(seconds=7200))"
    assert found["time"] == datetime.time(5) and found["zone"] == "Europe/Berlin"


HOSTILE = [
    {"$zone": "../../etc/passwd"}, {"$zone": "/etc/passwd"}, {"$zone": 5}, {"$zone": ["x"]}, {"$datetime": ["2026-01-01T00:00:00", 0, None, 1]},
    {"$datetime": ["2026-01-01T00:00:00", 0, None, "../x"]}, {"$datetime": ["2026-01-01", 0, None, "UTC", 1]}, {"$time": ["05:00", 2, None, "UTC"]},
    {"$date": "now"}, {"$date": 5}, {"$datetime": ["x"]}, {"$datetime": [1, 2, 3]}, {"$timedelta": [10**30]}, {"$timezone": [1]},
    {"$path": ["os.system", "ls"]}, {"$path": "x"}, {"$decimal": "one"}, {"$fraction": [1, 0]}, {"$fraction": ["1"] * 3}, {"$uuid": []},
    {"$slice": [1, 2, 3, 4]}, {"$slice": 5}, {"$range": [1, 2, 0]}, {"$bytearray": "xy"}, {"$bytes": "0"}, {"$bytes": {}},
    {"$namespace": 5}, {"$arguments": [1]}, {"$dtype": "nothing"}, {"$dtype": {"a": 1}}, {"$scalar": "os"}, {"$numpy": ["<f4"]},
    {"$numpy": ["nothing", 1]}, {"$numpy": ["<M8[s]", "x"]}, {"$array": ["f32", [4], "00"]}, {"$array": ["f32", [-1, 10**18], "00" * 4]},
    {"$array": ["os", [1], ""]}, {"$float": "x"}, {"$int": "zz"}, {"$complex": "a"}, {"$set": [{"$bytearray": "00"}]}, {"$set": 5},
    {"$fraction": ["1e100000000", None]}, {"$fraction": [1, {"$int": "0x1" + "0" * 20_000}]}, {"$range": [0, {"$int": "0x1" + "0" * 20_000}, 3]},
    {"$range": "abc"}, {"$numpy": ["V1", 1]}, {"$numpy": ["O", 1]}, {"$numpy": ["<M8[s]", 1.5]}, {"$namespace": {"$items": [[1, 2]]}},
    {"$numpy": ["f4", {"$namespace": {"__array_interface__": {"shape": {"$tuple": [4]}, "typestr": "<f4", "data": {"$tuple": [4096, True]}, "version": 3}}}]},
    {"$arguments": {"__array_interface__": 1}}, {"$items": [[1]]}, {"$items": 5}, {"$kept": []}, {"$kept": [["deque", "x"], [[0, 1]]]}, {"$enum": 5}, {"$text": "zz"},
]  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda value: repr(value)[:60])
def test_what_no_save_has_written_is_one_clear_error(tmp_path, monkeypatch, hostile):
    monkeypatch.setattr(_save, "encode_objects", lambda objects: {"bad": {"within": [hostile]}})
    sw.save(tmp_path / "a", {"bad": 0, "w": np.ones(1)})
    with pytest.raises(sw.Corrupt, match=f"^checkpoint {tmp_path}/a: object 'bad' cannot be decoded: "):
        sw.load(tmp_path / "a")


@pytest.mark.parametrize("key, value", [
    ("paths", {"of/0": 5}), ("paths", {"of/0": [{"$date": "x"}]}), ("paths", {"of/0": [{"$bytearray": ""}]}), ("containers", {"x": "list"}),
    ("paths", {"of/0": ["w"], "of/1": ["w", "x"]}),
    ("containers", {"5": "list"}), ("containers", {'["of"]': ["deque", "x"]}), ("containers", {'["of"]': {"namedtuple": 1, "fields": 2}}),
    ("metrics", {"loss": {"$float": "x"}})])  # fmt: skip
def test_a_hostile_tree_is_one_clear_error(tmp_path, monkeypatch, key, value):
    plan_of = _save.plan_of

    def hostile(tensors):
        plan = plan_of(tensors)
        plan.extra[key] = {**plan.extra.get(key, {}), **value}
        return plan

    monkeypatch.setattr(_save, "plan_of", hostile)
    sw.save(tmp_path / "a", {"of": [np.ones(1), np.ones(2)], "w": np.ones(1)})
    with (
        pytest.raises(sw.Corrupt, match="cannot be decoded: |is below 'w', which is no container"),
        sw.open(tmp_path / "a") as c,
    ):
        c.load() if key != "metrics" else c.metrics


def test_torch_gives_none_of_its_functions():
    torch = pytest.importorskip("torch")
    for text in ("torch.load", "torch.nn", "torch._dynamo", "torch.hub", "torch.x.y", "torch.", "no where:0", "cpu:", 5):
        with pytest.raises(sw.Corrupt, match="object 'a' cannot be decoded"):
            _objects.decode_named("a", {"$torch": text}, "here")
    assert _objects.decode({"$torch": "torch.float32"}) is torch.float32
    for text in ("torch.float1_of_later", "nowhere:0"):  # read as without torch: values that another torch has saved are not damaged
        assert _objects.decode_named("a", {"$torch": text}, "here") == text


class Point(typing.NamedTuple):
    x: int
    y: typing.Any


@dataclasses.dataclass(frozen=True, slots=True)
class Optimizer:
    lr: float
    since: datetime.date = datetime.date(2026, 1, 1)


@dataclasses.dataclass
class Config:
    name: str
    optimizer: Optimizer
    w: typing.Any = None
    points: list = dataclasses.field(default_factory=list)
    made: int = dataclasses.field(default=0, init=False)

    def __post_init__(self):
        assert self.name != "loaded", "no code of the class runs in a load"


def config(one, *, empty=False):
    made = Config("", Optimizer(0.0), None if one is None else one * 0, [Point(0, 0)])
    if not empty:
        made = Config("x", Optimizer(0.1, datetime.date(2026, 11, 27)), one, [Point(1, (2,))])
        made.name, made.made = "loaded", 7
    return made


@functools.cache
def faces():
    found = [(sw.save, sw.load, lambda path, target: sw.load(path, target=target), np.ones)]
    try:
        import torch
        import shardwise.torch as swt

        found.append((swt.save, swt.load_state_dict, swt.load, torch.ones))
    except ImportError:
        print("without torch")
    return found


def plain(value):
    return {**dataclasses.asdict(value), "points": value.points, "w": None if value.w is None else value.w.tolist()}


@pytest.mark.parametrize("holds_array", [False, True])
def test_a_dataclass_comes_from_the_target_alone(tmp_path, holds_array):
    for number, (save, plain_load, load, ones) in enumerate(faces()):
        path = tmp_path / str(number)
        saved = config(ones(2) if holds_array else None)
        save(path, {"config": saved, "of": {"all": [saved]}, "w": ones(1)})
        without = plain_load(path)
        assert type(without["config"]) is dict and without["config"]["optimizer"] == {"lr": 0.1, "since": datetime.date(2026, 11, 27)}
        target = config(ones(2) if holds_array else None, empty=True)
        found = load(path, {"config": target, "of": {"all": [target]}, "w": ones(1)})
        for one in (found["config"], found["of"]["all"][0]):
            assert type(one) is Config and type(one.optimizer) is Optimizer and type(one.points[0]) is Point
            assert plain(one) == plain(saved)
        assert target.name == ""  # a new one is given


def test_a_dataclass_comes_back_within_containers_of_each_kind(tmp_path):
    one, zero = Optimizer(0.5), Optimizer(0.0)
    kinds = {"ordered": lambda v: collections.OrderedDict(a=v), "default": lambda v: collections.defaultdict(list, a=v),
             "deque": lambda v: collections.deque([v], 3), "tuple": lambda v: (v,), "named": lambda v: Point(1, v),
             "count": lambda v: collections.Counter(a=2)}  # fmt: skip
    for number, (save, _, load, ones) in enumerate(faces()):
        save(tmp_path / str(number), {name: kind(one) for name, kind in kinds.items()} | {"w": ones(1)})
        found = load(tmp_path / str(number), {name: kind(zero) for name, kind in kinds.items()} | {"w": ones(1)})
        for name, kind in kinds.items():
            assert found[name] == kind(one) and type(found[name]) is type(kind(one)), name
        assert found["deque"].maxlen == 3 and found["default"].default_factory is list


def test_a_dataclass_with_other_fields_is_a_misfit(tmp_path):
    for number, (save, _, load, ones) in enumerate(faces()):
        path = tmp_path / str(number)
        save(path, {"optimizer": Optimizer(0.1), "point": {"x": 1, "y": 2, "z": 3}, "w": ones(1)})
        needed = r"'optimizer' has the fields lr, since there, the target's Point x, y.*'point' has the fields x, y, z there"
        with pytest.raises(sw.InvalidArgument, match=needed):
            load(path, {"optimizer": Point(1, 2), "point": Point(0, 0), "w": ones(1)})
        save(path.with_suffix(".b"), {"point": {"x": 1, "y": 2}, "w": ones(1)})  # saved by earlier code, which had no class
        assert load(path.with_suffix(".b"), {"point": Point(0, 0), "w": ones(1)})["point"] == Point(1, 2)


def test_a_dataclass_that_is_more_than_its_fields_is_refused(tmp_path):
    more = config(None)
    more.also = 1

    @dataclasses.dataclass
    class OfError(Exception):
        a: int

    class Below:
        __slots__ = "hidden"

    @dataclasses.dataclass(slots=True)
    class OfSlots(Below):
        a: int

    slots = OfSlots(1)
    slots.hidden = 2
    for bad, why in ((slots, "not what its fields say: hidden"), (more, "Config cannot be stored, as it is not what its fields say: also: needed is a dict"), (OfError(1), "its built-in base")):
        for tree in ({"x": bad}, {"x": [bad, np.ones(1)]}):
            with pytest.raises(TypeError, match=f"'x.*{why}"):
                sw.save(tmp_path / "a", tree)


def test_jax_fills_dataclasses_and_dcp_refuses_them(tmp_path):
    jnp = pytest.importorskip("jax.numpy")
    import shardwise.jax as swj

    swj.save(tmp_path / "a", {"config": config(None), "w": jnp.ones(2)})
    assert plain(swj.load(tmp_path / "a", {"config": config(None, empty=True), "w": jnp.zeros(2)})["config"]) == plain(config(None))
    with pytest.raises(sw.InvalidArgument, match="'config' has the fields name, .* there, the target's Optimizer lr, since"):
        swj.load(tmp_path / "a", {"config": Optimizer(0.0), "w": jnp.zeros(2)})
    with pytest.raises(TypeError, match="'config': .*ArrayImpl cannot be stored.*taken apart if jax.tree_util.register_dataclass"):
        swj.save(tmp_path / "c", {"config": config(jnp.ones(2))})
    torch = pytest.importorskip("torch")
    import shardwise.torch as swt
    import torch.distributed.checkpoint as dcp

    state = {"config": [config(None)], "w": torch.ones(2)}
    with pytest.raises(dcp.api.CheckpointException, match="'config': a dataclass would come back as a dict"):
        dcp.save(state, storage_writer=swt.StorageWriter(tmp_path / "b"), no_dist=True)
    dcp.save(state, storage_writer=swt.StorageWriter(tmp_path / "b", objects="pickle"), no_dist=True)
    state = {"config": [config(None, empty=True)], "w": torch.zeros(2)}
    dcp.load(state, storage_reader=swt.StorageReader(tmp_path / "b", allow_pickle=True), no_dist=True)
    assert plain(state["config"][0]) == plain(config(None)) and state["w"].tolist() == [1, 1]
