"""Compares diff and stats with numpy, and with the JSON of the command."""

import json
import os
import pathlib
import subprocess

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw

COMMAND = pathlib.Path(str(sw._core.__file__)).parent / "bin" / "shardwise"


def command(*words):
    if not COMMAND.exists():
        pytest.skip("the command is not built")
    return json.loads(subprocess.run([COMMAND, *map(str, words), "--json"], capture_output=True, text=True).stdout)


def plain(value):
    """Returns the value as JSON has it, without members that are None."""
    if names := getattr(value, "_fields", getattr(value, "__match_args__", None)):
        return {name: plain(getattr(value, name)) for name in names if getattr(value, name) is not None}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def without_null(value):
    if isinstance(value, dict):
        return {key: without_null(one) for key, one in value.items() if one is not None}
    return [without_null(one) for one in value] if isinstance(value, list) else value


@pytest.fixture
def two(tmp_path, rng):
    w = rng.standard_normal((30, 20), np.float32)
    other = w.copy()
    other[3, 4] += 0.5
    other[7, 1] = np.nan
    sw.save(tmp_path / "a", {"w": w, "i": np.arange(5), "same": np.ones(9), "only": np.ones(2), "b": np.zeros(3, ml_dtypes.bfloat16)})
    sw.save(tmp_path / "b", {"w": other, "i": np.arange(6), "same": np.ones(9), "b": np.zeros(3, np.float32)})
    return tmp_path / "a", tmp_path / "b", w, other


def test_diff(two):
    a, b, w, other = two
    report = sw.diff(a, b)
    assert not report.equal
    by_name = {tensor.name: tensor for tensor in report.tensors}
    assert list(by_name) == ["b", "i", "only", "same", "w"]
    found = by_name["w"]
    assert (found.elements, found.differing, found.nan, found.at) == (600, 2, (0, 1), (3, 4))
    assert found.first == ("f32", (30, 20)) and found.first.dtype == "f32" and found.second == found.first
    assert found.max_abs == abs(float(w[3, 4]) - float(other[3, 4]))
    assert found.values == (str(w[3, 4]), str(other[3, 4]))
    assert repr(by_name["only"]) == (
        "TensorDiff(name='only', equal=False, first=Kind(dtype='f64', shape=(2,)), second=None, elements=None, differing=None, "
        "max_abs=None, max_rel=None, max_ulp=None, nan=None, at=None, values=None)")
    assert by_name["i"].elements is None and not by_name["i"].equal
    assert by_name["b"].differing == 0 and by_name["b"].max_ulp is None and not by_name["b"].equal
    assert by_name["same"].equal and report.skipped_bytes >= 9 * 8
    same = sw.diff(a, a)
    assert same.equal and same.compared_bytes == 0 and all(tensor.equal for tensor in same.tensors)


def test_diff_is_what_the_command_says(two):
    a, b, _, _ = two
    assert plain(sw.diff(a, b)) == without_null(command("diff", a, b))


def test_tolerances(two):
    a, b, _, other = two
    other[7, 1] = 0
    sw.save(b, {"w": other}, existing="replace")
    sw.save(a, {"w": two[2]}, existing="replace")
    assert not sw.diff(a, b, rtol=1e-6).equal
    assert sw.diff(a, b, atol=10.0).equal
    for wrong in (-1.0, float("nan")):
        with pytest.raises(sw.InvalidArgument):
            sw.diff(a, b, atol=wrong)


def test_of_safetensors(two):
    a, _, w, _ = two
    for target in (a.parent / "m.safetensors", a.parent / "folder"):
        sw.export_model(a, target)
        assert sw.diff(a, target).equal and sw.diff(target, a, threads=1, memory=16 << 20).equal
        assert sw.stats(target, "w")["w"].min == w.min()


def test_stats(tmp_path, rng):
    x = rng.standard_normal((50, 7))
    x[0, :4] = np.nan, np.inf, 0, -np.inf
    sw.save(tmp_path / "a", {"l/x": x, "l/i": np.array([2**63 + 1, 5], np.uint64), "z": np.array([-2**63], np.int64),
                             "none": np.full(3, np.nan), "c": np.array([3 + 4j])})
    found = sw.stats(tmp_path / "a")
    assert list(found) == ["c", "l/i", "l/x", "none", "z"]
    finite = x[np.isfinite(x)]
    one = found["l/x"]
    assert (one.name, one.dtype, one.shape, one.elements) == ("l/x", "f64", (50, 7), 350)
    assert (one.nan, one.infinities, one.zeros, one.min, one.max) == (1, 2, 1, finite.min(), finite.max())
    assert one.mean == pytest.approx(finite.mean(), rel=1e-12) and one.std == pytest.approx(finite.std(), rel=1e-12)
    assert (found["l/i"].min, found["l/i"].max, found["z"].min) == (5, 2**63 + 1, -2**63)
    assert (found["none"].min, found["none"].mean, found["none"].nan) == (None, None, 3)
    assert found["c"].max == 5 and one.histogram is None

    bars = sw.stats(tmp_path / "a", ["l/x", "non*"], histogram=8)
    assert list(bars) == ["l/x", "none"]
    counts, edges = np.histogram(finite, 8)
    histogram = bars["l/x"].histogram
    assert (histogram.low, histogram.high, histogram.counts) == (edges[0], edges[-1], list(counts))
    assert bars["none"].histogram.low is None
    assert sw.stats(tmp_path / "a", []) == {}


def test_stats_are_what_the_command_says(two):
    a = two[0]
    said = command("stats", a, "--histogram", 4)["tensors"]
    assert [plain(one) for one in sw.stats(a, histogram=4).values()] == without_null(said)


def test_progress(two):
    a, b, _, _ = two
    seen: list[tuple[int, int]] = []
    sw.diff(a, b, progress=lambda done, total: seen.append((done, total)))
    sw.stats(a, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) >= 2 and all(done <= total for done, total in seen)


def test_what_is_wrong_is_said(two, tmp_path):
    a = two[0]
    with pytest.raises(sw.NameNotFound, match='no tensor "sane", nearest: "same"'):
        sw.stats(a, ["w", "sane"])
    with pytest.raises(sw.NotFound, match="nowhere"):
        sw.diff(a, tmp_path / "nowhere")
    with sw.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, {"w": np.ones(2)})
    with pytest.raises(sw.NotFound, match="found a folder of 1 step \\("):
        sw.diff(a, tmp_path / "run")
    with pytest.raises(sw.Unsupported, match="URL"):
        sw.stats("s3://bucket/x")
    (tmp_path / "x.pt").write_bytes(b"PK\3\4" + bytes(20))
    with pytest.raises(sw.Unsupported, match="zip archive"):
        sw.stats(tmp_path / "x.pt")
    with pytest.raises(sw.InvalidArgument, match="bars"):
        sw.stats(a, histogram=-1)
    assert sorted(os.listdir(tmp_path / "run")) == ["stats-step-00000003.json", "step-00000003"]
