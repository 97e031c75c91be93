"""Loads states of torch whose names are nearly the same: exact names go first, and a message names the values that nothing
is there for."""

import collections
import random
from typing import Any

import numpy as np
import pytest

import shardwise as sw

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.nn as nn  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: E402

import shardwise.torch as swt  # noqa: E402
from shardwise.torch import _optimizers  # noqa: E402


def linear(value: float, size: int = 2) -> Any:
    made = nn.Linear(size, size, bias=False)
    nn.init.constant_(made.weight, value)
    return made


def adam(*modules: Any) -> Any:
    return torch.optim.Adam([p for m in modules for p in m.parameters()])


def stepped(optimizer: Any) -> Any:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


class Stateful:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_exact_names_go_before_those_without_wrappers(tmp_path):
    def net(value: float, **more: Any) -> Any:
        return nn.ModuleDict({"module": linear(value), **more})

    swt.save(tmp_path / "a", {"model": net(7.0)})
    own = nn.Module()
    own.module, own.weight = linear(0.0), nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(sw.InvalidArgument, match="1 name of the state is not there: 'model.weight'"):
        swt.load(tmp_path / "a", {"model": own})
    swt.load(tmp_path / "a", {"model": own}, strict=False)
    assert own.weight.sum() == 0 and own.module.weight[0, 0] == 7  # the one is not the other
    twice = net(0.0)
    twice.module.module = linear(0.0)
    swt.save(tmp_path / "b", {"model": {"weight": torch.full((2, 2), 3.0)}, "step": 1})
    with pytest.raises(sw.InvalidArgument, match="2 names of the state are not there: 'model.module.weight'"):
        swt.load(tmp_path / "b", {"model": twice, "step": 0}, unused="ignore")
    swt.load(tmp_path / "b", {"model": net(0.0), "step": 0})


def test_a_wrapper_with_values_of_its_own_keeps_both(tmp_path):
    class Headed(nn.DataParallel):
        def __init__(self, module: Any, head: Any) -> None:
            super().__init__(module)
            self.head = head

    def headed(value: float) -> Any:
        return Headed(nn.ModuleDict({"head": linear(value), "module": linear(value + 1)}), linear(value + 2))

    swt.save(tmp_path / "a", {"model": headed(1.0)})
    found = headed(5.0)
    swt.load(tmp_path / "a", {"model": found})
    assert [value[0, 0].item() for value in found.state_dict().values()] == [1, 2, 3]
    swt.save(tmp_path / "b", {"model": nn.DataParallel(nn.ModuleDict({"module": linear(4.0)}))})
    assert list(sw.open(tmp_path / "b")) == ["model.module.weight"]


@pytest.mark.parametrize("wrap", [checkpoint_wrapper, lambda m: checkpoint_wrapper(torch.compile(m, backend="eager")),
                                  lambda m: nn.DataParallel(checkpoint_wrapper(m))])  # fmt: skip
def test_activation_checkpointing_leaves_no_trace_in_names(tmp_path, wrap):
    def net(value: float, wrapped: bool) -> Any:
        return nn.Sequential(linear(value), wrap(linear(value)) if wrapped else linear(value))

    model = net(1.0, True)
    optimizer = stepped(adam(model))
    swt.save(tmp_path / "a", {"model": model, "optim": optimizer})
    assert {n for n in sw.open(tmp_path / "a") if "exp_avg_sq" in n} == {f"optim.state.{i}.weight.exp_avg_sq" for i in (0, 1)}
    for wrapped in (True, False):
        other = net(9.0, wrapped)
        fresh = adam(other)
        swt.load(tmp_path / "a", {"model": other, "optim": fresh})
        assert str(fresh.state_dict()) == str(optimizer.state_dict())
        assert [v.tolist() for v in other.state_dict().values()] == [v.tolist() for v in model.state_dict().values()]


def test_optimizers_are_matched_by_place_in_states_without_modules_alone(tmp_path):
    net = nn.ModuleDict({"a": linear(1.0), "b": linear(2.0)})
    swt.save(tmp_path / "names", {"model": net, "optim": stepped(adam(net))})
    other = nn.ModuleDict({"x": linear(3.0), "y": linear(4.0)})
    fresh = adam(other)
    with pytest.warns(UserWarning, match="nothing is there of 'model'"):
        swt.load(tmp_path / "names", {"model": other, "optim": fresh}, strict=False)
    assert fresh.state_dict()["state"] == {}  # no parameter of this name is there
    with pytest.raises(sw.InvalidArgument, match="'optim' has no parameter 'x.weight', 'y.weight'"):
        swt.load(tmp_path / "names", {"optim": fresh, "model": other}, unused="ignore")
    swt.load(tmp_path / "names", {"optim": fresh}, unused="ignore")
    assert len(fresh.state_dict()["state"]) == 2
    swt.save(tmp_path / "numbers", {"optim": stepped(adam(net))})
    fewer = adam(linear(1.0))
    for modules in ({}, {"model": other}):
        with pytest.raises(sw.InvalidArgument, match="'optim' has no parameter 0"):
            swt.load(tmp_path / "numbers", {"optim": fewer, **modules}, unused="ignore")
    swt.load(tmp_path / "numbers", {"optim": fewer}, strict=False)
    assert fewer.state_dict()["state"] == {}


def test_the_dtype_of_an_optimizers_state_is_kept(tmp_path):
    def with_wide_state(value: float) -> tuple[Any, Any]:
        net = linear(value).to(torch.bfloat16)
        optimizer = stepped(adam(net))
        for values in optimizer.state.values():
            for key in ("exp_avg", "exp_avg_sq"):
                values[key] = torch.full((2, 2), value + 0.001)
        return net, optimizer

    net, optimizer = with_wide_state(1.0)
    swt.save(tmp_path / "a", {"model": net, "optim": optimizer})
    other, target = with_wide_state(5.0)
    own = [values["exp_avg"] for values in target.state.values()]
    swt.load(tmp_path / "a", {"model": other, "optim": target})
    found = [values["exp_avg"] for values in target.state.values()]
    assert found[0] is own[0] and found[0].dtype == torch.float32 and found[0][0, 0] == torch.tensor(1.001)
    narrow = stepped(adam(other))
    with pytest.raises(sw.InvalidArgument, match=r"exp_avg' is torch.float32 \[2, 2\] there, torch.bfloat16 \[2, 2\] here"):
        swt.load(tmp_path / "a", {"model": other, "optim": narrow})
    assert other.weight[0, 0] == net.weight[0, 0] and all(v["exp_avg"].dtype == torch.bfloat16 for v in narrow.state.values())


def test_an_optimizer_of_many_parameters_is_looked_through_a_fixed_number_of_times(tmp_path, monkeypatch):
    calls = []
    whole = _optimizers.parameters_of
    monkeypatch.setattr(_optimizers, "parameters_of", lambda optimizer: calls.append(1) or whole(optimizer))
    counts = []
    for size in (3, 30):
        net = nn.ModuleList(linear(float(i)) for i in range(size))
        optimizer = stepped(adam(net))
        swt.save(tmp_path / str(size), {"model": net, "optim": optimizer})
        calls.clear()
        swt.load(tmp_path / str(size), {"model": net, "optim": optimizer})
        counts.append(len(calls))
    assert counts[0] == counts[1], counts


def test_modules_without_values_and_stateful_objects_with_none_of_their_names(tmp_path):
    swt.save(tmp_path / "a", {"model": linear(1.0), "loader": Stateful({"epoch": 3}), "step": 1})
    other = linear(2.0)
    for target in ({"model": nn.ReLU()}, {"loader": Stateful({"position": 0, "seed": torch.ones(1)})}):
        name, = target
        with pytest.raises(sw.InvalidArgument, match=f"of the state (is|are) not there: '{name}"):
            swt.load(tmp_path / "a", {**target, "step": 0}, unused="ignore")
        with pytest.raises(sw.InvalidArgument, match="found none of"):
            swt.load(tmp_path / "a", target, strict=False)
        with pytest.warns(UserWarning, match=f"nothing is there of '{name}'"):
            found = swt.load(tmp_path / "a", {**target, "step": 0}, strict=False)
        assert (found.tensors, found.objects) == (0, 1)
    for lazy in (Stateful({}), Stateful(None), Stateful({"epoch": 0, "more": 1})):
        swt.load(tmp_path / "a", {"model": other, "loader": lazy, "step": 0})
        assert lazy.state == {"epoch": 3}
    swt.save(tmp_path / "b", {"model": nn.ReLU(), "loader": Stateful({})})
    assert swt.load(tmp_path / "b", {"model": nn.ReLU(), "loader": Stateful({})}).objects == 2
    swt.save(tmp_path / "empty", {})
    for target in ({"model": other}, {"loader": Stateful({})}):
        with pytest.raises(sw.InvalidArgument, match="the checkpoint has no names"):
            swt.load(tmp_path / "empty", target, strict=False)
    assert swt.load(tmp_path / "empty", {}) == {}


def test_per_rank_values_of_one_name_and_within_stateful_objects(tmp_path):
    own = {"a.b": swt.PerRank({"x.y": torch.ones(1), "x": {"y": 2}}), "a": {"b": swt.PerRank(7)}}
    swt.save(tmp_path / "a", own)
    found = swt.load(tmp_path / "a", {"a.b": swt.PerRank(None), "a": {"b": swt.PerRank(None)}})
    assert found["a"]["b"] == 7 and found["a.b"] == {"x.y": torch.ones(1), "x": {"y": 2}}
    for taken in ({"s@rank0": 5}, {"s@rank0": torch.ones(2)}):
        with pytest.raises(sw.InvalidArgument, match="'s@rank0' twice.*PerRank value 's'"):
            swt.save(tmp_path / "b", {"s": swt.PerRank(1), **taken}, existing="replace")

    generator = random.Random(3)
    state = {"epoch": 1, "rng": swt.PerRank(generator.getstate()), "parts": [{"seen": swt.PerRank(torch.arange(3))}, 5]}
    for saved, fresh in ((state, {"epoch": 0, "rng": swt.PerRank(None), "parts": [{"seen": swt.PerRank(None)}, 0]}), (state, {}),
                         (swt.PerRank({"k": 1}), swt.PerRank(None)), ({"only": swt.PerRank(4)}, {"only": 0})):
        swt.save(tmp_path / "c", {"loader": Stateful(saved)}, existing="replace")
        target = Stateful(fresh)
        swt.load(tmp_path / "c", {"loader": target})
        found, expected = target.state, without_marks(saved)
        assert found.keys() == expected.keys() and all(str(found[key]) == str(expected[key]) for key in found)


def without_marks(tree: Any) -> Any:
    if isinstance(tree, swt.PerRank):
        return tree.value
    if isinstance(tree, dict):
        return {key: without_marks(value) for key, value in tree.items()}
    return [without_marks(value) for value in tree] if isinstance(tree, list) else tree


def test_fields_of_packed_records_and_other_views(tmp_path):
    def records() -> Any:
        return np.zeros((3, 4), [("tag", "i1"), ("x", "f4"), ("z", "c8"), ("n", "i2")])

    saved = records()
    for number, field in enumerate(("x", "z", "n")):
        saved[field] = np.arange(12).reshape(3, 4) + number
    arrays = {"x": saved["x"], "z": saved["z"][:, ::-2], "n": saved["n"].T}
    swt.save(tmp_path / "a", {**arrays, "each": [saved["x"][0], swt.PerRank(saved["x"][1])]})
    sw.save(tmp_path / "b", arrays)
    for found in (swt.load_state_dict(tmp_path / "a"), sw.load(tmp_path / "b")):
        assert all(found[name].tolist() == array.tolist() for name, array in arrays.items())
    for order in ("<", ">"):
        target = np.zeros((3, 4), [("tag", "i1"), ("x", f"{order}f4"), ("z", f"{order}c8"), ("n", f"{order}i2")])
        views = {"x": target["x"], "z": target["z"][:, ::-2], "n": target["n"].T}
        found = swt.load(tmp_path / "b", views)
        assert all(found[name] is view and view.tolist() == arrays[name].tolist() for name, view in views.items())
        assert not target["tag"].any()
    bits = torch.arange(24.0).reshape(4, 6)
    swt.save(tmp_path / "c", {"w": bits[::2, 1::3], "t": bits.T, "wide": torch.ones(1).expand(5)})
    into = torch.zeros(4, 6)
    swt.load(tmp_path / "c", {"w": into[1::2, ::3], "t": torch.zeros(6, 4), "wide": torch.zeros(5)})
    assert torch.equal(into[1::2, ::3], bits[::2, 1::3])
    with pytest.raises(sw.InvalidArgument, match=r"'wide' is a view here.*needed is its clone\(\)"):
        swt.load(tmp_path / "c", {"wide": torch.zeros(1).expand(5), "w": into[1::2, ::3]}, unused="ignore")


def test_texts_of_numpy_and_containers_of_other_classes(tmp_path):
    class OwnList(list[Any]):
        pass

    state = {"s": np.str_("a"), "k": {np.str_("x"): torch.ones(1)}, "l": OwnList([torch.ones(2), 1]),
             "d": collections.deque([np.bytes_(b"b")])}
    swt.save(tmp_path / "a", state)
    assert str(swt.load_state_dict(tmp_path / "a")) == str({"s": "a", "k": {"x": torch.ones(1)}, "l": [torch.ones(2), 1],
                                                           "d": collections.deque([b"b"])})


def test_what_safetensors_leave_out_is_filled_by_what_it_is_tied_to(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors, which this environment has not")

    def made(device="cpu", tied=True):
        with torch.device(device):
            model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(6, 4), "head": torch.nn.Linear(4, 6, bias=False)})
            if tied:
                model["head"].weight = model["embed"].weight
            return model

    model = made()
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    path = sw.import_model(tmp_path / "model.safetensors", tmp_path / "x")
    (kept,) = sw.load(path)
    other = {"embed.weight": "head.weight", "head.weight": "embed.weight"}
    for rename in ({"*": "model.*"}, {kept: f"model.{other[kept]}"}):  # either of the names is there
        for device in ("cpu", "meta"):
            target = made(device)
            loaded = swt.load(path, {"model": target}, rename=rename)
            assert loaded.missing == loaded.unused == [] and loaded.tensors == 1
            assert target["head"].weight is target["embed"].weight and torch.equal(target["head"].weight, model["head"].weight)
        with pytest.raises(sw.InvalidArgument, match="1 name of the state is not there|there is no such tensor"):
            swt.load(path, {"model": made(tied=False)}, rename=rename)
    target = made()
    loaded = swt.load(path, target.state_dict())  # in place
    assert loaded.missing == [] and torch.equal(target["head"].weight, model["head"].weight)
    apart = {name: tensor.clone() for name, tensor in made().state_dict().items()}
    with pytest.raises(sw.InvalidArgument, match="1 name of the state is not there"):
        swt.load(path, apart)
    with torch.no_grad():
        tied = {"first": torch.zeros(6, 4)}
        tied["second"], tied["view"] = tied["first"], tied["first"][:3]
    with pytest.raises(sw.InvalidArgument, match="1 name of the state is not there: 'view'"):  # a part is not the stored tensor
        swt.load(path, tied, rename={kept: "second"})


def test_a_plain_state_with_a_wrappers_prefix_is_told_how_to_load(tmp_path):
    weights = {"w": torch.ones(3), "b": torch.ones(2)}
    for prefix in ("module.", "_orig_mod."):
        swt.save(tmp_path / prefix, {prefix + name: tensor for name, tensor in weights.items()})
        with pytest.raises(sw.InvalidArgument) as told:
            swt.load(tmp_path / prefix, {"w": torch.zeros(3), "b": torch.zeros(2)})
        said = f'rename={{"{prefix}*": "*"}}'
        assert said in str(told.value)
        again = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        swt.load(tmp_path / prefix, again, rename={f"{prefix}*": "*"})
        assert torch.equal(again["w"], weights["w"])
    swt.save(tmp_path / "plain", weights)
    with pytest.raises(sw.InvalidArgument, match=r'rename={"\*": "module.\*"} puts'):
        swt.load(tmp_path / "plain", {"module.w": torch.zeros(3), "module.b": torch.zeros(2)})
