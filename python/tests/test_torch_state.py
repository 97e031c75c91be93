"""The states of jobs as they are written: several modules, optimizers of any of them, wrappers, the meta device, numpy's
random state; and loads that would fill nothing."""

import collections
import json
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from processes import free_port, run_ranks

import shardwise as sw
from shardwise._checkpoint import save as _save
from shardwise._arrays.arrays import Sources

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402

import shardwise.torch as swt  # noqa: E402


def stepped(optimizer: Any, *modules: Any, extra: Any = 0) -> None:
    for _ in range(2):
        x = torch.randn(4, 3)
        for module in modules:
            x = module(x)
        (x + extra).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def same_state(a: Any, b: Any) -> bool:
    return str(a.state_dict()) == str(b.state_dict())


def linears(count: int, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    return [nn.Linear(3, 3) for _ in range(count)]


def adam(*modules: Any, lr: float = 1e-2) -> Any:
    return torch.optim.AdamW([p for m in modules for p in m.parameters()], lr=lr)


def test_one_optimizer_of_two_modules(tmp_path):
    enc, dec = linears(2, 1)
    optimizer = adam(enc, dec)
    stepped(optimizer, enc, dec)
    swt.save(tmp_path / "a", {"enc": enc, "nets": {"dec": dec}, "optim": optimizer})
    assert "optim.state.nets.dec.weight.exp_avg" in sw.open(tmp_path / "a")
    enc2, dec2 = linears(2, 2)
    other = adam(dec2, enc2, lr=7.0)  # in another order: names say which is which
    swt.load(tmp_path / "a", {"enc": enc2, "nets": {"dec": dec2}, "optim": other})
    assert same_state(enc, enc2) and same_state(dec, dec2)
    state, expected = (o.state_dict() for o in (other, optimizer))
    assert state["param_groups"][0]["lr"] == 1e-2
    assert [torch.equal(state["state"][i]["exp_avg"], expected["state"][(i + 2) % 4]["exp_avg"]) for i in range(4)] == [True] * 4


def test_an_optimizer_alone_and_of_adapters(tmp_path):
    base, adapter = linears(2, 1)
    optimizer = adam(adapter)
    stepped(optimizer, base, adapter)
    for name, state in (("alone", {}), ("adapter", {"model": adapter.state_dict()})):
        swt.save(tmp_path / name, {**state, "optim": optimizer})
        fresh_module, = linears(1, 2)
        fresh = adam(fresh_module, lr=3.0)
        swt.load(tmp_path / name, {**({"model": fresh_module.state_dict()} if state else {}), "optim": fresh})
        assert same_state(fresh, optimizer)
        swt.load(tmp_path / name, {"optim": fresh}, unused="ignore")  # its state is there
        assert same_state(fresh, optimizer) and (not state or same_state(fresh_module, adapter))
    found = swt.load_state_dict(tmp_path / "alone")["optim"]
    assert list(found["state"]) == [0, 1] and type(found["state"]) is dict


def test_by_names_and_by_numbers_each_load_the_other_way(tmp_path):
    net, = linears(1, 1)
    optimizer = adam(net)
    stepped(optimizer, net)
    swt.save(tmp_path / "names", {"model": net, "optim": optimizer})
    swt.save(tmp_path / "numbers", {"optim": optimizer})
    fresh_net, = linears(1, 2)
    fresh = adam(fresh_net)
    swt.load(tmp_path / "names", {"optim": fresh}, unused="ignore")
    assert same_state(fresh, optimizer)
    fresh = adam(fresh_net)
    swt.load(tmp_path / "numbers", {"optim": fresh, "model": fresh_net}, strict=False)
    assert same_state(fresh, optimizer)


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), amsgrad=True, capturable=False, foreach=False),
    lambda p: torch.optim.Adafactor(p), lambda p: torch.optim.LBFGS(p, lr=0.1)])  # fmt: skip
@pytest.mark.parametrize("with_module", [True, False])
def test_optimizers_of_any_state(tmp_path, make, with_module):
    net, = linears(1, 1)
    optimizer = make(list(net.parameters()))
    x = torch.randn(4, 3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    swt.save(tmp_path / "before", {"optim": optimizer, **({"model": net} if with_module else {})})
    for _ in range(2):
        optimizer.step(closure)
    swt.save(tmp_path / "after", {"optim": optimizer, **({"model": net} if with_module else {})})
    fresh_net, = linears(1, 2)
    fresh = make(list(fresh_net.parameters()))
    target = {"optim": fresh, **({"model": fresh_net} if with_module else {})}
    swt.load(tmp_path / "after", target)
    assert same_state(fresh, optimizer)
    swt.load(tmp_path / "before", target)
    assert fresh.state_dict()["state"] == {}  # as it was saved


def test_parameters_without_a_gradient_have_no_state_and_load(tmp_path):
    used, unused = linears(2, 1)
    net = nn.ModuleDict({"used": used, "unused": unused})
    optimizer = adam(net)
    stepped(optimizer, used)
    swt.save(tmp_path / "a", {"model": net, "optim": optimizer})
    fresh_net = nn.ModuleDict(dict(zip(("used", "unused"), linears(2, 2))))
    fresh = adam(fresh_net)
    swt.load(tmp_path / "a", {"model": fresh_net, "optim": fresh})
    assert same_state(fresh, optimizer) and len(fresh.state_dict()["state"]) == 2


def test_a_state_that_does_not_fit_changes_nothing(tmp_path):
    net, = linears(1, 1)
    extra = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([*net.parameters(), extra])
    stepped(optimizer, net, extra=extra)
    swt.save(tmp_path / "a", {"model": net, "optim": optimizer})
    fresh, = linears(1, 2)
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    fewer = adam(fresh)
    wide = nn.Parameter(torch.ones(5))
    wider = torch.optim.AdamW([*fresh.parameters(), wide])
    for wrong, why in ((fewer, "'optim.state.2.exp_avg'"), (wider, r"\[3\] there, its parameter \[5\] here")):
        with pytest.raises(sw.InvalidArgument, match=why):
            swt.load(tmp_path / "a", {"model": fresh, "optim": wrong})
        assert all(torch.equal(value, before[name]) for name, value in fresh.state_dict().items())
        assert wrong.state_dict()["state"] == {}
    extra2 = nn.Parameter(torch.ones(3))
    fits = torch.optim.AdamW([*fresh.parameters(), extra2])
    swt.load(tmp_path / "a", {"model": fresh, "optim": fits})
    assert same_state(fits, optimizer) and same_state(fresh, net)


def test_modules_at_any_depth(tmp_path):
    one, two = linears(2, 1)
    optimizer = adam(one)
    stepped(optimizer, one)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    swt.save(tmp_path / "a", {"train": {"model": one, "all": [two, {"optim": optimizer}], "at": (schedule, 3)}})
    one2, two2 = linears(2, 2)
    other = adam(one2)
    schedule2 = torch.optim.lr_scheduler.CosineAnnealingLR(other, 99)
    found = swt.load(tmp_path / "a", {"train": {"model": one2, "all": [two2, {"optim": other}], "at": (schedule2, 0)}})
    assert same_state(one, one2) and same_state(two, two2) and same_state(optimizer, other) and same_state(schedule, schedule2)
    assert found["train"]["at"] == (schedule2, 3) and found["train"]["all"][0] is two2


def test_what_a_load_has_filled_is_told(tmp_path):
    net, = linears(1, 1)
    swt.save(tmp_path / "a", {"model": net, "step": 3, "extra": torch.ones(2)})
    other, head = linears(2, 2)
    with pytest.warns(UserWarning, match="nothing is there of 'head'"):
        found = swt.load(tmp_path / "a", {"model": other, "head": head, "step": 0}, strict=False)
    assert (found.tensors, found.objects, found.bytes) == (2, 1, 4 * 12)
    assert found.missing == ["head.weight", "head.bias"] and found.unused == ["extra"]
    with pytest.warns(UserWarning, match="nothing is there of 'lr'"):
        swt.load(tmp_path / "a", {"model": other, "lr": 1}, strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        swt.load(tmp_path / "a", {"model": other}, strict=False)  # all values of the target are there


def test_a_load_that_fills_nothing_is_an_error(tmp_path):
    net, = linears(1, 1)
    swt.save(tmp_path / "a", {"model": net})
    for target in ({"modle": net}, {"a": {"b": net}}, {"optim": adam(net)}, {"n": 1}, {}):
        for strict in (True, False):
            with pytest.raises(sw.InvalidArgument, match="none of the.*the checkpoint has 'model'"):
                swt.load(tmp_path / "a", target, strict=strict)


def test_modules_on_the_meta_device_get_memory(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight
            self.register_buffer("seen", torch.arange(3.0))

        def get_extra_state(self) -> Any:
            return {"version": 3}

        def set_extra_state(self, state: Any) -> None:
            self.extra = state

    net = Tied()
    swt.save(tmp_path / "a", {"model": net})
    with torch.device("meta"):
        other = Tied()
    swt.load(tmp_path / "a", {"model": other})
    assert str(other.state_dict()) == str(net.state_dict()) and other.a.weight is other.b.weight and other.extra == {"version": 3}
    with torch.device("meta"):
        other, more = Tied(), nn.Linear(3, 3)
        more.register_buffer("cache", torch.ones(2), persistent=False)
    for target, why in (({"model": dict(other.state_dict())}, "'model.a.weight' is on the meta device"),
                        ({"model": other, "more": more}, "'more.weight' is on the meta device"),
                        ({"model": other, "more": more}, "'more' has buffers.*cache"),
                        ({"model": other, "optim": adam(other)}, "optim")):
        for strict in (True, False):
            with pytest.raises(sw.InvalidArgument, match=why):
                swt.load(tmp_path / "a", target, strict=strict)
        assert other.a.weight.is_meta
    swt.save(tmp_path / "b", {"w": torch.ones(2), "step": 1})
    with pytest.raises(sw.InvalidArgument) as caught:  # a refused value is not listed as left over, too
        swt.load(tmp_path / "b", {"w": torch.ones(2, device="meta"), "step": 0})
    assert str(caught.value) == (f"checkpoint {tmp_path / 'b'} does not fit the state: 1 fault: 'w' is on the meta device, where it has no "
                                 "memory to be filled: needed is a tensor with memory, or a module, or None")
    with pytest.raises(sw.InvalidArgument, match="meta"):
        swt.load_state_dict(tmp_path / "a", device="meta")


def test_wrappers_leave_no_trace_in_names(tmp_path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), RANK="0", WORLD_SIZE="1")
    def compiled(module: Any) -> Any:
        return torch.compile(module, backend="eager")

    parallel = nn.parallel.DistributedDataParallel
    wrapped = (lambda a, b: parallel(nn.Sequential(a, b)), lambda a, b: compiled(nn.Sequential(a, b)),
               lambda a, b: nn.DataParallel(nn.Sequential(a, b)), lambda a, b: parallel(compiled(nn.Sequential(a, b))),
               lambda a, b: nn.Sequential(a, compiled(b)))
    dist.init_process_group("gloo")
    try:
        for wrapped_of in wrapped:
            model, target = wrapped_of(*linears(2, 3)), wrapped_of(*linears(2, 4))
            optimizer = adam(model)
            stepped(optimizer, model)
            swt.save(tmp_path / "a", {"model": model, "optim": optimizer}, existing="replace")
            assert {n.rsplit(".", 1)[0] for n in sw.open(tmp_path / "a") if n.startswith("model.")} == {"model.0", "model.1"}
            plain = nn.Sequential(*linears(2, 1))
            fresh = adam(plain)
            swt.load(tmp_path / "a", {"model": plain, "optim": fresh})
            assert same_state(fresh, optimizer)
            swt.save(tmp_path / "b", {"model": plain}, existing="replace")
            swt.load(tmp_path / "b", {"model": target})
            assert [v.tolist() for v in target.state_dict().values()] == [v.tolist() for v in model.state_dict().values()]
    finally:
        dist.destroy_process_group()


def test_names_with_prefixes_of_wrappers_still_load(tmp_path):
    net = nn.Sequential(*linears(2, 1))
    for prefix in ("module.", "_orig_mod.", "module._orig_mod."):
        swt.save(tmp_path / "a", {"model": {prefix + name: value for name, value in net.state_dict().items()}}, existing="replace")
        plain = nn.Sequential(*linears(2, 2))
        swt.load(tmp_path / "a", {"model": plain})
        assert same_state(net, plain)
        compiled = torch.compile(nn.Sequential(*linears(2, 3)), backend="eager")
        swt.load(tmp_path / "a", {"model": compiled})
        assert [v.tolist() for v in compiled.state_dict().values()] == [v.tolist() for v in net.state_dict().values()]


def test_random_states_of_all_kinds(tmp_path):
    import random

    np.random.seed(3)
    state = {"numpy": np.random.get_state(), "python": random.getstate(), "torch": torch.get_rng_state(),
             "generator": np.random.default_rng(5).bit_generator.state}
    swt.save(tmp_path / "a", {"rng": swt.PerRank(state), "alike": state})
    expected = np.random.rand(), random.random(), torch.rand(1).item()
    for found in (swt.load(tmp_path / "a", {"rng": swt.PerRank(None)}, unused="ignore")["rng"],
                  swt.load_state_dict(tmp_path / "a")["alike"]):
        np.random.set_state(found["numpy"])
        random.setstate(found["python"])
        torch.set_rng_state(found["torch"])
        assert (np.random.rand(), random.random(), torch.rand(1).item()) == expected
        assert found["generator"] == state["generator"]


def test_arrays_of_numpy_in_a_target_are_filled_in_place(tmp_path):
    w = np.arange(6.0).reshape(2, 3)
    swt.save(tmp_path / "a", {"w": w, "t": torch.ones(2)})
    target, turned = np.zeros((2, 3)), np.zeros((3, 2)).T
    assert swt.load(tmp_path / "a", {"w": target, "t": np.zeros(2, np.float32)})["w"] is target and (target == w).all()
    swt.load(tmp_path / "a", {"w": turned}, unused="ignore")
    assert (turned == w).all()
    read_only = np.zeros((2, 3))
    read_only.flags.writeable = False
    assert (swt.load(tmp_path / "a", {"w": read_only}, unused="ignore")["w"] == w).all() and read_only.sum() == 0
    with pytest.raises(sw.InvalidArgument, match="'w' is float64"):
        swt.load(tmp_path / "a", {"w": np.zeros((2, 3), np.float32)}, unused="ignore")
    assert sw.load(tmp_path / "a")["w"].shape == (2, 3)


def test_what_is_no_state_is_said(tmp_path):
    with pytest.raises(sw.InvalidArgument, match='Linear, needed is a dict by names, as {"model": model}'):
        swt.save(tmp_path / "a", nn.Linear(2, 2))
    with pytest.raises(TypeError, match="'o'.*cannot be stored: needed are"):
        swt.save(tmp_path / "a", {"o": [object()]})


def test_checkpoints_without_kinds_of_containers_load_as_before(tmp_path):
    """Reads states as earlier versions, which stored no kinds, have written them."""
    net, = linears(1, 1)
    optimizer = adam(net)
    stepped(optimizer, net)
    state = optimizer.state_dict()
    sources = Sources()
    paths: dict[str, Any] = {"groups": ["optim", "param_groups"], "l.0": ["l", 0], "l.1": ["l", 1]}
    arrays = {"l.0": np.ones(1, np.float32)}
    for number, values in state["state"].items():
        for key, value in values.items():
            arrays[f"optim.state.{number}.{key}"] = value.numpy()
            paths[f"optim.state.{number}.{key}"] = ["optim", "state", number, key]
    for name, array in arrays.items():
        sources.add_array(name, array)
    plan = _save.Plan(sources, {"groups": state["param_groups"], "l.1": 5}, extra={"paths": paths})
    plan.objects = _save.encode_objects(plan.objects)
    _save.write_together(_save.Call(), str(tmp_path / "a"), plan, _save.single(), [])
    fresh = adam(linears(1, 2)[0])
    found = swt.load(tmp_path / "a", {"optim": fresh, "l": None})
    assert same_state(fresh, optimizer) and type(found["l"]) is list and found["l"][1] == 5
    assert type(swt.load(tmp_path / "a", {"l": (torch.zeros(1), 0)}, unused="ignore")["l"]) is tuple


def on_two_ranks(tmp_path: Any, state_of: Any, **options: Any) -> list[str]:
    def rank(number: int) -> str:
        group = sw.group.from_files(tmp_path / f"meet{options.get('meet', '')}", number, 2)
        own = {key: value[number] if isinstance(value, tuple) else value for key, value in options.items() if key != "meet"}
        try:
            swt.save(tmp_path / "a", state_of(number), group=group, existing="replace", **own)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(rank, range(2)))


def test_what_rank_0_finds_skipped_on_all_ranks(tmp_path):
    def rank(number: int, meet: str) -> sw.SaveStats:
        group = sw.group.from_files(tmp_path / meet, number, 2)
        return swt.save(tmp_path / "a", {"w": torch.full((3,), len(meet))}, group=group, existing="skip")

    for meet, skipped in (("1", False), ("22", True)):
        with ThreadPoolExecutor(2) as pool:
            stats = list(pool.map(rank, range(2), (meet, meet)))
        assert [s.skipped for s in stats] == [skipped] * 2 and stats[1].path == str(tmp_path / "a")
    assert swt.load(tmp_path / "a", {"w": torch.zeros(3, dtype=torch.int64)})["w"].tolist() == [1, 1, 1]


def test_what_differs_between_ranks_is_told_to_both(tmp_path):
    give = "give a value that each rank has of its own as PerRank(value)"
    for meet, (own, said) in enumerate((
            ([torch.zeros(3), torch.zeros(4)], f"tensor 'w' is f32 [4] on rank 1 and f32 [3] on rank 0: {give}"),
            ([torch.zeros(3), torch.zeros(3).half()], f"tensor 'w' is f16 [3] on rank 1 and f32 [3] on rank 0: {give}"),
            ([torch.zeros(3), torch.ones(3)], f"tensor 'w' of rank 1 is not that of rank 0: {give}, and replicas=\"trust\" does not compare tensors"),
            ([1, 2], "object 'w' differs between rank 0 and rank 1: a value that each rank has of its own is given as PerRank(value)"))):
        first, second = on_two_ranks(tmp_path, lambda rank: {"w": own[rank]}, meet=meet)
        assert first == f"InvalidArgument: {said}"
        assert second == f"InvalidArgument: save {tmp_path / 'a'}: rank 0: {said}"


def test_a_tensor_that_is_tied_on_one_rank_alone(tmp_path):
    a = torch.arange(4.0)
    told = on_two_ranks(tmp_path, lambda rank: {"a": a, "b": torch.full((4,), 7.0) if rank else a}, meet=0)
    assert all("tensor 'b' of rank 1 is not that of rank 0" in text for text in told) and not (tmp_path / "a").exists()
    told = on_two_ranks(tmp_path, lambda rank: {"a": a, "b": a if rank else torch.full((4,), 7.0)}, meet=1)
    assert all("tensor 'b' of rank 1 is not that of rank 0" in text for text in told)
    assert on_two_ranks(tmp_path, lambda rank: {"a": a, "b": a.clone() if rank else a}, meet=2) == ["", ""]
    assert swt.load_state_dict(tmp_path / "a")["b"].tolist() == [0, 1, 2, 3] and "aliases" not in sw.open(tmp_path / "a").document
    assert on_two_ranks(tmp_path, lambda rank: {"a": a, "b": a, **({"c": a} if rank else {})}, meet=3) == ["", ""]
    assert sw.open(tmp_path / "a").document["aliases"] == {"b": "a", "c": "a"}
    told = on_two_ranks(tmp_path, lambda rank: {"a": a, "b": torch.full((4,), 7.0) if rank else a}, meet=4, replicas="trust")
    assert told == ["", ""] and sw.verify(tmp_path / "a")
    with sw.open(tmp_path / "a") as c:
        assert sorted(c) == ["a", "b"] and "aliases" not in c.document


def test_replicas_that_are_compared_on_one_rank_alone(tmp_path):
    told = on_two_ranks(tmp_path, lambda _: {"w": torch.ones(3)}, replicas=("check", "trust"))
    assert all("'check'" in text and "'trust'" in text and "rank 1" in text for text in told), told


def test_containers_of_other_kinds_on_each_rank(tmp_path):
    told = on_two_ranks(tmp_path, lambda rank: {"l": (torch.ones(1), 2) if rank else [torch.ones(1), 2]})
    assert all('the container at ["l"] is tuple on rank 1 and list on rank 0' in text for text in told)


def save_tied(rank: int, size: int, port: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (size,))
    one_row = distribute_tensor(torch.ones(1, 3), mesh, [Shard(0)])  # rank 1 has no part of it
    net = nn.Sequential(*linears(2, 1))
    optimizer_of_plain = adam(net)
    stepped(optimizer_of_plain, net)
    swt.save(folder + "/plain", {"model": net, "optim": optimizer_of_plain})
    swt.save(folder + "/tied", {"a": one_row, "b": one_row})
    assert sw.open(folder + "/tied").document["aliases"] == {"b": "a"}

    with torch.device("meta"):
        other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    for layer in (*other, other):
        fully_shard(layer, mesh=mesh)
    swt.load(folder + "/plain", {"model": other}, unused="ignore")
    optimizer = adam(other)
    swt.load(folder + "/plain", {"model": other, "optim": optimizer})
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter.full_tensor(), net.state_dict()[name]), name
    for number, values in optimizer.state_dict()["state"].items():
        assert torch.equal(values["exp_avg"].full_tensor(), optimizer_of_plain.state_dict()["state"][number]["exp_avg"])
    other(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    alone = adam(other)
    swt.save(folder + "/alone", {"optim": optimizer})
    swt.load(folder + "/alone", {"optim": alone})
    for values, expected in zip(alone.state_dict()["state"].values(), optimizer.state_dict()["state"].values()):
        assert torch.equal(values["exp_avg"].to_local(), expected["exp_avg"].to_local())
    dist.barrier()
    dist.destroy_process_group()


def test_fsdp2_on_the_meta_device_and_tied_tensors_without_elements(tmp_path):
    run_ranks(save_tied, 2, free_port(), str(tmp_path))


def test_kinds_are_readable_in_the_manifest(tmp_path):
    swt.save(tmp_path / "a", {"t": (torch.ones(1), 1), "o": collections.OrderedDict(x=torch.ones(1)), "d": {"x": torch.ones(2)}})
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert json.dumps(manifest["objects"]["containers"]) == json.dumps({'["t"]': "tuple", '["o"]': "OrderedDict"})


def test_the_state_of_another_optimizer_is_refused(tmp_path):
    (net,) = linears(1, 1)
    swt.save(tmp_path / "a", {"net": net, "optim": torch.optim.SGD(net.parameters(), lr=0.5)})
    optimizer = adam(net)
    with pytest.raises(sw.InvalidArgument, match="'optim' is of another optimizer: group 0 has no 'amsgrad', 'betas', .* there, and "
                                                 "no 'dampening', 'momentum', 'nesterov' here"):
        swt.load(tmp_path / "a", {"net": net, "optim": optimizer})
    assert "betas" in optimizer.param_groups[0] and optimizer.param_groups[0]["lr"] == 1e-2


def test_words_for_calls_as_those_of_torch(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "w.pt")
    with pytest.raises(sw.NotFound, match=r"a file of torch.save\(\): swt.save\(.*weights_only=True\)\) makes a checkpoint of it"):
        sw.load(tmp_path / "w.pt")
    swt.save(tmp_path / "a", torch.load(tmp_path / "w.pt", weights_only=True))
    assert swt.load(tmp_path / "a")["w"].tolist() == [1] * 3
    with pytest.raises(sw.InvalidArgument, match=r"is torch.nn.modules.linear.Linear, needed is.*or model.state_dict\(\)"):
        swt.load(tmp_path / "a", nn.Linear(3, 3))
    for save in (sw.save, swt.save):
        with pytest.raises(TypeError, match="save: the path is dict, needed is a text or a pathlib.Path: the path comes first, as in save\\(path, state\\)$"):
            save({"w": torch.ones(3)}, "a")


@pytest.mark.parametrize("kind, options", [
    (torch.optim.AdamW, {"lr": 5e-4, "weight_decay": 0.25, "betas": (0.5, 0.75), "initial_lr": 1e-3}),
    (torch.optim.SGD, {"lr": 0.125, "momentum": 0.5, "nesterov": True}),
    (torch.optim.Adam, {"lr": torch.tensor(0.25), "note": "no decay"})])
def test_groups_without_parameters_have_their_options_again(tmp_path, kind, options):
    def made(last):
        module = torch.nn.Linear(3, 2)
        groups = [{"params": [], **options, "lr": 2.0}, {"params": list(module.parameters())}, {"params": [], **last}]
        return module, kind(groups, lr=0.1)

    module, optimizer = made(options)
    module(torch.ones(3)).sum().backward()
    optimizer.step()
    swt.save(tmp_path / "a", {"model": module, "optim": optimizer})
    found, target = made({"lr": 77.0})
    swt.load(tmp_path / "a", {"model": found, "optim": target})
    expected = made({"lr": 77.0})[1]
    expected.load_state_dict(optimizer.state_dict())
    assert target.state_dict()["param_groups"] == expected.state_dict()["param_groups"]
    assert target.param_groups[0]["lr"] == 2.0 and target.param_groups[2]["lr"] == options["lr"]


def test_a_group_without_parameters_that_is_not_stored_is_said(tmp_path):
    module = torch.nn.Linear(3, 2)
    swt.save(tmp_path / "a", {"model": module, "optim": torch.optim.SGD(module.parameters(), lr=0.1)})
    target = torch.optim.SGD([{"params": list(module.parameters())}, {"params": []}], lr=0.2)
    with pytest.raises(sw.InvalidArgument, match="no group without parameters for the optimizer's group 1"):
        swt.load(tmp_path / "a", {"model": module, "optim": target})


@pytest.mark.parametrize("ranks, absent, names", [(2, "rank 1", 2), (3, "ranks 1 to 2", 4)])
def test_values_of_ranks_that_are_no_more_are_said(tmp_path, ranks, absent, names):
    def save(rank):
        group = sw.group.from_files(tmp_path / "group", rank, ranks)
        swt.save(tmp_path / "a", {"own": swt.PerRank(torch.full((2,), float(rank))), "at": swt.PerRank({"n": rank})}, group=group)

    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(save, range(ranks)))
    with pytest.warns(UserWarning, match=f"'own' was saved by {ranks} ranks, found are 1: the values of {absent} are not used"):
        found = swt.load(tmp_path / "a", {"own": swt.PerRank(None), "at": swt.PerRank(None)})
    assert found["own"].tolist() == [0, 0] and found["at"] == {"n": 0}
    assert len(found.unused) == names and all("@rank0" not in name for name in found.unused), found.unused
