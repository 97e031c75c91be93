"""A load fills each element of its targets once, or raises before anything has changed."""

import mmap

import numpy as np
import pytest

import shardwise as sw

torch = pytest.importorskip("torch")
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

import shardwise.torch as swt  # noqa: E402


def _view(rng, buffer):
    """Returns an array of any strides, negative and 0 too, within a buffer of bytes."""
    dtype = np.dtype(rng.choice(["u1", "<i2", "<f4"]))
    while True:
        shape = tuple(map(int, rng.integers(1, 5, rng.integers(0, 4))))
        strides = tuple(map(int, rng.integers(-24, 25, len(shape))))
        spans = [(n - 1) * stride for n, stride in zip(shape, strides)]
        begin = int(rng.integers(0, 200))
        if begin + sum(min(s, 0) for s in spans) >= 0 and begin + sum(max(s, 0) for s in spans) + dtype.itemsize <= buffer.size:
            return np.ndarray(shape, dtype, buffer, begin, strides)


def _has_one_element_twice(view):
    size = view.itemsize
    begins = sorted(sum(i * s for i, s in zip(at, view.strides)) for at in np.ndindex(view.shape))
    return any(after - before < size for before, after in zip(begins, begins[1:]))


@pytest.mark.parametrize("load", [lambda path, target: sw.load(path, target=target), lambda path, target: swt.load(path, target)])
def test_random_views_are_filled_or_refused_as_numpy_says_that_they_share(tmp_path, load):
    rng = np.random.default_rng(5)
    refused = 0
    for number in range(150):
        buffer = np.zeros(400, np.uint8)
        target = {"a": _view(rng, buffer), "b": _view(rng, buffer)}
        stored = {name: np.arange(1, view.size + 1).astype(view.dtype).reshape(view.shape) for name, view in target.items()}
        sw.save(tmp_path / str(number), stored)
        shares = np.shares_memory(*target.values()) or any(map(_has_one_element_twice, target.values()))
        refused += shares
        if shares:
            with pytest.raises(sw.InvalidArgument, match="share memory|several places|different values"):
                load(tmp_path / str(number), target)
            assert not buffer.any()
        else:
            load(tmp_path / str(number), target)
            assert all(np.array_equal(target[name], stored[name]) for name in target)
    assert 30 < refused < 120


def test_interleaved_and_turned_views_of_one_buffer_are_filled(tmp_path):
    sw.save(tmp_path / "c", {"even": np.arange(4.0), "odd": np.arange(4.0) + 10, **{f"column{i}": np.full(3, i) for i in range(50)}})
    buffer, matrix = np.zeros(8), np.zeros((3, 50), int)
    views = {"even": buffer[::2], "odd": buffer[:0:-2], **{f"column{i}": matrix[:, i] for i in range(50)}}
    for load in (lambda: sw.load(tmp_path / "c", target=views), lambda: swt.load(tmp_path / "c", views)):
        buffer[:], matrix[:] = 0, 0
        load()
        assert buffer.tolist() == [0, 13, 1, 12, 2, 11, 3, 10] and (matrix == np.arange(50)).all()


def test_views_of_numpy_and_torch_on_one_buffer_are_refused(tmp_path):
    sw.save(tmp_path / "c", {"a": np.ones(4, np.float32), "b": np.full(4, 2, np.float32)})
    buffer = bytearray(32)
    array, tensor = np.frombuffer(buffer, np.float32), torch.frombuffer(buffer, dtype=torch.float32)
    for a, b in ((array[:4], tensor[3:7]), (tensor[2:6], memoryview_of(buffer)[:4]), (tensor[:4], tensor.as_strided((4,), (0,)))):
        with pytest.raises(sw.InvalidArgument, match="share memory|several places"):
            swt.load(tmp_path / "c", {"a": a, "b": b})
        assert not any(buffer)
    swt.load(tmp_path / "c", {"a": array[:4], "b": tensor[4:]})
    assert array.tolist() == [1] * 4 + [2] * 4


@pytest.mark.parametrize("load", [lambda path, target: sw.load(path, target=target), lambda path, target: swt.load(path, target)])
def test_two_mappings_of_one_file_are_one_memory(tmp_path, load):
    sw.save(tmp_path / "c", {"a": np.ones(4, np.float32), "b": np.full(4, 2, np.float32)})
    page = mmap.PAGESIZE

    def mapped(first, offset=0, mode="r+"):
        return np.memmap(tmp_path / "file", np.float32, mode, offset, 2 * page // 4 - offset // 4)[first:first + 4]

    (tmp_path / "file").write_bytes(bytes(2 * page))
    later = page // 4
    for a, b in ((mapped(0), mapped(0)), (mapped(2), mapped(5)), (mapped(later + 3), mapped(0, page)),
                 (mapped(8)[::-1], mapped(8)), (np.asarray(mapped(later)), mapped(1, page).view(np.ndarray))):
        with pytest.raises(sw.InvalidArgument, match="'[ab]' and '[ab]' share memory here"):
            load(tmp_path / "c", {"a": a, "b": b})
        assert not any((tmp_path / "file").read_bytes())
    for a, b in ((mapped(0), mapped(4)), (mapped(later), mapped(4, page)), (mapped(0, mode="c"), mapped(0, mode="c")),
                 (mapped(0), mapped(0, mode="c"))):
        load(tmp_path / "c", {"a": a, "b": b})
        assert a.tolist() == [1] * 4 and b.tolist() == [2] * 4
        (tmp_path / "file").write_bytes(bytes(2 * page))


def test_a_memory_of_two_names_is_one_memory(tmp_path):
    sw.save(tmp_path / "c", {"a": np.ones(4, np.float32), "b": np.full(4, 2, np.float32)})
    (tmp_path / "file").write_bytes(bytes(64))
    one, other = (torch.from_file(str(tmp_path / "file"), shared=True, size=16) for _ in range(2))
    with pytest.raises(sw.InvalidArgument, match="'[ab]' and '[ab]' share memory here"):
        swt.load(tmp_path / "c", {"a": one[2:6], "b": other.numpy()[4:8]})
    assert not one.any()
    swt.load(tmp_path / "c", {"a": one[2:6], "b": other[6:10]})
    assert other[2:10].tolist() == [1] * 4 + [2] * 4


def memoryview_of(buffer):
    return np.asarray(memoryview(buffer).cast("f"))


class _Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(3, 2)
        self.head = torch.nn.Linear(2, 3, bias=False)
        self.head.weight = self.emb.weight


def _fill_by(door, path, module):
    if door == "manager":
        with swt.CheckpointManager(path.parent / "run") as manager:
            manager.save(1, swt.load_state_dict(path), existing="replace")
            manager.restore({"m": module})
    elif door == "dcp":
        state = {"m": module.state_dict()}
        dcp.load(state, storage_reader=swt.StorageReader(path))
        module.load_state_dict(state["m"])
    else:
        swt.load(path, {"m": module})


@pytest.mark.parametrize("door", ["load", "manager", "dcp", "meta"])
def test_two_values_for_one_tied_tensor_are_refused_and_equal_ones_are_not(tmp_path, door):
    one, two = torch.full((3, 2), 1.0), torch.full((3, 2), 2.0)
    for name, of_head in (("two", two), ("equal", one.clone())):
        swt.save(tmp_path / name, {"m": {"emb.weight": one, "head.weight": of_head}})
        with torch.device("meta" if door == "meta" else "cpu"):
            module = _Tied()
        before = None if door == "meta" else module.emb.weight.detach().clone()
        if name == "two":
            with pytest.raises((sw.InvalidArgument, CheckpointException), match="'m.emb.weight' and 'm.head.weight' are one array here and have different values"):
                _fill_by(door, tmp_path / name, module)
            assert module.emb.weight.is_meta if before is None else torch.equal(module.emb.weight, before)
        else:
            _fill_by(door, tmp_path / name, module)
            assert torch.equal(module.emb.weight, one) and module.head.weight is module.emb.weight


def test_an_array_under_two_names_has_one_value(tmp_path):
    sw.save(tmp_path / "c", {"a": np.ones(3), "b": np.full(3, 2.0)})
    sw.save(tmp_path / "equal", {"a": np.ones(3), "b": np.ones(3)})
    array = np.zeros(3)
    with pytest.raises(sw.InvalidArgument, match="'a' and 'b' are one array here and have different values there"):
        sw.load(tmp_path / "c", target={"a": array, "b": array})
    assert not array.any()
    sw.load(tmp_path / "equal", target={"a": array, "b": array})
    assert array.tolist() == [1, 1, 1]


def test_read_into_refuses_a_view_that_has_one_element_twice(tmp_path):
    sw.save(tmp_path / "c", {"a": np.arange(3.0)})
    out = np.zeros(3)
    for opened, view in ((sw.open, np.lib.stride_tricks.as_strided(out, (3,), (0,))), (swt.open, torch.from_numpy(out)[:1].expand(3))):
        with opened(tmp_path / "c") as checkpoint, pytest.raises(sw.InvalidArgument, match="several places"):
            checkpoint["a"].read_into(view)
    assert not out.any()
