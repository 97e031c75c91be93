"""Modules whose class or hooks load by code of their own get what torch's load_state_dict() gives them."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import shardwise as sw
import shardwise.torch as swt
from shardwise.torch._state import State


class Own(torch.nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("r", torch.zeros(shape or (3,)))
        self.w = torch.nn.Parameter(torch.zeros(shape or (3, 3)))


class Resizes(Own):
    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.r.resize_(state[prefix + "r"].shape)
        self.w = torch.nn.Parameter(torch.empty_like(state[prefix + "w"]))
        super()._load_from_state_dict(state, prefix, *rest)


class TakesRows(Own):
    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        for name in ("r", "w"):
            state[prefix + name] = state[prefix + name][: getattr(self, name).shape[0]]
        super()._load_from_state_dict(state, prefix, *rest)


class TurnsOld(Own):
    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if (metadata.get("version") or 0) < 2:
            state[prefix + "w"] = state[prefix + "w"].t()
        super()._load_from_state_dict(state, prefix, metadata, *rest)


class Empties(Own):
    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.w.data.zero_()
        super()._load_from_state_dict(state, prefix, *rest)


class KeepsLargest(Own):
    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.r.copy_(torch.maximum(self.r, state[prefix + "r"]))
        self.w.data.copy_(torch.minimum(self.w, state[prefix + "w"]))


class Hooked(Own):
    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(
            lambda module, state, prefix, *rest: state.update({prefix + "w": state[prefix + "w"].t()}))


class Whole(Own):
    def load_state_dict(self, state: Any, *rest: Any, **how: Any) -> Any:
        self.w.data.zero_()
        return super().load_state_dict(state, *rest, **how)


def observer() -> Any:
    from torch.ao.quantization import FakeQuantize, MovingAveragePerChannelMinMaxObserver

    return FakeQuantize(MovingAveragePerChannelMinMaxObserver)


def observed() -> Any:
    made = observer()
    made(torch.arange(12.0).reshape(4, 3))
    return made


CASES: dict[str, tuple[Any, Any]] = {
    "resizes": (lambda: Resizes(5, 2), Resizes),
    "takes rows": (lambda: TakesRows(10, 4), lambda: TakesRows(8, 4)), "torch.ao": (observed, observer),
    **{kind.__name__: (kind, kind) for kind in (TurnsOld, Empties, KeepsLargest, Hooked, Whole)}}


@pytest.mark.parametrize("wrap", ["alone", "inside", "compiled", "meta"])
@pytest.mark.parametrize("name", CASES)
def test_modules_load_as_from_torch(tmp_path: Any, name: str, wrap: str) -> None:
    if wrap == "meta" and name in ("torch.ao", "KeepsLargest"):
        pytest.skip("reads values that it has not")

    def wrapped(module: Any) -> Any:
        made = {"inside": lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(2), module),
                "compiled": lambda: torch.nn.Sequential(torch.compile(module))}
        return made.get(wrap, lambda: module)()

    saved, (right, found) = wrapped(CASES[name][0]()), (wrapped(CASES[name][1]()) for _ in range(2))
    with torch.no_grad():
        for at, tensor in enumerate([*saved.parameters(), *saved.buffers()]):
            if name != "torch.ao" and tensor.is_floating_point():
                tensor.copy_(torch.linspace(-at - 1, 9, tensor.numel()).reshape(tensor.shape))
    right.load_state_dict(copy.deepcopy(saved.state_dict()))
    swt.save(tmp_path / "c", {"m": saved})
    swt.load(tmp_path / "c", {"m": found.to("meta") if wrap == "meta" else found})
    for key, value in right.state_dict().items():
        given = found.state_dict()[key]
        assert torch.equal(given, value) and given.dtype == value.dtype, key


def test_what_such_a_module_refuses_is_refused(tmp_path: Any) -> None:
    swt.save(tmp_path / "c", {"m": Empties(5, 5)})
    with pytest.raises(RuntimeError, match="size mismatch"):  # of torch
        swt.load(tmp_path / "c", {"m": Empties()})
    with torch.no_grad():
        swt.save(tmp_path / "d", {"m": torch.nn.ParameterDict({"w": torch.ones(5), "r": torch.ones(3)})})
    module = Empties(5)
    swt.load(tmp_path / "d", {"m": module}, resize={"m.r": "pad"})
    assert module.w.tolist() == [1] * 5 and module.r.tolist() == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("versions", [{"m": {"": "2"}}, {"m": [2]}, {"m": {"": 1.5}}, [2], "x"])
def test_versions_that_no_save_has_written_are_one_clear_error(
        tmp_path: Any, monkeypatch: Any, versions: Any) -> None:
    monkeypatch.setattr(State, "versions", lambda state: versions)
    saved, module = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    with torch.no_grad():
        saved.weight.fill_(7)
    swt.save(tmp_path / "c", {"m": saved})
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(sw.Corrupt, match="the versions of the checkpoint's modules cannot be decoded: "):
        swt.load(tmp_path / "c", {"m": module})
    assert all(map(torch.equal, module.state_dict().values(), before.values()))
