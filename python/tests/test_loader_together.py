"""Objects with `__getitems__`, torch's protocol for several records in one call: the same batches as record by record."""

import collections

import numpy as np
import pytest

import shardwise as sw
from shardwise import sources

SIZE = 53


def numpy_row(i):
    return {"x": np.arange(6, dtype=np.float32).reshape(2, 3) * i, "y": np.int64(i)}


def torch_row(i):
    import torch

    return {"x": torch.arange(6, dtype=torch.bfloat16) * i, "y": torch.tensor(i), "z": torch.tensor([i, i]).bool()}


ROWS = {
    "numpy": numpy_row, "torch": torch_row,
    "tuple": lambda i: (np.full(3, i, np.uint8), i), "list": lambda i: [i, float(i)], "array": lambda i: np.array([i, -i]),
    "number": lambda i: i, "python": lambda i: {"x": [i, i + 1], "y": float(i), "z": i % 2 == 0},
    "mixed types": lambda i: {"x": np.full(2, i, np.float32 if i % 2 else np.float64), "y": i if i % 3 else np.int32(i)},
    "nan": lambda i: {"x": float("nan") if i % 2 else 1.0, "y": np.float16("nan")},
    "strided": lambda i: {"x": (np.arange(12.0).reshape(3, 4) * i).T, "y": np.array(i, ">i4")},
    "mapping": lambda i: collections.UserDict(x=np.ones(2) * i), "empty": lambda i: {"x": np.zeros((0, 3)), "y": i},
}


class Single:
    def __init__(self, row=numpy_row, size=SIZE):
        self.row, self.size = row, size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return self.row(i)


class Together(Single):
    def __init__(self, row=numpy_row, size=SIZE):
        super().__init__(row, size)
        self.calls = []

    def __getitem__(self, i):
        raise AssertionError("a record was asked for by itself")

    def __getitems__(self, records):
        assert isinstance(records, list) and all(type(i) is int for i in records)
        self.calls.append(records)
        return [self.row(i) for i in records]


def contents(loader):
    return [{name: (a.dtype, a.shape, a.tobytes()) for name, a in [*batch.items(), ("mask", batch.mask)]} for batch in loader]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("options", [
    {}, {"order": "sequential"}, {"threads": 3}, {"last_batch": "pad"}, {"last_batch": "wrap"},
    {"mesh": "data=4", "rank": 1}, {"bad_records": "mask"}], ids=str)
def test_batches_are_those_of_single_records(row, options):
    if "torch" in row:
        pytest.importorskip("torch", reason="needs torch, which this environment has not")
    together = Together(ROWS[row])
    with sw.Loader(together, batch_size=8, epochs=2, **options) as loader, \
            sw.Loader(Single(ROWS[row]), batch_size=8, epochs=2, **options) as expected:
        assert contents(loader) == contents(expected)
    assert len(together.calls) < 2 * SIZE


def ragged_row(i):
    return {"ids": np.arange(i % 7 + 1, dtype=np.int32) + i, "n": i}


STAGES = {
    "shuffle": lambda s: s.shuffle(), "take": lambda s: s.take(5, 50), "repeat": lambda s: s.repeat(2),
    "filter": lambda s: s.filter("n>=9"), "predicate": lambda s: s.filter(lambda r: r["n"] % 3 == 0),
    "map": lambda s: s.map(lambda r: {"n": r["n"] * 2}), "random": lambda s: s.map(lambda r, g: {"n": r["n"] + g.random()}),
    "pack": lambda s: s.pack("ids", 16), "filter and pack": lambda s: s.filter("n>=9").pack("ids", 16),
    "zip": lambda s: sources.zip(s, {"other": np.arange(SIZE)}), "concat": lambda s: sources.concat(s, s.shuffle()),
    "mix": lambda s: sources.mix([s.shuffle(), s.take(0, 5)], [3, 1]), "cast": lambda s: s.cast("n", np.float32)}


@pytest.mark.parametrize("stage", STAGES)
def test_stages_and_resumed_runs_see_the_same_records(stage):
    def loader(kind, **options):
        source = STAGES[stage](sources.of(kind(ragged_row), ragged={"ids": 7}))
        return sw.Loader(source, batch_size=4, seed=3, epochs=2, **options)

    with loader(Single) as single:
        expected = contents(single)
    with loader(Together, threads=2) as run:
        begin = [next(run) for _ in range(3)]
        assert contents(begin) == expected[:3]
        state = run.state_dict()
    with loader(Together) as resumed:
        resumed.load_state_dict(state)
        assert contents(resumed) == expected[3:]


def test_buckets_of_ragged_fields_are_those_of_single_records():
    runs = []
    for kind in (Single, Together):
        with sw.Loader(sources.of(kind(ragged_row), ragged={"ids": 7}), batch_size=4, buckets={"ids": [3, 5, 7]}) as loader:
            runs.append(contents(loader))
    assert runs[0] == runs[1]


def test_a_batch_is_one_call():
    together = Together()
    with sw.Loader(together, batch_size=8, order="sequential") as loader:
        loader.state_dict()  # begins the run, which samples records to know the source by
        together.calls.clear()
        batches = list(loader)
    assert together.calls == [list(range(8 * b, 8 * b + 8)) for b in range(len(batches))]


def test_a_process_asks_for_its_own_rows_alone():
    together = Together()
    with sw.Loader(together, batch_size=8, order="sequential", mesh="data=4", rank=2) as loader:
        loader.state_dict()  # begins the run, which samples records to know the source by
        together.calls.clear()
        batches = list(loader)
    assert together.calls == [[8 * b + 4, 8 * b + 5] for b in range(len(batches))]


class Raising(Together):
    """Raises for record 13, whether it is asked for with others or alone."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def __getitems__(self, records):
        if 13 in records:
            raise self.error
        return super().__getitems__(records)


def test_an_interrupt_comes_out_at_once():
    error = KeyboardInterrupt()
    with sw.Loader(Raising(error), batch_size=8) as loader, pytest.raises(KeyboardInterrupt) as raised:
        collections.deque(loader, maxlen=0)
    assert raised.value is error


@pytest.mark.parametrize("error", [LookupError("x"), ValueError("no")], ids=repr)
def test_what_it_raises_comes_out_as_it_is(error):
    with sw.Loader(Raising(error), batch_size=8, order="sequential") as loader:
        assert next(loader)["y"].tolist() == list(range(8))
        with pytest.raises(type(error)) as raised:
            next(loader)
    assert raised.value is error and "batch 1, record 13" in raised.value.__notes__[0]


def test_stop_iteration_ends_no_loop():
    with sw.Loader(Raising(StopIteration()), batch_size=8, order="sequential") as loader:
        with pytest.raises(RuntimeError, match="StopIteration") as raised:
            collections.deque(loader, maxlen=0)
    assert isinstance(raised.value.__cause__, StopIteration)


def test_bad_records_are_found_one_by_one():
    with sw.Loader(Raising(ValueError("bad")), batch_size=8, order="sequential", bad_records="mask") as loader:
        batches = list(loader)
        assert [b["y"][~b.mask].tolist() for b in batches] == [[], [0], *[[]] * 4]
        assert np.concatenate([b["y"][b.mask] for b in batches]).tolist() == [i for i in range(48) if i != 13]
        assert [bad[3] for bad in loader.bad_records()[1]] == [13]


def test_an_error_of_the_call_alone_is_not_lost():
    class Many(Together):
        def __getitems__(self, records):
            if len(records) == 8 and 13 in records:
                raise LookupError("of many")
            return super().__getitems__(records)

    with sw.Loader(Many(), batch_size=8, order="sequential") as loader:
        next(loader)
        with pytest.raises(LookupError, match="of many"):
            next(loader)


@pytest.mark.parametrize(("wrong", "said"), [
    (lambda rows: rows[:-1], "Wrong: __getitems__: found 7 records, needed 8, one for each number"),
    (lambda rows: [*rows, rows[0]], "Wrong: __getitems__: found 9 records, needed 8, one for each number"),
    (lambda rows: None, "Wrong: __getitems__: found NoneType, needed a list of records"),
    (lambda rows: {"x": rows}, "Wrong: __getitems__: found dict, needed a list of records"),
    (lambda rows: rows[:-1] + [{"x": np.zeros(2)}], "record 15, field 'x': found shape [2], needed [2, 3]"),
    (lambda rows: rows[:-1] + [{"x": np.zeros((2, 3))}], "record 15 has no field 'y'"),
    (lambda rows: rows[:-1] + [{"x": np.zeros((2, 3)), "y": 1.5}], "record 15, field 'y': dtype float64, needed is int64"),
    (lambda rows: rows[:-1] + [{"x": "text", "y": 1}], "field 'x' is str of <U4, needed are numbers of one shape")])
def test_what_does_not_fit_is_one_clear_error(wrong, said):
    class Wrong(Together):
        def __getitems__(self, records):
            rows = super().__getitems__(records)
            return wrong(rows) if len(records) == 8 and 13 in records else rows

    class WrongAlways(Wrong):
        def __getitems__(self, records):
            rows = Together.__getitems__(self, records)
            return wrong([*rows]) if 15 in records else rows

    kind = Wrong if said.startswith("Wrong") else WrongAlways
    with sw.Loader(kind(), batch_size=8, order="sequential") as loader:
        next(loader)
        with pytest.raises(sw.Error) as raised:
            next(loader)
    assert said in str(raised.value)


def test_torchs_subset_is_read_together():
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    import shardwise.torch as swt

    together = Together(torch_row)
    subset = torch.utils.data.Subset(together, list(range(40, 8, -1)))
    with swt.Loader(subset, batch_size=8, order="sequential") as loader:
        loader.state_dict()
        together.calls.clear()
        found = list(loader)
    for batch, expected in zip(found, torch.utils.data.DataLoader(subset, batch_size=8), strict=True):
        assert set(batch) == set(expected) and all(torch.equal(batch[name], expected[name]) for name in expected)
    assert together.calls[:4] == [list(range(40 - 8 * b, 32 - 8 * b, -1)) for b in range(4)]


@pytest.mark.parametrize("kind", ["torch", "numpy", None])
def test_datasets_of_hugging_face(kind):
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face's datasets, which this environment has not")
    rng = np.random.default_rng(0)
    image, label = rng.integers(0, 255, (SIZE, 12), dtype=np.uint8), rng.integers(0, 10, SIZE)
    dataset = datasets.Dataset.from_dict({"image": image, "label": label}).with_format(kind).shuffle(seed=1)
    for source in (dataset, dataset.select(range(40)), dataset.filter(lambda r: int(r["label"]) > 2)):
        with sw.Loader(source, batch_size=8, epochs=2) as loader, \
                sw.Loader(Single(source.__getitem__, len(source)), batch_size=8, epochs=2) as expected:
            assert contents(loader) == contents(expected)


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
def test_datasets_whose_records_would_be_tables_are_read_as_records(kind):
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face's datasets, which this environment has not")
    dataset = datasets.Dataset.from_dict({"x": [1.5, 2.5], "y": [[1, 2], [3, 4]], "s": ["a", "b"]})
    runs = [dataset.with_format(each, columns=["x", "y"]) for each in (kind, None)]
    found, expected = (contents(sw.Loader(run, batch_size=2)) for run in runs)
    assert found == expected
