"""Tests save_async of torch: the saved values, the errors that it raises at once, and the memory of its copies."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import shardwise as sw

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import shardwise.torch as swt  # noqa: E402
from shardwise.torch import _staging  # noqa: E402


class Gate(sw.group.Group):
    """A group of one process whose saves wait until it is opened."""

    all: list["Gate"] = []

    def __init__(self) -> None:
        self.is_open = threading.Event()
        Gate.all.append(self)

    def agree(self, *arguments: Any) -> bytes:
        self.is_open.wait()
        return super().agree(*arguments)


@pytest.fixture(autouse=True)
def nothing_kept():
    _staging._pool.take()
    yield
    while Gate.all:
        Gate.all.pop().is_open.set()  # a failed test has left it
    _staging._pool.take()


def kept() -> dict[int, list[int]]:
    """Returns the addresses of the memory that the last save has left, by size."""
    return {size: sorted(piece.data_ptr() for piece in pieces) for size, pieces in _staging._pool._memory.items()}


def test_values_are_those_of_the_call(tmp_path):
    base = torch.arange(24.0).view(2, 3, 4)
    state = {
        "plain": base.clone(), "turned": base.clone().permute(2, 0, 1), "every other": torch.arange(9.0)[::2],
        "f8": base.to(torch.float8_e5m2), "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "one for all": torch.ones(3, 1).expand(3, 5),
        "empty": torch.zeros(0, 3), "scalar": torch.tensor(2.5), "conj": torch.tensor([1 + 2j, 3]).conj(), "mask": base > 5,
        "rng": swt.PerRank(torch.arange(5)), "nested": {"list": [1, 2], "with": [torch.ones(2), {"n": 3}]}}  # fmt: skip
    expected = {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}
    user = {"lr": [0.1]}
    gate = Gate()
    pending = swt.save_async(tmp_path / "a", state, user=user, group=gate)
    for name in expected:
        (state[name].view(torch.uint8) if name == "f8" else state[name]).zero_()
    state["rng"].value.zero_()
    state["nested"]["list"].append(3)
    state["nested"]["with"][0].zero_()
    state["nested"]["with"][1]["n"] = 4
    user["lr"].append(0.2)
    gate.is_open.set()
    pending.result()
    found = swt.load_state_dict(tmp_path / "a")
    for name, value in expected.items():
        assert torch.equal(*(t.double() if name == "f8" else t for t in (found[name], value))), name
    assert found["nested"]["list"] == [1, 2] and found["nested"]["with"][1]["n"] == 3
    assert torch.equal(found["nested"]["with"][0], torch.ones(2)) and torch.equal(found["rng@rank0"], torch.arange(5))
    with sw.open(tmp_path / "a") as c:
        assert c.user == {"lr": [0.1]}


def test_saves_under_way_at_once_share_no_memory(tmp_path):
    w = torch.full((1000,), 1.0)
    first, second = Gate(), Gate()
    saves = []
    for number, gate in enumerate((first, second)):
        w.fill_(number)
        saves.append(swt.save_async(tmp_path / str(number), {"w": w, "v": w + 10}, group=gate))
    w.fill_(7)
    for gate, pending in zip((second, first), reversed(saves)):
        gate.is_open.set()
        pending.result()
    for number in range(2):
        found = sw.load(tmp_path / str(number))
        assert (found["w"] == number).all() and (found["v"] == number + 10).all()


def test_the_memory_of_copies_is_used_again(tmp_path):
    state = {"w": torch.zeros(1000), "turned": torch.zeros(30, 50).t(), "same size": torch.ones(1000)}
    swt.save_async(tmp_path / "a", state).result()
    before = kept()
    assert {size: len(addresses) for size, addresses in before.items()} == {4000: 2, 6000: 1}
    swt.save_async(tmp_path / "b", state).result()
    assert kept() == before
    state["w"] = torch.ones(500)
    swt.save_async(tmp_path / "c", state).result()
    after = kept()
    assert {size: len(addresses) for size, addresses in after.items()} == {2000: 1, 4000: 1, 6000: 1}
    assert after[4000][0] in before[4000] and after[6000] == before[6000] and (sw.load(tmp_path / "c")["w"] == np.ones(500)).all()
    del state["turned"]
    swt.save_async(tmp_path / "d", state).result()
    assert kept() == {size: after[size] for size in (2000, 4000)}
    swt.save_async(tmp_path / "e", state, keep_copy=False).result()
    assert kept() == {}


def test_copies_lie_as_clones_do():
    base = torch.rand(2, 3, 4, 5)
    for tensor in (base, base.to(memory_format=torch.channels_last), base.permute(3, 1, 0, 2), base[:, 1:2],
                   base[..., :1].expand(2, 3, 4, 5)):
        staging = _staging.Staging()
        copy = staging.copy(tensor)
        staging.fill()
        assert copy.stride() == tensor.clone().stride() and torch.equal(copy, tensor)


def test_old_copies_make_room_for_new_ones():
    for size in (100, 200, 300, 300):
        _staging._pool._memory.setdefault(size, []).append(torch.empty(size, dtype=torch.uint8))

    def left(staging: Any) -> dict[int, int]:
        return {size: len(pieces) for size, pieces in staging._free.items() if pieces}

    staging = _staging.Staging()
    staging.copy(torch.ones(150, dtype=torch.uint8))
    assert left(staging) == {100: 1, 300: 2}  # the smallest that is large enough
    staging.copy(torch.ones(300, dtype=torch.uint8))
    assert left(staging) == {100: 1, 300: 1}  # which is used itself
    staging.copy(torch.ones(350, dtype=torch.uint8))
    assert left(staging) == {}


def test_a_save_that_fails_gives_its_memory_back(tmp_path):
    state = {"w": torch.zeros(1000), "v": torch.zeros(2000)}
    swt.save_async(tmp_path / "a", state).result()
    before = kept()
    with pytest.raises(FileExistsError):
        swt.save_async(tmp_path / "a", state).result()
    assert kept() == before
    for wrong, error in (({"o": object()}, TypeError), ({"s": torch.eye(3).to_sparse()}, sw.Unsupported)):
        with pytest.raises(error):
            swt.save_async(tmp_path / "b", {"w": state["w"], **wrong})
        assert kept() == before
    with pytest.raises(FileExistsError):
        swt.save_async(tmp_path / "a", state, keep_copy=False).result()
    assert kept() == {}
    assert os.listdir(tmp_path) == ["a"]


def test_memory_can_be_had_before_the_first_save(tmp_path):
    layer = torch.nn.Linear(10, 20)
    swt.prepare_async({"model": layer, "step": 0})
    before = kept()
    assert {size: len(addresses) for size, addresses in before.items()} == {800: 1, 80: 1}
    swt.save_async(tmp_path / "a", {"model": layer, "step": 1}).result()
    assert kept() == before


def test_memory_beforehand_leaves_training_as_it_is():
    def trained(prepare: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if prepare:
            swt.prepare_async({"model": model, "optim": optimizer})
        for _ in range(3):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(True), trained(False)))


def test_what_cannot_be_stored_is_told_at_once(tmp_path):
    wrong: list[tuple[dict[str, Any], Any]] = [({"o": object()}, None), ({"w": torch.ones(1)}, {"not": "JSON", "but": {1, 2}})]
    for state, user in wrong:
        with pytest.raises(TypeError):
            swt.save_async(tmp_path / "a", state, user=user)
    if hasattr(torch, "float4_e2m1fn_x2"):
        with pytest.raises(sw.Unsupported, match="'w' has dtype torch.float4"):
            swt.save_async(tmp_path / "a", {"w": torch.zeros(2, dtype=torch.float4_e2m1fn_x2)})
    assert os.listdir(tmp_path) == []


def test_a_rank_that_fails_says_so_at_once_and_the_others_hear_of_it(tmp_path):
    def rank(number: int) -> str:
        group = sw.group.from_files(tmp_path / "meet", number, 2)
        state = {"w": torch.ones(3), "o": object() if number == 1 else 1}
        if number == 1:
            with pytest.raises(TypeError, match="'o'"):
                swt.save_async(tmp_path / "a", state, group=group)
            return ""
        return str(swt.save_async(tmp_path / "a", state, group=group).exception())

    with ThreadPoolExecutor(2) as pool:
        told, _ = pool.map(rank, range(2))
    assert "rank 1" in told and "'o'" in told
    assert os.listdir(tmp_path) == ["meet"]


def test_a_thread_that_cannot_start_leaves_the_memory_of_the_copies(tmp_path, monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            swt.save_async(tmp_path / "a", {"w": torch.ones(5)})
    assert list(kept()) == [20]
    assert swt.save_async(tmp_path / "a", {"w": torch.ones(5)}).result() is not None
