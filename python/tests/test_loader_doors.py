"""Gives the loader exceptions, masks, dtypes and weights of a user's own code."""

import collections

import numpy as np
import pytest

import shardwise as sw
from shardwise import sources


class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


class Rows:
    """Ten records; number 5 raises."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i == 5:
            raise self.error
        return {"x": np.float32(i)}


ERRORS = [lambda: LookupError("x"), lambda: Odd(1, 2), Unprintable, KeyboardInterrupt, lambda: SystemExit(3), GeneratorExit]


def doors(error):
    """Returns iterables whose sixth record raises, one for each way that a user's function makes records."""

    def stop(_):
        raise error

    def bad(r):
        return stop(r) if r["x"] == 5 else r

    array = sources.of({"x": np.arange(10, dtype=np.float32)})
    yield "object", sources.of(Rows(error))
    yield "callback", sources.callback(10, {"x": ("f4", ())}, Rows(error).__getitem__)
    yield "map", array.map(bad)
    yield "map of map", array.map(bad).map(lambda r: r)
    yield "zip", sources.zip(sources.of(Rows(error)), sources.of({"y": np.arange(10)}))
    yield "concat", sources.concat(sources.of(Rows(error)), sources.of(Rows(error)))


@pytest.mark.parametrize("make", ERRORS)
def test_an_exception_of_the_users_code_comes_out_as_it_is(make):
    error = make()
    for door, source in doors(error):
        with sw.Loader(source, batch_size=2, epochs=2, order="sequential") as loader:
            with pytest.raises(type(error)) as raised:
                for _ in loader:
                    pass
            assert raised.value is error, door


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, type("Mine", (StopIteration,), {})])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_exception_that_would_end_a_loop_comes_as_the_cause_of_a_runtime_error(kind, threads):
    for door, source in doors(kind("none left")):
        with sw.Loader(source, batch_size=2, epochs=3, order="sequential", threads=threads) as loader:
            for again in range(2):  # the loop after it is not empty, either
                with pytest.raises(RuntimeError, match=kind.__name__) as raised:
                    collections.deque(loader.epoch() if again else loader, maxlen=0)
                assert isinstance(raised.value.__cause__, kind), door


def test_a_predicate_that_raises_stop_iteration_says_so():
    source = sources.of({"x": np.arange(10)})
    with pytest.raises(RuntimeError, match="StopIteration") as raised:
        source.filter(lambda r: next(iter([])))
    assert isinstance(raised.value.__cause__, StopIteration)


MASKED = np.ma.array([1.0, -999.0], mask=[0, 1])


@pytest.mark.parametrize("source", [
    {"x": MASKED}, {"x": [MASKED, MASKED]}, [{"x": MASKED}] * 2, [(MASKED, 1)] * 2, [MASKED] * 2,
    [{"x": np.ma.masked}] * 2, [{"x": [1.0, np.ma.masked]}] * 2, {"x": np.ma.array([1, 2])}])
def test_a_masked_array_is_refused_wherever_it_stands(source):
    with pytest.raises(sw.InvalidArgument, match="masked array, whose mask would be lost"):
        sw.Loader(source, batch_size=1)


def test_a_record_that_is_masked_later_is_refused_too():
    records = [{"x": np.zeros(2)}, {"x": MASKED}]
    with pytest.raises(sw.InvalidArgument, match="masked array"):
        list(sw.Loader(records, batch_size=1, order="sequential"))


@pytest.mark.parametrize("weights, whole", [
    ([1.45, 1], [29, 20]), ([0.7, 0.3], [7, 3]), ([1, 2.5], [2, 5]), ([0.5, 0.0, 0.5], [1, 0, 1]), ([3.0, 1.0], [3, 1]),
    ([np.float32(0.5), np.int64(2)], [1, 4]), ([6, 3], [6, 3])])
def test_weights_of_a_mixture_may_be_fractions(weights, whole):
    parts = [{"x": np.full(50, i)} for i in range(len(weights))]
    mixed = sources.mix(parts, weights)
    assert repr(mixed) == repr(sources.mix(parts, whole))
    total = sum(whole)
    found = np.concatenate([b["x"] for b in sw.Loader(mixed, batch_size=total, order="sequential", last_batch="drop")])
    for first in range(0, len(found) - total + 1, total):
        assert np.bincount(found[first:first + total], minlength=len(whole)).tolist() == whole


def test_weights_without_a_small_ratio_are_rounded_to_millionths():
    rng = np.random.default_rng(0)
    for _ in range(100):
        weights = list(rng.random(rng.integers(2, 6)) * 10.0 ** rng.integers(-3, 4) + 1e-9)
        whole = sources._whole_weights(weights)
        shares = np.array(whole) / sum(whole)
        assert np.abs(shares - np.array(weights) / sum(weights)).max() < 2e-6 and min(whole) > 0


@pytest.mark.parametrize("weight", [-1, -0.5, float("nan"), float("inf"), "1", None, True, 1e300])
def test_a_weight_that_is_none_is_refused(weight):
    with pytest.raises(sw.InvalidArgument, match="weight"):
        sources.mix([{"x": np.arange(3)}] * 2, [1.5, weight])


def test_tensors_of_every_dtype_are_delivered():
    torch = pytest.importorskip("torch")
    import shardwise.torch as swt

    names = ["bfloat16", "float16", "float32", "float64", "complex64", "bool", "uint8", "int64", "float8_e4m3fn", "float8_e5m2"]
    for name in names:
        dtype = getattr(torch, name)
        x = torch.arange(6, dtype=torch.float32).reshape(3, 2).to(dtype)
        for source in ({"x": x}, [{"x": row} for row in x], torch.utils.data.TensorDataset(x)):
            batches = list(swt.Loader(source, batch_size=3, order="sequential"))
            found = next(iter(batches[0].values()))
            assert found.dtype == dtype and torch.equal(found.to(torch.complex64), x.to(torch.complex64)), (name, source)
