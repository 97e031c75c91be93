"""Saves and loads with numpy: saved arrays come back, lazily or whole; errors name arrays that cannot be stored."""

import importlib.util
import os
import pathlib
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise._dtypes import NUMPY

INDICES = [
    np.s_[...], np.s_[10:20], np.s_[:, 3], np.s_[100, 20], np.s_[::51, :16], np.s_[-1, ..., ::-1], np.s_[5:2],
    np.s_[400:9999], np.s_[::-7, 5:60:9], np.s_[3:4, None:2], np.s_[np.int64(3)], np.s_[-5:, -1], (),
]  # fmt: skip


def arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "w": rng.standard_normal((512, 64), np.float32),
        "layers/0/t": np.arange(12.0).reshape(3, 4).T,
        "b": rng.standard_normal((100, 7)).astype(ml_dtypes.bfloat16),
        "s": np.array(3.5),
        "e": np.zeros((0, 3), np.int16),
        "m": np.array([True, False, True]),
        "big": np.arange(5, dtype=">i4"),
        "f": np.asfortranarray(np.arange(6, dtype=np.float16).reshape(2, 3)),
        "neg": np.arange(24).reshape(4, 6)[::-1, ::2],
        "x": np.broadcast_to(np.float32(2), (3, 4)),
        "c": np.arange(4) + 1j,
    }


def test_what_is_saved_comes_back(tmp_path, rng):
    saved = arrays(rng)
    sw.save(tmp_path / "a b.sw", saved, user={"lr": 0.1})
    with sw.open(tmp_path / "a b.sw") as c:
        assert sorted(c) == sorted(saved) and c.user == {"lr": 0.1} and c.step is None
        for name, array in saved.items():
            found = np.asarray(c[name])
            assert found.dtype == array.dtype.newbyteorder("=") and found.shape == array.shape
            np.testing.assert_array_equal(found.astype(array.dtype), array)
        assert len(c["w"]) == 512 and c["w"].nbytes == 512 * 64 * 4
    assert sw.verify(tmp_path / "a b.sw")
    assert sw.info(tmp_path / "a b.sw").nbytes == sum(a.nbytes for a in saved.values())


def test_many_arrays_of_all_sizes_have_memory_of_their_own(tmp_path, rng):
    sizes = [0, 1, 63, 64, 65, 1000, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 1 << 20] + rng.integers(0, 70_000, 300).tolist()
    saved = {f"{i}": rng.integers(0, 256, size, np.uint8) for i, size in enumerate(sizes)}
    saved |= {f"f{i}": rng.standard_normal((3, i)).astype(ml_dtypes.bfloat16) for i in range(50)}
    sw.save(tmp_path / "a", saved)
    found = sw.load(tmp_path / "a")
    for name, array in found.items():
        assert array.flags.writeable and array.flags.c_contiguous
        assert array.size == 0 or array.__array_interface__["data"][0] % 64 == 0
        np.testing.assert_array_equal(array, saved[name])
        array[...] = 0  # nothing that is looked at later changes
    one = found["5"]
    del found, array
    held = one if one.base is None else one.base
    assert held.nbytes <= (2 << 20) + 64  # a small array keeps no more of the others


@pytest.mark.parametrize("dtype", sorted(NUMPY))
def test_every_dtype_bit_for_bit(tmp_path, dtype):
    kind = NUMPY[dtype]
    bits = np.arange(2 if dtype == "bool" else 256, dtype=np.uint8)
    array = np.resize(bits, max(256, 16 * kind.itemsize)).view(kind) if dtype != "bool" else bits.view(kind)
    sw.save(tmp_path / "a", {"x": array})
    found = sw.load(tmp_path / "a")["x"]
    assert found.dtype == kind
    np.testing.assert_array_equal(found.view(np.uint8), array.view(np.uint8))


def test_slices_are_numpys_and_read_what_they_need(tmp_path, rng):
    w = rng.standard_normal((512, 64), np.float32)
    sw.save(tmp_path / "a", {"w": w})
    with sw.open(tmp_path / "a") as c:
        for index in INDICES:
            found = c["w"][index]
            np.testing.assert_array_equal(found, w[index])
            assert np.shape(found) == w[index].shape
    big = rng.standard_normal((4096, 1024), np.float32)
    sw.save(tmp_path / "b", {"w": big}, codec="none")
    with sw.open(tmp_path / "b") as c:
        chunks = c["w"].chunks
        assert chunks >= 16
        c["w"][10:20]
        assert c.stats()[0] == 1
        c["w"][::1024, :16]  # rows, not the box that covers them
        assert c.stats()[0] <= 5


def test_several_boxes_read_each_chunk_once(tmp_path, rng):
    w, b = rng.standard_normal((4096, 1024), np.float32), rng.standard_normal((100,), np.float32)
    sw.save(tmp_path / "a", {"w": w, "b": b, "e": w[:0]}, codec="none")
    boxes = [np.s_[1000:3000], np.s_[::1024, :16], np.s_[5:2005, -3:], np.s_[1500, 7], np.s_[::-1], np.s_[3:3]]
    with sw.open(tmp_path / "a") as c:
        *found, empty, whole = c.read([*(("w", box) for box in boxes), "e", "b"])
        assert c.stats()[0] == c["w"].chunks + c["b"].chunks, "each once"
        for box in boxes:
            c["w"][box]
        assert c.stats()[0] > 2 * c["w"].chunks, "one by one they take more"
        for box, array in zip(boxes, found):
            np.testing.assert_array_equal(array, w[box])
        assert np.array_equal(whole, b) and empty.shape == (0, 1024)
        assert c.read([]) == [] and found[3] == w[1500, 7] and np.isscalar(found[3])
        with pytest.raises(sw.NameNotFound, match="'v'"):
            c.read(["b", "v"])
        with pytest.raises(IndexError):
            c.read([("b", 100)])
    with sw.open(tmp_path / "a", split={"w": "top,low@0"}, rename={"b": "bias"}) as c:
        top, low, bias = c.read([("top", np.s_[:, :4]), ("low", np.s_[-1]), "bias"])
        assert np.array_equal(top, w[:2048, :4]) and np.array_equal(low, w[-1]) and np.array_equal(bias, b)


def test_random_indices_against_numpy(tmp_path, rng):
    a = rng.integers(0, 1000, (7, 11, 5, 13))
    sw.save(tmp_path / "a", {"a": a})
    with sw.open(tmp_path / "a") as c:
        for _ in range(300):
            index = []
            for n in a.shape[: rng.integers(0, 5)]:
                if rng.random() < 0.3:
                    index.append(int(rng.integers(-5, 5)))
                else:
                    step = int(rng.choice([-3, -2, -1, 1, 2, 5]))
                    ends = [None if rng.random() < 0.3 else int(rng.integers(-n - 2, n + 3)) for _ in range(2)]
                    index.append(slice(*ends, step))
            if rng.random() < 0.3:
                index.insert(int(rng.integers(0, len(index) + 1)), ...)
            np.testing.assert_array_equal(c["a"][tuple(index)], a[tuple(index)])


def test_indices_that_are_refused(tmp_path):
    sw.save(tmp_path / "a", {"w": np.zeros((3, 4)), "s": np.float32(1)})
    with sw.open(tmp_path / "a") as c:
        for index, error in [(3, IndexError), ((0, 0, 0), IndexError), ((..., ...), IndexError), ([0, 1], TypeError),
                             (True, TypeError), ("w", TypeError), (1.5, TypeError), (None, TypeError)]:
            with pytest.raises(error):
                c["w"][index]
        with pytest.raises(ValueError):
            np.array(c["w"], copy=False)
        with pytest.raises(TypeError):
            len(c["s"])
        assert type(c["s"].__array__()) is np.ndarray
        with pytest.raises(KeyError, match="nearest"):
            c["W"]


def test_read_into_any_memory(tmp_path, rng):
    w = rng.standard_normal((30, 20))
    sw.save(tmp_path / "a", {"w": w})
    with sw.open(tmp_path / "a") as c:
        out = np.zeros((20, 30)).T
        c["w"].read_into(out)
        np.testing.assert_array_equal(out, w)
        column = np.zeros(30)
        c["w"].read_into(column, np.s_[:, 3])
        np.testing.assert_array_equal(column, w[:, 3])
        rows = np.zeros((60, 20))
        c["w"].read_into(rows[::2], np.s_[:, ::-1])
        np.testing.assert_array_equal(rows[::2], w[:, ::-1])
        for bad in (np.zeros((30, 20), np.float32), np.zeros((30, 19))):
            with pytest.raises(sw.InvalidArgument, match="read_into"):
                c["w"].read_into(bad)
        frozen = np.zeros((30, 20))
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            c["w"].read_into(frozen)


OBJECTS = {
    "i": 7, "n": None, "f": 0.1, "nan": float("nan"), "inf": [float("inf"), -float("inf")], "t": (1, (2, "x")),
    "keys": {1: "a", 2.5: {(1, 2): None}}, "dollar": {"$tuple": [1], "$x": 2}, "b": b"\x00\xff", "big": 2**80, "neg": -(2**70),
    "uni": "αβ\u2028\x00", "sur": "\ud800", "set": {1, 2}, "c": 1 - 2j, "e": {}, "l": [], "deep": {"a": {"b": [()]}},
}  # fmt: skip


def test_objects_keep_their_types(tmp_path):
    sw.save(tmp_path / "a", {**OBJECTS, "w": np.zeros(2)})
    found = sw.load(tmp_path / "a")
    assert repr({k: found[k] for k in OBJECTS}) == repr(OBJECTS)
    with sw.open(tmp_path / "a") as c:
        assert set(c) == {"w"} and set(c.objects) == set(OBJECTS)
    for _, _, files in os.walk(tmp_path):
        assert not [f for f in files if f.endswith((".pkl", ".pt"))]


def test_what_cannot_be_stored_is_all_in_one_error(tmp_path):
    with pytest.raises(TypeError, match="2 of 3 objects.*'o'.*'p'"):
        sw.save(tmp_path / "a", {"o": object(), "p": print, "q": 1})
    with pytest.raises(TypeError, match="'x'"):
        sw.save(tmp_path / "a", {"x": np.array(["a", "b"])})
    with pytest.raises(TypeError):
        sw.save(tmp_path / "a", {3: np.zeros(1)})
    with pytest.raises(sw.Unsupported, match="'q' has dtype int4"):
        sw.save(tmp_path / "a", {"q": np.zeros(2, ml_dtypes.int4)})
    with pytest.raises(TypeError, match="datetime64"):
        sw.save(tmp_path / "a", {"d": np.zeros(2, "M8[s]")})
    with pytest.raises(TypeError, match="user is no JSON, needed is plain JSON"):
        sw.save(tmp_path / "a", {}, user={"x": float("nan")})
    with pytest.raises(sw.InvalidArgument):
        sw.save(tmp_path / "a", {"": np.zeros(1)})
    assert os.listdir(tmp_path) == []


def test_existing_checkpoints(tmp_path):
    sw.save(tmp_path / "a", {"w": np.zeros(3)})
    with pytest.raises(FileExistsError):
        sw.save(tmp_path / "a", {"w": np.ones(3)})
    with sw.open(tmp_path / "a") as old:
        sw.save(tmp_path / "a", {"w": np.ones(3)}, existing="replace")
        assert sw.load(tmp_path / "a")["w"][0] == 1
        del old
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "photo").write_text("x")
    with pytest.raises(FileExistsError, match="no checkpoint"):
        sw.save(tmp_path / "data", {}, existing="replace")
    with pytest.raises(ValueError, match="existing"):
        sw.save(tmp_path / "b", {}, existing="maybe")
    os.rename(tmp_path / "a", tmp_path / "renamed")
    assert sw.load(tmp_path / "renamed")["w"][0] == 1
    assert sorted(os.listdir(tmp_path)) == ["data", "renamed"]


def test_load_by_patterns(tmp_path):
    sw.save(tmp_path / "a", {"layers/0/w": np.zeros(1), "layers/1/w": np.ones(1), "step": 3})
    assert set(sw.load(tmp_path / "a", "layers/*")) == {"layers/0/w", "layers/1/w"}
    assert sw.load(tmp_path / "a", ["step", "*/1/*"]).keys() == {"step", "layers/1/w"}
    with pytest.raises(KeyError, match="nope"):
        sw.load(tmp_path / "a", ["step", "nope*"])


def test_errors_are_of_their_kinds_and_pickle(tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        sw.open(tmp_path / "nix")
    again = pickle.loads(pickle.dumps(missing.value))
    assert type(again) is sw.NotFound and str(again) == str(missing.value) and again.code == "not_found"
    for kind in (sw.InvalidArgument, sw.AlreadyExists, sw.Corrupt, sw.IOFailed, sw.Unsupported, sw.ResourceExhausted,
                 sw.Cancelled, sw.GroupError, sw.NameNotFound):
        error = kind("why")
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind and str(copy) == "why" and isinstance(copy, sw.Error) and isinstance(copy, RuntimeError)


def test_a_flipped_bit_is_named(tmp_path, rng):
    sw.save(tmp_path / "a", {"w": rng.standard_normal((1024, 1024), np.float32)})
    file = next(f for f in os.listdir(tmp_path / "a") if f.startswith("shards"))
    with open(tmp_path / "a" / file, "r+b") as f:
        f.seek(1_000_000)
        byte = f.read(1)
        f.seek(1_000_000)
        f.write(bytes([byte[0] ^ 1]))
    with pytest.raises(sw.Corrupt, match="'w'|\"w\""):
        sw.load(tmp_path / "a")
    report = sw.verify(tmp_path / "a")
    assert not report.ok and report.damage[0].tensor == "w"


def test_closed_checkpoints_say_so(tmp_path):
    sw.save(tmp_path / "a", {"w": np.zeros(3)})
    c = sw.open(tmp_path / "a")
    c.close()
    with pytest.raises(sw.InvalidArgument, match="closed"):
        c["w"][0]


def test_h5py_reads_it(tmp_path):
    h5py = pytest.importorskip("h5py")
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    sw.save(tmp_path / "a", {"layers/0/w": w, "b": w.astype(ml_dtypes.bfloat16), "c": w.astype(np.complex64)})
    with h5py.File(tmp_path / "a" / "index.h5") as f:
        np.testing.assert_array_equal(f["layers/0/w"][()], w)
        np.testing.assert_array_equal(f["b"][()].astype(np.float32), w)
        np.testing.assert_array_equal(f["c"][()], w.astype(np.complex64))


def test_importing_imports_no_framework():
    code = ("import sys, shardwise; assert not {'torch', 'jax', 'h5py', 'tqdm', 'shardwise.programs', "
            "'difflib', 'fractions', 'html'} & set(sys.modules), sys.modules.keys();"
            "shardwise.programs.load; from shardwise import *; assert programs.Program")
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_importing_a_framework_s_part_imports_no_capture(framework):
    pytest.importorskip(framework)
    code = (f"import sys, shardwise.{framework} as part; assert not [name for name in sys.modules if name in ('shardwise.programs', "
            f"'shardwise._programs.text', 'jax.extend.core')]; part.capture")
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def test_relative_paths_and_other_path_types(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sw.save("x/y", {"w": np.zeros(2)})
    assert sw.load(pathlib.Path("x") / "y")["w"].shape == (2,)
    assert sw.load(str(tmp_path / "x/y/"))["w"].shape == (2,)


def test_sets_are_stored_in_one_order_whatever_the_process():
    program = ("from shardwise._trees import objects; "
               "print(objects.dumps({'s': {'a', 'b', 'c', 'd', 1, (2, 'e')}, 'f': frozenset('xyz')}))")
    texts = {subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                            env={**os.environ, "PYTHONHASHSEED": str(seed)}).stdout for seed in range(4)}
    assert len(texts) == 1


class Walked(Exception):
    pass


class Range:
    """A range that raises if every index is read."""

    def __init__(self, indices: range) -> None:
        self._indices, self.start, self.step = indices, indices.start, indices.step

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, at: int) -> int:
        return self._indices[at]

    def __iter__(self):
        raise Walked


def test_an_index_is_not_walked_through(tmp_path):
    from shardwise._checkpoint.tensor import Selection

    flat = np.arange(1000, dtype=np.int16)
    sw.save(tmp_path / "a", {"flat": flat})
    with sw.open(tmp_path / "a") as c:
        for index in (np.s_[...], np.s_[5:], np.s_[::-3], np.s_[7]):
            selection = Selection(c["flat"], index)
            selection.ranges = [Range(r) for r in selection.ranges]
            np.testing.assert_array_equal(selection.read(c["flat"]), flat[index])
        with pytest.raises(sw.InvalidArgument, match="read_into.*builtins.list.*numpy array"):
            c["flat"].read_into([0] * 1000)


def test_what_is_no_checkpoint_is_told_with_the_way_to_load_it(tmp_path):
    with sw.CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 12):
            manager.save(step, {"w": np.ones(1)})
    for name, files in (("empty", []), ("dcp", [".metadata"]), ("orbax", ["_CHECKPOINT_METADATA"])):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    (tmp_path / "x.pt").touch()
    for name, kind, why in (("run", sw.NotFound, r"run: found a folder of 2 steps .*newest is step-00000012"),
                            ("empty", sw.NotFound, "empty directory"), ("nix", sw.NotFound, "no such"),
                            ("x.pt", sw.NotFound, "found a file: needed a directory")):
        with pytest.raises(kind, match=why):
            sw.load(tmp_path / name)
    # These formats are opened as they are; the folders lack content, or the package is not installed.
    for name, needed in (("dcp", "torch"), ("orbax", "orbax")):
        found = importlib.util.find_spec(needed)
        kinds, why = ((sw.Corrupt, sw.InvalidArgument), "DCP's metadata|no checkpoint of Orbax's") if found else (sw.Unsupported, "pip install")
        with pytest.raises(kinds, match=why):
            sw.load(tmp_path / name)


def test_what_is_there_may_be_left_as_it_is(tmp_path):
    assert not sw.save(tmp_path / "a", {"w": np.ones(3)}, existing="skip").skipped
    stats = sw.save(tmp_path / "a", {"w": np.zeros(3)}, existing="skip")
    assert stats.skipped and stats.path == str(tmp_path / "a") and stats.file_bytes == 0
    np.testing.assert_array_equal(sw.load(tmp_path / "a")["w"], np.ones(3))
    with sw.CheckpointManager(tmp_path / "run") as manager:
        assert not manager.save(1, {"w": np.ones(3)}, existing="skip").skipped
        assert manager.save(1, {"w": np.zeros(3)}, existing="skip").skipped
        assert manager.save_async(1, {"w": np.zeros(3)}, existing="skip").result().skipped
        for save in (manager.save, manager.save_async):
            with pytest.raises(sw.AlreadyExists, match='existing="replace" writes a new .*, existing="skip" writes nothing'):
                save(1, {"w": np.zeros(3)})
        np.testing.assert_array_equal(sw.load(manager.latest().path)["w"], np.ones(3))
    assert sw.export_model(tmp_path / "a", tmp_path / "a.safetensors", existing="skip")
    assert sw.export_model(tmp_path / "a", tmp_path / "a.safetensors", existing="skip") == []
    assert sw.import_model(tmp_path / "a.safetensors", tmp_path / "a", existing="skip") == str(tmp_path / "a")
    np.testing.assert_array_equal(sw.load(tmp_path / "a")["w"], np.ones(3))


def test_options_are_checked_before_what_is_there(tmp_path):
    sw.save(tmp_path / "a", {"w": np.ones(1)})
    with pytest.raises(sw.InvalidArgument, match="codec is 'zst', needed is 'zstd' or 'none' or 'auto'"):
        sw.save(tmp_path / "a", {"w": np.ones(1)}, codec="zst")
    with pytest.raises(sw.AlreadyExists, match='already there: existing="replace" takes its place'):
        sw.save(tmp_path / "a", {"w": np.ones(1)})
    with pytest.raises(sw.InvalidArgument, match="codec"):
        sw.CheckpointManager(tmp_path / "run", codec="zst")


def test_the_package_shows_its_names_and_choices(tmp_path):
    import typing

    assert {"save", "load", "Checkpoint"} <= set(sw.__all__) and not {"Any", "dataclass", "function_of"} & set(dir(sw))
    assert all(hasattr(sw, name) for name in sw.__all__)
    hints = typing.get_type_hints(sw.save)
    assert hints["existing"] == typing.Literal["fail", "replace", "skip"] and hints["codec"] == typing.Literal["zstd", "none", "auto"]
    sw.save(tmp_path / "a", {"w": np.ones(1)})
    with sw.open(tmp_path / "a") as c:
        assert c._ipython_key_completions_() == ["w"]


INTERRUPTED_READ = """
import os, signal, sys, threading, numpy as np, shardwise as sw
w = np.random.default_rng(0).standard_normal((64, 1 << 17), np.float32)
sw.save(sys.argv[1], {"w": w, "small": np.arange(5)}, codec="none")
checkpoint = sw.open(sys.argv[1])
out, ended, wanted, over = np.empty_like(w), 0, False, False
def interrupt():  # again and again, so that some come in the middle of a read
    while not over:
        if wanted:
            os.kill(os.getpid(), signal.SIGINT)
def interrupted(signum, frame):
    global wanted
    if wanted:
        wanted = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupted)
thread = threading.Thread(target=interrupt)
thread.start()
while ended < 20:
    try:
        wanted = True
        while True:
            checkpoint["w"].read_into(out)
    except KeyboardInterrupt:
        ended += 1
    assert checkpoint["small"][...].tolist() == [0, 1, 2, 3, 4]
over = True
thread.join()
print(np.array_equal(checkpoint["w"][...], w))
"""


def test_reads_after_one_that_ctrl_c_ended(tmp_path):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_READ, str(tmp_path / "a")], timeout=120, text=True,
                          capture_output=True)
    assert done.stdout == "True\n", done.stderr
