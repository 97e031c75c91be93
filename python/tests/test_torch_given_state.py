"""load() gives an object's own load_state_dict() the stored values in their stored shapes, as torch does."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import shardwise as sw
import shardwise.torch as swt
from processes import free_port, run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


class Holder:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class Extra(torch.nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.lin, self.extra = torch.nn.Linear(2, 2), extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))


STATES = [
    ({"t": torch.ones(5)}, {"t": torch.empty(0)}), ({"t": torch.ones(5)}, {"t": torch.zeros(5, dtype=torch.bfloat16)}),
    ({"t": torch.ones(())}, {"t": torch.zeros(1)}), ({"t": np.ones(5)}, {"t": np.zeros((2, 2), "i4")}),
    ([torch.ones(3)], [torch.zeros(2)]), (torch.ones(4), torch.zeros(2)),
    ({"a": {"b": [torch.ones(2), torch.ones(1)]}}, {"a": {"b": [torch.zeros(1)] * 3}}),
]


@pytest.mark.parametrize("options", [{}, {"skip_mismatched": True}, {"strict": False}])
@pytest.mark.parametrize("saved,old", STATES)
@pytest.mark.parametrize("kind", [Holder, Extra])
def test_states_of_another_shape(tmp_path, saved, old, options, kind):
    swt.save(tmp_path / "x", {"deep": [{"o": kind(saved)}], "w": torch.ones(2)})
    target = kind(old)
    loaded = swt.load(tmp_path / "x", {"deep": [{"o": target}], "w": torch.zeros(2)}, **options)
    assert same(saved, getattr(target, "state" if kind is Holder else "extra"))
    assert loaded.skipped == loaded.missing == []


def test_tensors_that_are_filled_in_place_must_match(tmp_path):
    swt.save(tmp_path / "x", {"m": torch.nn.Linear(2, 3), "w": torch.ones(2), "o": Holder({"t": torch.ones(2)})})
    own = torch.zeros(2)
    with pytest.raises(sw.InvalidArgument, match="2 faults: 'm.weight' .* 'm.bias'"):
        swt.load(tmp_path / "x", {"m": torch.nn.Linear(2, 4), "w": torch.zeros(2), "o": Holder({"t": torch.zeros(1)})})
    with pytest.raises(sw.InvalidArgument, match="'w' is"):
        swt.load(tmp_path / "x", {"m": torch.nn.Linear(2, 3), "w": torch.zeros(3), "o": Holder({"t": torch.zeros(1)})})
    swt.load(tmp_path / "x", {"m": torch.nn.Linear(2, 3), "w": torch.zeros(2), "o": Holder({"t": own})})
    assert torch.equal(own, torch.ones(2))  # memory that fits is filled


class Metric(torch.nn.Module):
    """Saves lists of tensors by hooks, as torchmetrics does."""

    def __init__(self, values):
        super().__init__()
        self.lin, self.values = torch.nn.Linear(2, 2), values

    def _save_to_state_dict(self, state, prefix, keep):
        super()._save_to_state_dict(state, prefix, keep)
        state[f"{prefix}values"] = list(self.values)

    def _load_from_state_dict(self, state, prefix, *others):
        self.values = state.pop(f"{prefix}values")
        super()._load_from_state_dict(state, prefix, *others)


def test_modules_with_hooks_and_lazy_ones(tmp_path):
    saved = torch.nn.Sequential(Metric([torch.ones(3), torch.ones(1)]), torch.nn.Linear(4, 2))
    swt.save(tmp_path / "x", {"m": saved})
    for target in (torch.nn.Sequential(Metric([torch.zeros(1)]), torch.nn.LazyLinear(2)),
                   torch.nn.DataParallel(torch.nn.Sequential(Metric([]), torch.nn.LazyLinear(2)))):
        oracle = torch.nn.Sequential(Metric([]), torch.nn.LazyLinear(2))
        oracle.load_state_dict(saved.state_dict())
        swt.load(tmp_path / "x", {"m": target})
        inner = getattr(target, "module", target)
        assert same(inner[0].values, oracle[0].values) and same(inner[1].weight.data, oracle[1].weight.data)


def test_state_of_optimizers(tmp_path):
    def optimizer(extra):
        parameter = torch.nn.Parameter(torch.ones(4, 4))
        made = torch.optim.SGD([parameter], lr=1.0, momentum=0.9)
        if extra is not None:
            made.state[parameter].update(extra=extra, momentum_buffer=torch.full((4, 4), float(len(extra))))
        return made

    saved = optimizer(torch.ones(5))
    swt.save(tmp_path / "x", {"o": saved})
    for extra in (None, torch.zeros(3), torch.zeros(5), torch.zeros(5, dtype=torch.float64), torch.zeros(4, 4)):
        for options in ({}, {"skip_mismatched": True}):
            target, oracle = optimizer(extra), optimizer(extra)
            oracle.load_state_dict(saved.state_dict())
            swt.load(tmp_path / "x", {"o": target}, **options)
            assert same(target.state_dict()["state"], oracle.state_dict()["state"])


def test_managers(tmp_path):
    with swt.CheckpointManager(tmp_path) as manager:
        manager.save(1, {"o": Holder({"t": torch.ones(5)})})
    target = Holder({"t": torch.empty(0)})
    with swt.CheckpointManager(tmp_path) as manager:
        manager.restore(1, {"o": target})
    assert same(target.state, {"t": torch.ones(5)})


def of_job(rank, size, port, folder):
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(12.0).reshape(6, 2)
    swt.save(folder, {"o": Holder({"t": torch.ones(5), "d": distribute_tensor(whole, mesh, [Shard(0)]), "r": swt.PerRank(torch.ones(rank + 1))})})
    old = distribute_tensor(torch.zeros(3, 2), mesh, [Shard(0)])
    target = Holder({"t": torch.empty(0), "d": old, "r": swt.PerRank(torch.empty(0))})
    swt.load(folder, {"o": target})
    found = target.state["d"]
    assert isinstance(found, DTensor) and found.placements == old.placements
    ok = same(target.state["t"], torch.ones(5)) and same(target.state["r"], torch.ones(rank + 1)) and same(found.full_tensor(), whole)
    torch.distributed.destroy_process_group()
    return ok


def test_jobs(tmp_path):
    assert run_ranks(of_job, 2, free_port(), str(tmp_path / "x")) == [True, True]
