"""shardwise.Loader and shardwise.sources: batches as numpy, from files, arrays and Python objects."""

import gc
import json
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise import sources


def table(n=40):
    return {"x": np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3), "y": np.arange(n, dtype=np.int64)}


class Squares:
    """Grain's protocol: a record by number."""

    def __init__(self, n=40, bad=()):
        self.n, self.bad, self.asked = n, set(bad), []

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.asked.append(i)
        if i in self.bad:
            raise LookupError(f"no square of {i}")
        return {"x": np.full((2,), i * i, np.int32), "y": i}


def rows(loader, field="y"):
    return [batch[field].tolist() for batch in loader]


def test_epochs_deliver_every_record_once_and_in_other_orders():
    with sw.Loader(table(), batch_size=8, epochs=2, seed=3) as loader:
        assert (loader.batches_per_epoch, len(loader)) == (5, 10)
        batches = list(loader)
    assert [b.index for b in batches] == list(range(10)) and [b.epoch for b in batches] == [0] * 5 + [1] * 5
    first, second = ([r for b in batches[i:i + 5] for r in b["y"]] for i in (0, 5))
    assert sorted(first) == sorted(second) == list(range(40)) and first != second != sorted(second)
    for b in batches:
        assert (b["x"] == table()["x"][b["y"]]).all() and b["x"].dtype == np.float32
        assert b.mask.all() and np.allclose(b.weights, 1 / 8) and b.valid_rows == 8


@pytest.mark.parametrize("last_batch", ["drop", "pad", "wrap"])
def test_epoch_gives_the_batches_that_begin_in_it(last_batch):
    whole = list(sw.Loader(table(), batch_size=6, epochs=3, last_batch=last_batch))
    loader = sw.Loader(table(), batch_size=6, epochs=3, last_batch=last_batch)
    parts = [list(loader.epoch()) for _ in range(3)]
    assert [[b.epoch for b in part] for part in parts] == [[e] * len(part) for e, part in enumerate(parts)]
    assert [b.index for part in parts for b in part] == [b.index for b in whole]
    further = [list(loader.epoch()) for _ in range(4)]  # a loop goes on with three at a time
    at = [b.index for part in further for b in part]
    assert at == list(range(whole[-1].index + 1, at[-1] + 1)) and all(further)
    assert [{b.epoch for b in part} for part in further] == [{3 + i} for i in range(4)]


@pytest.mark.parametrize("make", [lambda: table(), Squares, lambda: sources.arrays(table()), lambda: [{"y": i} for i in range(40)]],
                         ids=["dict", "object", "source", "list"])
def test_any_object_is_a_source(make):
    assert sorted(sum(rows(sw.Loader(make(), batch_size=8)), [])) == list(range(40))


def test_boxes_of_all_ranks_make_the_batch():
    whole = list(sw.Loader(table(), batch_size=8, seed=1))
    for rank in range(8):
        with sw.Loader(table(), {"x": "data,-,model", "y": "data"}, mesh="data=4,model=2", rank=rank, batch_size=8,
                       seed=1) as part:
            assert part.source.fields["x"].shape == (2, 3)
            for w, p in zip(whole, part, strict=True):
                (shard,) = p.shards("x")
                assert shard.device == rank and shard.array.shape == (2, 2, 2 if rank % 2 == 0 else 1)
                assert (w["x"][shard.box] == p["x"]).all()
                assert (w["y"][p.shards("y")[0].box] == p["y"]).all()
    with sw.Loader(table(), {"x": "data,-,model"}, mesh="data=4,model=2", batch_size=8, seed=1) as loader:
        batch = next(loader)
        assert len(batch.shards("x")) == 8
        with pytest.raises(sw.InvalidArgument, match="8 devices of different boxes"):
            batch["x"]
        with pytest.raises(KeyError, match="no field 'z': it has x"):
            batch.shards("z")


def test_a_batch_is_its_owners_until_dropped():
    kept, copies = [], []
    with sw.Loader(table(64), batch_size=4, epochs=8, prefetch=3, threads=2) as loader:
        for batch in loader:
            for field in ("x", "y"):
                array = batch[field]
                assert array.flags.writeable and array.ctypes.data % 64 == 0
                kept.append(array)
                copies.append(array.copy())
            if len(kept) > 40:  # some are dropped, in any order, and their memory is used again
                for _ in range(10):
                    kept.pop(3), copies.pop(3)
    gc.collect()
    assert all((a == b).all() for a, b in zip(kept, copies, strict=True))  # also after the loader has ended
    kept[0][:] = 0


def test_resumes_anywhere_on_any_ranks():
    expected = rows(sw.Loader(table(), batch_size=6, epochs=3, seed=9, last_batch="wrap"))
    for stop in range(len(expected)):
        loader = sw.Loader(table(), batch_size=6, epochs=3, seed=9, last_batch="wrap", threads=2)
        for _ in range(stop):
            next(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
        assert len(json.dumps(state)) <= 300 and state["next_batch"] == stop
        parts = []
        for rank in range(3):
            again = sw.Loader(table(), {"y": "data"}, mesh="data=3", rank=rank, batch_size=6, epochs=3, last_batch="wrap")
            again.load_state_dict(state)
            parts.append(rows(again))
        assert [sum(r, []) for r in zip(*parts)] == expected[stop:]


def test_a_state_of_another_run_is_refused_by_name():
    state = sw.Loader(table(), batch_size=8, seed=2).state_dict()
    for part, other in (("batch_size", sw.Loader(table(), batch_size=4)),
                        ("order", sw.Loader(table(), batch_size=8, order="sequential")),
                        ("the source's data differ", sw.Loader(table(48), batch_size=8)),
                        (r"the stages are shuffle\(records\), the state has others",
                         sw.Loader(sources.of(table()).shuffle(), batch_size=8))):
        with pytest.raises(sw.InvalidArgument, match=part):
            other.load_state_dict(state)
    with pytest.raises(sw.InvalidArgument):
        sw.Loader(table(), batch_size=8).load_state_dict({"seed": 1})


def test_weights_may_change_behind_what_was_delivered():
    def run(changes, state=None):
        a, b = sources.arrays({"x": np.arange(20)}), sources.arrays({"x": np.arange(100, 130)})
        mixed = sources.mix([a.shuffle(), b], [1, 1], changes).map(lambda r: {"x": r["x"] + 1}, name="next")
        loader = sw.Loader(mixed, batch_size=8, order="sequential", epochs=2)
        if state:
            loader.load_state_dict(state)
        return loader

    loader = run([(10, [3, 1])])
    taken = [next(loader)["x"].tolist() for _ in range(2)]
    state = loader.state_dict()
    later = [(10, [3, 1]), (16, [0, 1])]
    rest = [batch["x"].tolist() for batch in run(later, state)]
    assert taken + rest == [batch["x"].tolist() for batch in run(later)]
    assert all(min(x) > 100 for x in rest)
    for changes in ([], [(11, [3, 1])], [(10, [3, 1]), (15, [0, 1])]):
        with pytest.raises(sw.InvalidArgument, match=r'the stages are map\("next", mix\(weights 1 1'):
            next(run(changes, state))


def test_a_filter_comes_before_what_moves_records():
    moved = sources.of(table()).shuffle().map(lambda r: r)
    with pytest.raises(sw.InvalidArgument, match="changes with the epoch"):
        moved.filter("y>3")


def test_what_python_raises_comes_out_at_its_step_as_it_was():
    loader = sw.Loader(Squares(bad=[13]), batch_size=5, order="sequential", threads=3)
    assert rows(_first(loader, 2)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    for _ in range(2):
        with pytest.raises(LookupError, match="no square of 13") as caught:
            next(loader)
        frames = []
        trace = caught.value.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        assert "__getitem__" in frames
        assert any("batch 2, record 13" in note for note in caught.value.__notes__)


def test_what_python_raises_may_hold_a_text_that_utf_8_cannot():
    def fail(record):
        if record["x"] == 3:
            raise ValueError("file \udcff")
        return record

    numbers = sources.of({"x": np.arange(8)})
    with sw.Loader(numbers, batch_size=8, transform=fail) as loader, pytest.raises(ValueError, match="file \udcff"):
        next(loader)
    with sw.Loader(numbers, batch_size=8, transform=fail, bad_records="mask") as loader:
        next(loader)
        assert r"ValueError: file \udcff" in loader.bad_records()[1][0][5]


def _first(loader, n):
    for _ in range(n):
        yield next(loader)


def test_bad_records_are_replaced_or_masked_and_told():
    bad = (3, 13, 27)
    with sw.Loader(Squares(bad=bad), batch_size=5, order="sequential", bad_records="mask") as loader:
        batches = list(loader)
        count, told = loader.bad_records()
    assert count == 3 and [t[3] for t in told] == list(bad) and "no square of 13" in told[1][5]
    assert [r for b in batches for r in b["y"][b.mask]] == [i for i in range(40) if i not in bad]
    assert batches[0].weights.tolist() == pytest.approx([0.2, 0.2, 0.2, 0, 0.2])
    runs = []
    for threads in (1, 4):
        with sw.Loader(Squares(bad=bad), batch_size=5, seed=4, bad_records="substitute", threads=threads) as loader:
            runs.append(rows(loader))
    assert runs[0] == runs[1] and len(sum(runs[0], [])) == 40 and not set(bad) & set(sum(runs[0], []))


def test_transforms_draw_the_same_numbers_on_any_rank_and_thread():
    def jitter(record, random):
        return {"y": record["y"], "x": record["x"] + random.integers(1000)}

    with sw.Loader(table(), batch_size=8, seed=5, epochs=2, transform=jitter) as loader:
        whole = list(loader)
    assert len({float((b["x"] - table()["x"][b["y"]]).flat[0]) for b in whole}) > 5
    assert any((a["x"] != b["x"]).any() for a, b in zip(whole[:5], whole[5:]))
    for threads in (1, 3):
        with sw.Loader(table(), {"x": "data,-,-"}, mesh="data=2", rank=1, batch_size=8, seed=5, epochs=2, threads=threads,
                       transform=jitter) as loader:
            for w, p in zip(whole, loader, strict=True):
                assert (w["x"][4:] == p["x"]).all()


def test_stages_of_sources():
    source = sources.arrays(table())
    assert [r["y"] for r in source.take(3, 6)] == [3, 4, 5]
    assert len(source.repeat(3)) == 120 and source.repeat(3)[85]["y"] == 5
    assert [r["y"] for r in source.filter("y>=37")] == [37, 38, 39]
    assert [r["y"] for r in source.filter(lambda r: r["x"][0, 0] % 60 == 0)] == [0, 10, 20, 30]
    assert source.crop("x", (1, 2), (1, 1))[2]["x"].tolist() == [[16, 17]]
    assert source.flip("x", 1, 1.0)[0]["x"].tolist() == [[2, 1, 0], [5, 4, 3]]
    assert source.pad("x", (0, 1), (1, 0), -1)[0]["x"].tolist() == [[-1, 0, 1, 2], [-1, 3, 4, 5], [-1] * 4]
    assert source.cast("y", np.int32)[7]["y"].dtype == np.int32
    assert source.normalise("x", 1, 2)[0]["x"].tolist() == [[-0.5, 0, 0.5], [1, 1.5, 2]]
    assert source.map(lambda r: {"z": r["y"] * 2})[4]["z"] == 8
    mixed = sources.mix([source.take(0, 30), source.take(30, 40)], [3, 1])
    drawn = [r["y"] >= 30 for r in mixed]
    assert all(sum(drawn[i:i + 4]) == 1 for i in range(0, len(drawn), 4))
    both = sources.zip(source, {"z": np.arange(40.0)})
    assert list(both.fields) == ["x", "y", "z"] and both[-1]["z"] == 39
    assert len(sources.concat(source, source)) == 80
    with pytest.raises(IndexError, match="record 40: there are 40"):
        source[40]


def test_packs_documents(tmp_path):
    lengths = np.random.default_rng(1).integers(1, 30, 200)
    with open(tmp_path / "docs.jsonl", "w") as f:
        for i, n in enumerate(lengths):
            f.write(json.dumps({"text": chr(97 + i % 26) * int(n)}) + "\n")
    source = sources.open(f"jsonl:{tmp_path}/docs.jsonl")
    assert source.fields["text"].ragged and bytes(source[1]["text"]) == b"b" * lengths[1]
    packs = source.pack("text", window=64)
    assert list(packs.fields) == ["text", "text_segments", "text_positions"]
    found = b"".join(bytes(p["text"][p["text_segments"] > 0]) for p in packs)
    assert len(found) == lengths.sum() and len(packs) < 1.1 * lengths.sum() / 64


def test_files_by_their_texts(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12, dtype=np.int16).reshape(4, 3))
    assert sources.open(f"npy:{tmp_path}/a.npy", field="a")[2]["a"].tolist() == [6, 7, 8]
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "t.bin")
    tokens = sources.open(f"tokens:{tmp_path}/t.bin", dtype="u16", window=11, stride=10)
    assert len(tokens) == 9 and tokens[1]["tokens"].tolist() == list(range(10, 21))
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["x"] = table()["x"]
        f.create_dataset("y", data=table()["y"], chunks=(7,), compression="gzip")
    stored = sources.open(f"hdf5:{tmp_path}/a.h5?x=/x&y=/y")
    assert all((stored[i]["x"] == table()["x"][i]).all() and stored[i]["y"] == i for i in range(40))
    (tmp_path / "t.csv").write_text("y,name\n1,ann\n2,\"b,c\"\n")
    assert bytes(sources.open(f"csv:{tmp_path}/t.csv")[1]["name"]) == b"b,c"
    with pytest.raises(sw.InvalidArgument, match="idx"):
        sources.open("parquet:x")
    with pytest.raises(sw.NotFound, match="none.npy"):
        sources.open(f"npy:{tmp_path}/none.npy")


def test_dtypes_of_ml_dtypes_and_byte_orders():
    values = np.arange(8).astype(ml_dtypes.bfloat16)
    batch = next(sw.Loader({"b": values, "e": np.arange(8).astype(">i4")}, batch_size=8, order="sequential"))
    assert batch["b"].dtype == ml_dtypes.bfloat16 and (batch["b"] == values).all()
    assert batch["e"].dtype == np.dtype("<i4") and batch["e"].tolist() == list(range(8))


@pytest.mark.parametrize("make, error, match", [
    (lambda: sw.Loader({}, batch_size=1), sw.InvalidArgument, "no field"),
    (lambda: sw.Loader({"a": np.zeros(3), "b": np.zeros(4)}, batch_size=1), sw.InvalidArgument, "same number"),
    (lambda: sw.Loader(7, batch_size=1), sw.InvalidArgument, "int"),
    (lambda: sw.Loader([{"t": "text"}], batch_size=1), sw.Unsupported, "field 't' is str"),
    (lambda: sw.Loader(table(), ["z"], batch_size=1), sw.NotFound, "no field 'z': it has x, y"),
    (lambda: next(sw.Loader(table(), {"x": "data"}, mesh="data=2", batch_size=8)), sw.InvalidArgument, "x.*rank"),
    (lambda: sw.Loader(table(), mesh="data=2", rank=2, batch_size=8), sw.NotFound, "device 2"),
    (lambda: sw.Loader(table(), mesh="data=2", rank=1, devices=[1], batch_size=8), sw.InvalidArgument, "one of them"),
    (lambda: next(sw.Loader(table(), batch_size=41)), sw.InvalidArgument, "40"),
    (lambda: sw.Loader(table(), batch_size=1, order="random"), sw.InvalidArgument, "random"),
    (lambda: next(sw.Loader(table(), batch_size=0)), sw.InvalidArgument, "batch_size"),
], ids=range(11))
def test_what_does_not_fit_is_refused(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_a_record_of_another_shape_is_an_error_that_names_it():
    class Odd(Squares):
        def __getitem__(self, i):
            return {"x": np.zeros(3 if i == 7 else 2, np.int32)}

    with pytest.raises(sw.InvalidArgument, match=r"record 7, field 'x': found shape \[3\], needed \[2\] as all"):
        list(sw.Loader(Odd(), batch_size=4, order="sequential"))


def test_statistics_name_what_to_mend():
    with sw.Loader(Squares(), batch_size=4) as loader:
        list(loader)
        stats = loader.stats()
    assert stats["batches"] == 10 and stats["records"] == 40 and stats["bottleneck"]
    assert loader.step_of(7) is not None


def test_gil_is_free_while_a_batch_is_waited_for():
    released = threading.Event()

    class Waits(Squares):
        def __getitem__(self, i):
            if i == 20:
                assert released.wait(60)
            return super().__getitem__(i)

    loader = sw.Loader(Waits(), batch_size=10, order="sequential")
    threading.Timer(0.05, released.set).start()
    assert len(list(loader)) == 4


ABANDONED = """
import sys, numpy as np, shardwise as sw
class Source:
    def __len__(self): return 1000
    def __getitem__(self, i): return {"x": np.zeros(100)}
loader = sw.Loader(Source(), batch_size=4, threads=4, epochs=1000)
next(loader); next(loader)
if sys.argv[1] == "deleted": del loader
elif sys.argv[1] == "raised": raise SystemExit(0)
"""


@pytest.mark.parametrize("how", ["kept", "deleted", "raised"])
def test_a_program_ends_whatever_its_loaders_do(how):
    assert subprocess.run([sys.executable, "-c", ABANDONED, how], timeout=240).returncode == 0


FORKED = """
import os, sys, numpy as np, shardwise as sw
loader = sw.Loader({"x": np.zeros(100)}, batch_size=4)
next(loader)
if os.fork() == 0:
    try:
        next(loader)
    except sw.Unsupported as error:
        os._exit(7 if "fork" in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
assert len(list(loader)) == 24
"""


def test_a_fork_of_a_loader_is_an_error_not_a_hang():
    assert subprocess.run([sys.executable, "-c", FORKED], timeout=240).returncode == 0


INTERRUPTED = """
import os, sys, signal, threading, numpy as np, shardwise as sw
taken, stop, main = threading.Event(), threading.Event(), threading.current_thread()
def record(i):
    if i == 50:
        assert threading.current_thread() is not main
        taken.wait()
        os.kill(os.getpid(), signal.SIGINT)
        stop.wait(600)  # the batch comes after Ctrl-C has been seen, or not at all
    return {"x": np.zeros(4)}
# It has a name, so that no record is read beforehand for the fingerprint.
source = sw.sources.callback(100, {"x": ("f8", (4,))}, record, name="waits")
loader = sw.Loader(source, batch_size=10, order="sequential")
found = []
try:
    for batch in loader:
        found.append(batch.index)
        if batch.index == 4:
            taken.set()
except KeyboardInterrupt:
    stop.set()
    if sys.argv[1] == "ends":
        loader.close()
        sys.exit(5)
    print(found, loader.state_dict()["next_batch"], [batch.index for batch in loader])
"""


def test_ctrl_c_ends_the_wait_for_a_batch():
    assert subprocess.run([sys.executable, "-c", INTERRUPTED, "ends"], timeout=240).returncode == 5


def test_after_ctrl_c_in_a_wait_no_batch_is_lost():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, "goes on"], timeout=240, capture_output=True, text=True)
    assert done.stdout == "[0, 1, 2, 3, 4] 5 [5, 6, 7, 8, 9]\n", done.stderr


def test_ten_thousand_epochs_do_not_grow():
    with sw.Loader({"y": np.arange(3)}, batch_size=3, epochs=10_000) as loader:
        threads = threading.active_count()
        total = sum(int(batch["y"].sum()) for batch in loader)
    assert total == 30_000 and threading.active_count() == threads




def test_a_closed_loader_goes_on_where_it_stood():
    expected = rows(sw.Loader(table(), batch_size=8, seed=1))
    with sw.Loader(table(), batch_size=8, seed=1) as loader:
        found = rows(_first(loader, 2))
    assert loader.state_dict()["next_batch"] == 2
    assert found + rows(loader) == expected


def test_a_refused_state_leaves_the_loader_where_it_is():
    expected = rows(sw.Loader(table(), batch_size=8, seed=1))
    loader = sw.Loader(table(), batch_size=8, seed=1)
    found = rows(_first(loader, 2))
    with pytest.raises(sw.InvalidArgument, match="batch_size"):
        loader.load_state_dict(sw.Loader(table(), batch_size=4).state_dict())
    assert found + rows(loader) == expected


@pytest.mark.parametrize("policy", ["ceil", "balanced", "nested_chunk"])
def test_the_mask_is_cut_as_the_rows_are(policy):
    for rank in range(4):
        batch = next(sw.Loader(table(), {"y": "data"}, mesh="data=4", rank=rank, batch_size=10, policy=policy))
        assert len(batch["y"]) == len(batch.mask) == len(batch.weights)


def test_meshes_of_one_loader_are_the_same():
    turned = sw.Mesh({"data": 4}, [3, 2, 1, 0])
    with pytest.raises(sw.InvalidArgument, match="'y' is on mesh"):
        sw.Loader(table(), {"x": "data,-,-", "y": sw.Sharding(turned, "data")}, mesh="data=4", rank=0, batch_size=8)
    whole = next(sw.Loader(table(), batch_size=8))
    part = next(sw.Loader(table(), {"y": sw.Sharding(turned, "data")}, rank=0, batch_size=8))
    assert part["y"].tolist() == whole["y"][6:].tolist()


def test_statistics_do_not_wait_for_readers_that_fail():
    for _ in range(5):
        loader = sw.Loader(Squares(200, bad=range(1, 200)), batch_size=100, threads=8, order="sequential")
        with pytest.raises(LookupError):
            while True:
                loader.stats()
                next(loader)


CLOSED_BY_A_SIGNAL = """
import os, signal, threading, numpy as np, shardwise as sw
stop = threading.Event()
class Source:
    def __len__(self): return 100
    def __getitem__(self, i):
        if i == 50:
            os.kill(os.getpid(), signal.SIGTERM)
            stop.wait(5)
        return {"x": np.zeros(4)}
loader = sw.Loader(Source(), batch_size=10, order="sequential")
def close(*_):
    stop.set()
    loader.close()
signal.signal(signal.SIGTERM, close)
try:
    for batch in loader: pass
except sw.InvalidArgument:
    pass
print("ended")
"""


def test_a_signal_may_close_the_loader():
    done = subprocess.run([sys.executable, "-c", CLOSED_BY_A_SIGNAL], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("last_batch", ["drop", "pad"])
def test_each_loop_goes_on_with_further_epochs(epochs, last_batch):
    options = {"batch_size": 12, "seed": 3, "last_batch": last_batch}
    expected = rows(sw.Loader(table(), epochs=3 * epochs, **options))
    loader = sw.Loader(table(), epochs=epochs, **options)
    loops = []
    for _ in range(3):
        assert len(loader) == len(expected) // 3
        loops.append(rows(loader))
        assert next(loader, None) is None  # without iter() it has ended
    assert [len(loop) for loop in loops] == [len(loader)] * 3 and sum(loops, []) == expected


def test_a_state_of_a_later_loop_goes_on_within_it():
    loader = sw.Loader(table(), batch_size=8, seed=3)
    list(loader), list(loader)
    rows(_first(iter(loader), 2))  # of the third loop
    state = loader.state_dict()
    rest = rows(loader)
    again = sw.Loader(table(), batch_size=8, seed=3)
    again.load_state_dict(state)
    assert rows(again) == rest and len(rest) == 3
    at_end = sw.Loader(table(), batch_size=8, seed=3)
    at_end.load_state_dict(again.state_dict())
    assert next(at_end, None) is None and len(rows(at_end)) == 5


def test_a_run_whose_last_batch_was_padded_does_not_go_on_in_silence():
    loader = sw.Loader(table(), batch_size=12, last_batch="wrap")
    assert len(rows(loader)) == 4
    with pytest.raises(sw.InvalidArgument, match="cannot go on"):
        iter(loader)
    assert loader.state_dict()["next_batch"] == 4


@pytest.mark.parametrize("options, match", [
    ({"num_workers": 2}, "unknown option 'num_workers', needed threads="),
    ({"collate_fn": len}, "needed transform="),
    ({"epochz": 2}, "did you mean epochs="), ({"zzz": 1}, "needed one of fields, batch_size")])
def test_options_of_other_loaders_are_told_their_names(options, match):
    with pytest.raises(TypeError, match=match):
        sw.Loader(table(), batch_size=8, **options)


@pytest.mark.parametrize("options", [{"epochs": None}, {"batch_size": 8.0}, {"seed": "1"}, {"threads": None}])
def test_what_is_no_whole_number_is_refused_by_name(options):
    with pytest.raises(sw.InvalidArgument, match=f"{next(iter(options))}: found .*, needed a whole number"):
        sw.Loader(table(), **{"batch_size": 8, **options})


class Documents:
    """Records of 5, 6, .. tokens."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return {"ids": np.arange(5 + i, dtype=np.int32) + 100 * i, "label": i}


@pytest.mark.parametrize("make", [
    lambda ragged: sources.of(Documents(), ragged=dict.fromkeys(ragged, 20)),
    lambda ragged: sources.callback(10, {"ids": (np.int32, (20,)), "label": (np.int64, ())}, Documents().__getitem__, ragged=ragged),
    lambda ragged: sources.arrays({"i": np.arange(10)}).map(lambda r: Documents()[int(r["i"])],
                                                            ragged=dict.fromkeys(ragged, 20))],
    ids=["object", "callback", "map"])
def test_records_of_python_may_be_ragged_and_packed(make):
    source = make(["ids"])
    assert source.fields["ids"].ragged and source.fields["ids"].shape == (20,)
    assert [source[i]["ids"].tolist() for i in range(10)] == [Documents()[i]["ids"].tolist() for i in range(10)]
    packed = source.pack("ids", window=16)
    found = np.concatenate([packed[i]["ids"][packed[i]["ids_segments"] > 0] for i in range(len(packed))])
    assert sorted(found.tolist()) == sorted(np.concatenate([Documents()[i]["ids"] for i in range(10)]).tolist())
    with sw.Loader(source, ["ids", "ids.length"], batch_size=10, order="sequential") as loader:
        batch = next(loader)
    assert batch["ids.length"].tolist() == list(range(5, 15)) and not batch["ids"][0, 5:].any()


def test_ragged_records_that_do_not_fit_say_what_is_needed():
    with pytest.raises(sw.InvalidArgument, match=r"found shape \[6\], needed \[5\] as all have, or ragged="):
        sources.of(Documents())[1]
    with pytest.raises(sw.InvalidArgument, match=r"record 3, field 'ids': found shape \[8\], needed \[7\] or less"):
        sources.of(Documents(), ragged={"ids": 7})[3]
    with pytest.raises(sw.InvalidArgument, match="ragged: found 'label', needed a field with a dim"):
        sources.of(Documents(), ragged={"label": 7})
