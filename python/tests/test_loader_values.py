"""Gives a loader exceptions, masks and missing values of the user's records and callbacks."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import sources


class Failing:
    """Records that are their numbers; one of them raises."""

    def __init__(self, error, at=7):
        self.error, self.at = error, at

    def __len__(self):
        return 40

    def __getitem__(self, i):
        if i == self.at:
            raise self.error
        return {"y": i}


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__()

    def __str__(self):
        raise ZeroDivisionError

    def add_note(self, note):
        raise ZeroDivisionError


def loaders():
    yield sw.Loader, {}
    torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")
    assert torch
    import shardwise.torch as swt

    yield swt.Loader, {}
    yield sw.Loader, {"threads": 3}


def failing(record):
    if record["y"] == 7:
        raise StopIteration(3)
    return record


@pytest.mark.parametrize("source", [lambda: Failing(StopIteration(3)),
                                    lambda: sources.of(Failing(None, at=-1)).map(failing, name="f"),
                                    lambda: sources.concat(Failing(StopIteration(3)), Failing(None, at=-1)),
                                    lambda: sources.callback(40, {"y": ("i8", ())}, Failing(StopIteration(3)).__getitem__)],
                         ids=["object", "map", "concat", "callback"])
def test_a_stop_iteration_does_not_end_an_epoch(source):
    for make, options in loaders():
        loader = make(source(), batch_size=5, order="sequential", **options)
        for _ in range(2):  # a later epoch is not empty
            with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
                list(loader)
            assert isinstance(caught.value.__cause__, StopIteration) and caught.value.__cause__.value == 3
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        sources.of(source())[7]
    with sw.Loader(source(), batch_size=5, order="sequential", bad_records="mask") as masked:
        assert [b.mask.tolist() for b in masked][1] == [True, True, False, True, True]


def stop(*_):
    raise StopIteration


class NoLength(Failing):
    def __len__(self):
        raise StopIteration


class NoArray:
    def __array__(self, *_, **__):
        raise StopIteration


@pytest.mark.parametrize("make", [
    lambda: sources.of({"y": np.arange(9)}).filter(stop), lambda: sources.of({"y": np.arange(9)}).map(stop),
    lambda: sw.Loader({"y": np.arange(9)}, batch_size=3, transform=stop), lambda: sw.Loader(NoLength(None), batch_size=3),
    lambda: sources.of(Failing(StopIteration(), at=0)), lambda: sw.Loader({"y": NoArray()}, batch_size=3)],
    ids=["filter", "map", "transform", "length", "first record", "array"])
def test_a_stop_iteration_while_a_source_is_made_is_a_runtime_error(make):
    with pytest.raises(RuntimeError) as caught:
        make()
    assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize("kind, arguments", [(KeyboardInterrupt, ()), (SystemExit, (2,)), (GeneratorExit, ()),
                                             (Odd, (1, 2)), (IndexError, "x"), (KeyError, "x")])
def test_other_exceptions_come_out_as_they_are(kind, arguments):
    error = kind(*arguments)
    for make, options in loaders():
        loader = make(sources.callback(40, {"y": ("i8", ())}, Failing(error).__getitem__, name="f"), batch_size=5,
                      order="sequential", **options)
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                list(loader)
            assert caught.value is error
    with pytest.raises(type(error)) as caught:  # an IndexError does not end a loop over the records
        list(sources.callback(40, {"y": ("i8", ())}, Failing(error).__getitem__, name="f"))
    assert caught.value is error


@pytest.mark.parametrize("keep", ["y>1", lambda record: True], ids=["text", "function"])
def test_an_exception_of_a_record_comes_out_of_filter_as_it_is(keep):
    error = LookupError("x")
    with pytest.raises(LookupError) as caught:
        sources.of(Failing(error)).filter(keep)
    assert caught.value is error and any("record" in note for note in error.__notes__)


MASKED = np.ma.array([1.0, -999.0], mask=[False, True])


@pytest.mark.parametrize("source", [
    {"x": MASKED}, {"i": np.arange(2), "x": MASKED}, [{"x": MASKED}], [(1, MASKED)], [MASKED], MASKED, [{"x": np.ma.masked}],
    [{"x": [1.0, np.ma.masked]}], [{"x": [MASKED, MASKED]}], [{"x": [[1.0, 2.0], [1.0, np.ma.masked]]}],
    [{"x": np.ma.array(1, mask=True)}], [{"x": np.ma.array([True], mask=[True])}]], ids=range(12))
@pytest.mark.filterwarnings("ignore:Warning. converting a masked element")
def test_a_mask_is_not_dropped(source):
    with pytest.raises(sw.InvalidArgument, match="masked array, whose mask would be lost"):
        sw.Loader(source, batch_size=1)


def test_a_mask_of_a_later_record_or_a_transform_is_not_dropped():
    records = [{"x": np.zeros(2)}, {"x": MASKED}]
    with pytest.raises(sw.InvalidArgument, match="field 'x'.*mask"):
        list(sw.Loader(records, batch_size=1, order="sequential"))
    with pytest.raises(sw.InvalidArgument, match="field 'x'.*mask"):
        sw.Loader({"x": np.zeros((4, 2))}, batch_size=1, transform=lambda record: {"x": np.ma.masked_equal(record["x"], 0)})


def test_nan_and_matrices_are_data_and_units_are_not_dropped():
    class Quantity(np.ndarray):
        unit = "m"

    batch = next(sw.Loader([{"x": [1.0, np.nan], "m": np.matrix([[1, 2]])}], batch_size=1))
    assert np.isnan(batch["x"][0, 1]) and batch["m"].tolist() == [[[1, 2]]]
    with pytest.raises(sw.InvalidArgument, match="with a unit"):
        sw.Loader({"x": np.zeros(3).view(Quantity)}, batch_size=1)


def test_missing_values_of_extension_arrays_are_not_made_nan():
    pd = pytest.importorskip("pandas", reason="needs pandas, which this environment has not")
    for dtype, values in (("Int64", [1, None]), ("Float32", [1.5, None]), ("boolean", [True, None])):
        for source in ({"x": pd.array(values, dtype=dtype)}, {"x": pd.Series(values, dtype=dtype)},
                       [{"x": pd.array(values, dtype=dtype)}]):
            with pytest.raises(sw.InvalidArgument, match="missing values"):
                sw.Loader(source, batch_size=1)
    whole = next(sw.Loader({"x": pd.array([3, 4], dtype="Int64")}, batch_size=2, order="sequential"))
    assert whole["x"].tolist() == [3, 4] and whole["x"].dtype == np.int64
    assert np.isnan(next(sw.Loader({"x": pd.Series([np.nan])}, batch_size=1))["x"]).all()
