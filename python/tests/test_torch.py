"""Saves and loads with torch: DCP storage, plain save and load, on one process and on several."""

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest
from processes import free_port, run_ranks

import shardwise as sw

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import torch.nn as nn  # noqa: E402

import shardwise.torch as swt  # noqa: E402

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64",
          "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
          "float8_e8m0fnu"]  # fmt: skip


def bits(dtype: Any) -> Any:
    raw = torch.arange(2 if dtype == torch.bool else 256, dtype=torch.uint8)
    return raw.view(dtype)


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.contiguous().reshape(-1).view(torch.uint8),
                                                                    b.contiguous().reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_bit_for_bit(tmp_path, name):
    t = bits(getattr(torch, name))
    swt.save(tmp_path / "a", {"w": t})
    assert same(swt.load_state_dict(tmp_path / "a")["w"], t)
    target = torch.zeros_like(t.view(torch.uint8)).view(t.dtype)
    swt.load(tmp_path / "a", {"w": target})
    assert same(target, t)
    dcp.save({"w": t}, storage_writer=swt.StorageWriter(tmp_path / "b"))
    target = torch.zeros_like(t.view(torch.uint8)).view(t.dtype)
    dcp.load({"w": target}, storage_reader=swt.StorageReader(tmp_path / "b"))
    assert same(target, t)


def test_odd_tensors(tmp_path):
    base = torch.arange(6.0).view(2, 3)
    state = {"s": torch.tensor(3.5), "e": torch.zeros(0, 3), "t": base.t(), "x": torch.ones(1).expand(4),
             "g": torch.ones(2, requires_grad=True), "a": base, "b": base, "conj": torch.tensor([1 + 2j, 3]).conj(),
             "neg": torch.tensor([1 + 2j]).conj().imag, "step": base[::1, ::2]}
    swt.save(tmp_path / "a", state)
    found = swt.load_state_dict(tmp_path / "a")
    for name, value in state.items():
        assert torch.equal(found[name], value.detach()), name
    assert sum(t.nbytes for n, t in sw.open(tmp_path / "a").items() if n in ("a", "b")) == 2 * 24
    assert sw.open(tmp_path / "a").document["aliases"] == {"b": "a"}  # stored once
    for bad, why in [(torch.zeros(2, device="meta"), "meta"), (torch.eye(3).to_sparse(), "layout"),
                     (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "'bad' is nested"),
                     (torch.zeros(2, dtype=torch.float4_e2m1fn_x2) if hasattr(torch, "float4_e2m1fn_x2") else None, "float4")]:
        if bad is not None:
            with pytest.raises(NotImplementedError, match=why):
                swt.save(tmp_path / "b", {"bad": bad})
    assert os.listdir(tmp_path) == ["a"]


def test_objects_and_trees_without_pickle(tmp_path):
    state = {"o": {"betas": (0.9, 0.999), 1: {"x": None}}, "l": [torch.ones(1), {"y": torch.zeros(2), "n": 5}], "t": torch.bfloat16,
             "d": torch.device("cpu"), "size": torch.Size([2, 3]), "e": {}, "nan": float("nan")}
    swt.save(tmp_path / "a", state)
    found = swt.load_state_dict(tmp_path / "a")
    assert found["o"] == state["o"] and found["t"] is torch.bfloat16 and found["d"] == torch.device("cpu")
    assert type(found["l"]) is list and torch.equal(found["l"][0], torch.ones(1)) and found["l"][1]["n"] == 5
    assert type(found["size"]) is torch.Size and found["e"] == {} and found["nan"] != found["nan"]
    for file in (tmp_path / "a").iterdir():
        assert b"PK\x03\x04" not in file.read_bytes() and b"\x80\x02}" not in file.read_bytes()
    with pytest.raises(TypeError, match="'o'"):
        swt.save(tmp_path / "b", {"o": object()})
    with pytest.raises(TypeError, match="'w' is torch.Tensor.*shardwise.torch.save"):
        sw.save(tmp_path / "b", {"w": torch.ones(2, dtype=torch.bfloat16)})


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(10, 14, bias=False), nn.Linear(14, 10), nn.Linear(10, 14, bias=False)
        self.head.weight = self.a.weight
        self.register_buffer("seen", torch.zeros(5, dtype=torch.bfloat16))

    def forward(self, x: Any) -> Any:
        return self.head(self.b(torch.relu(self.a(x))))

    def get_extra_state(self) -> Any:
        return {"version": 3}

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def trained(seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(2):
        net(torch.randn(4, 10)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


def test_modules_and_optimizers(tmp_path):
    net, optimizer = trained(1)
    other, other_optimizer = trained(2)
    pending = swt.save_async(tmp_path / "a", {"model": net, "optim": optimizer, "step": 2})
    was = {k: v.clone() for k, v in net.state_dict().items() if isinstance(v, torch.Tensor)}
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    pending.result()
    found = swt.load(tmp_path / "a", {"model": other, "optim": other_optimizer, "step": None})
    assert found["step"] == 2 and other.extra == {"version": 3}
    assert all(torch.equal(v, was[k]) for k, v in other.state_dict().items() if isinstance(v, torch.Tensor))
    assert str(other_optimizer.state_dict()) == str(optimizer.state_dict())
    # DCP has a name for each option of an optimizer.
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    dcp.save({"optim": get_optimizer_state_dict(net, optimizer)}, storage_writer=swt.StorageWriter(tmp_path / "b"))
    fresh = torch.optim.AdamW(other.parameters(), lr=7.0)
    swt.load(tmp_path / "b", {"optim": fresh, "model": other}, strict=False, unused="error")
    assert str(fresh.state_dict()) == str(optimizer.state_dict())


def test_every_misfit_is_in_one_error(tmp_path):
    swt.save(tmp_path / "a", {"w": torch.ones(4, 2), "extra": torch.ones(3), "n": {"a": torch.ones(1), "o": 5}})
    target = torch.zeros(4, 2)
    with pytest.raises(sw.InvalidArgument) as error:
        swt.load(tmp_path / "a", {"w": torch.zeros(4, 3), "extra": torch.zeros(3, dtype=torch.bfloat16), "nope": target})
    for word in ("4 faults", "'w'", "'extra'", "'nope'", "'n.a', 'n.o'"):
        assert word in str(error.value)
    assert swt.load(tmp_path / "a", {"w": target, "nope": 3}, strict=False)["nope"] == 3 and target[0, 0] == 1
    with pytest.warns(UserWarning, match="extra"):
        swt.load(tmp_path / "a", {"w": target}, unused="warn")
    assert set(swt.load(tmp_path / "a", {"n": {}}, unused="ignore")["n"]) == {"a", "o"}  # filled, not skipped
    with pytest.raises(sw.InvalidArgument, match="a tensor there"):
        swt.load(tmp_path / "a", {"w": 3}, unused="ignore")
    reader = swt.StorageReader(tmp_path / "a")
    with pytest.raises(BaseException, match="dtypes differ"):
        dcp.load({"w": torch.zeros(4, 2, dtype=torch.int32)}, storage_reader=reader)
    with pytest.warns(UserWarning, match="extra"):
        dcp.load({"w": target}, storage_reader=swt.StorageReader(tmp_path / "a"))
    with pytest.raises(BaseException, match="extra"):
        dcp.load({"w": target}, storage_reader=swt.StorageReader(tmp_path / "a", unused="error"))
    cast = torch.zeros(4, 2, dtype=torch.bfloat16)
    dcp.load({"w": cast}, storage_reader=swt.StorageReader(tmp_path / "a", cast=True, unused="ignore"))
    assert cast[0, 0] == 1


PEAK = """
import sys, torch, shardwise.torch as swt
def peak():  # getrusage() begins with the peak of the process that started this one
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1])
state = {f"w{i}": torch.full((16, 1 << 20), -1.0).t() for i in range(8)}
swt.load(sys.argv[1], {"small": torch.zeros(3, 2).t()}, strict=False)
before = peak()
swt.load(sys.argv[1], state, strict=False)
print(peak() - before, sum(int(t.sum(dtype=torch.float64)) for t in state.values()))
"""


def test_what_passes_through_the_host_takes_256_mib_at_most(tmp_path):
    w = torch.zeros(1 << 20, 16)
    w[-1, -1] = 1
    swt.save(tmp_path / "a", {"small": torch.ones(2, 3), **{f"w{i}": w + i for i in range(8)}})
    done = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path / "a")], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    grown, total = map(int, done.stdout.split())
    assert total == 8 + 28 * w.numel()
    assert grown <= (256 + 64) << 10, f"{grown} KiB more, for 512 MiB of tensors of other strides"


def test_the_writer_is_used_again_and_pickles(tmp_path):
    writer = swt.StorageWriter(tmp_path / "a", codec="none")
    dcp.save({"w": torch.ones(1)}, storage_writer=writer)
    with pytest.raises(BaseException, match="already there"):
        dcp.save({"w": torch.zeros(1)}, storage_writer=writer)
    with pytest.raises(BaseException, match="cannot be stored"):
        dcp.save({"o": object()}, checkpoint_id=tmp_path / "c", storage_writer=writer)
    writer.close()
    dcp.save({"w": torch.zeros(1)}, checkpoint_id=tmp_path / "b", storage_writer=pickle.loads(pickle.dumps(writer)))
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    dcp.save({"w": torch.zeros(1)}, storage_writer=swt.StorageWriter(tmp_path / "a", existing="replace"))
    assert sw.load(tmp_path / "a")["w"][0] == 0
    with pytest.raises(ValueError):
        swt.StorageWriter(existing="perhaps")


def start(rank: int, size: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)


def layouts(size: int) -> tuple[Any, list[Any]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("a", "b"))
    s, r, strided = Shard, Replicate(), lambda n: _StridedShard(0, split_factor=n)
    return mesh, [[s(0), s(1)], [s(0), s(0)], [s(1), s(0)], [r, s(1)], [s(0), r], [r, r], [strided(2), s(0)], [strided(2), r],
                  [strided(3), r], [s(0), strided(2)]]


SHAPES = [(7, 5), (8, 6), (1, 3), (2, 2), (0, 3), (12, 1)]


def tensors_of(size: int, filled: bool) -> dict[str, Any]:
    from torch.distributed.tensor import distribute_tensor

    mesh, all_placements = layouts(size)
    found = {}
    for i, placements in enumerate(all_placements):
        for j, shape in enumerate(SHAPES):
            full = torch.arange(float(shape[0] * shape[1])).reshape(shape) if filled else torch.full(shape, -1.0)
            found[f"t{i}.{j}"] = distribute_tensor(full, mesh, placements, src_data_rank=None)
    return found


def save_layouts(rank: int, size: int, port: int, folder: str) -> None:
    start(rank, size, port)
    state = {"lay": tensors_of(size, True), "plain": torch.full((300, 300), 2.5), "rng": swt.PerRank(torch.full((3,), float(rank))),
             "pos": swt.PerRank({"at": rank}), "empty": torch.zeros(0, 2), **({"stage": torch.ones(4)} if rank == 1 else {})}
    swt.save(folder + "/a", state)
    for bad, why in [({"x": torch.full((2,), float(rank))}, "PerRank"), ({"y": rank}, "PerRank"),
                     ({"z": object() if rank == 1 else 1}, "cannot be stored")]:
        with pytest.raises(Exception, match=why):
            swt.save(folder + "/b", bad)
    for bad, why in wrong_parts(rank, size):
        with pytest.raises(sw.InvalidArgument, match=re.escape(why)):
            swt.save(folder + "/b", bad)
    assert not os.path.exists(folder + "/b")
    swt.save(folder + "/c", wrong_parts(0, size)[0][0])
    for bad, why in wrong_parts(rank, size)[6:11]:  # of the stored shape
        if rank == 1:  # loads without the others
            with pytest.raises(sw.InvalidArgument, match=re.escape(why)):
                swt.load(folder + "/c", bad, strict=False)


def wrong_parts(rank: int, size: int) -> list[tuple[dict[str, Any], str]]:
    """States whose part of rank 1 is wrong, and the error of all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh, bad = init_device_mesh("cpu", (size,), mesh_dim_names=("d",)), rank == 1

    def part(rows: int = 2, columns: int = 3, dtype: Any = torch.float32, dim: int = 0, shape: Any = None) -> Any:
        shape = torch.Size(shape or (rows * size, columns))
        return DTensor.from_local(torch.ones(rows, columns, dtype=dtype), mesh, [Shard(dim)], run_check=False, shape=shape,
                                  stride=torch.empty(shape).stride())

    w, whole, kind = part(), (2 * size, 3), f"[{2 * size}, 3]"
    needed = "needed is [2, 3], the box [2:4, 0:3]"
    return [({"w": w, "V" if bad else "v": part()},
             f'rank 0 was not given tensor "V" f32 {kind}, though its devices hold [0:2, 0:3]; rank 1 was not given tensor "v"'),
            ({"w": w} if bad else {"w": w, "v": part()}, f'rank 1 was not given tensor "v" f32 {kind}, though its devices hold [2:4, 0:3]'),
            ({"v": 1 if bad else part()}, 'rank 1 was not given tensor "v"'),
            ({"v": part(dtype=torch.float64 if bad else torch.float32)}, f'"v" is f32 {kind} over d={size} as d,- (nested_chunk) on rank 0, f64'),
            ({"v": part(3 if bad else 2)}, f'"v" is f32 {kind} over d={size} as d,- (nested_chunk) on rank 0, f32 [{3 * size}, 3]'),
            ({"v": torch.ones(whole) if bad else part()}, "in boxes on rank 1"),
            *[({"v": part(*of, shape=whole) if bad else part()}, f"a local tensor of shape {list(of[:2])}, {needed}")
              for of in [(3, 3), (1, 3), (2, 4), (2, 2), (3, 2)]],
            ({"v": part(2, 3, dim=1, shape=(2, size)) if bad else part()},
             "over DeviceMesh((d=4), 'cpu', stride=(1,)) as (Shard(dim=1),): this rank has a local tensor of shape [2, 3], needed is [2, 1]"),
            ({"v": part(2, 3, shape=(1, 3)) if bad else part()}, "a local tensor of shape [2, 3], needed is [0, 3]")]


def load_layouts(rank: int, size: int, port: int, folder: str) -> None:
    start(rank, size, port)
    lay = tensors_of(size, False)
    plain, mine = torch.zeros(300, 300), swt.PerRank(None)
    found = swt.load(folder + "/a", {"lay": lay, "plain": plain, "rng": mine, "pos": swt.PerRank(None), "empty": torch.zeros(0, 2),
                                     "stage": torch.zeros(4)})
    expected = tensors_of(size, True)
    for name, tensor in lay.items():
        assert torch.equal(tensor.to_local(), expected[name].to_local()), name
    assert (plain == 2.5).all() and found["pos"] == {"at": rank} and (found["rng"] == rank).all() and (found["stage"] == 1).all()


def test_layouts_of_any_placements_on_4_then_2_processes(tmp_path):
    run_ranks(save_layouts, 4, free_port(), str(tmp_path))
    whole = swt.load_state_dict(tmp_path / "a")
    for i in range(10):
        for j, (rows, columns) in enumerate(SHAPES):
            assert torch.equal(whole["lay"][f"t{i}.{j}"], torch.arange(float(rows * columns)).reshape(rows, columns))
    assert sw.verify(tmp_path / "a")
    run_ranks(load_layouts, 2, free_port(), str(tmp_path))


def train_fsdp(rank: int, size: int, port: int, folder: str, mode: str) -> Any:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    start(rank, size, port)
    torch.manual_seed(1 if mode == "save" else 2)
    net = Net()
    fully_shard(net, mesh=init_device_mesh("cpu", (size,), mesh_dim_names=("dp",)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(3)
    for _ in range(2):
        net(torch.randn(4, 10)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if mode == "save":
        swt.save(folder + "/plain", {"model": net, "optim": optimizer})
        model, optim = get_state_dict(net, optimizer)
        dcp.save({"model": model, "optim": optim}, storage_writer=swt.StorageWriter(folder + "/dcp"))
        own = dist.new_group(backend="gloo")
        dcp.async_save({"model": model, "optim": optim}, storage_writer=swt.StorageWriter(folder + "/async"),
                       process_group=own).result()
    else:
        swt.load(folder + "/plain", {"model": net, "optim": optimizer})
        for name in ("dcp", "async"):
            model, optim = get_state_dict(net, optimizer)
            for value in model.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
            dcp.load({"model": model, "optim": optim}, storage_reader=swt.StorageReader(f"{folder}/{name}"))
            set_state_dict(net, optimizer, model_state_dict=model, optim_state_dict=optim)
    full = {n: p.full_tensor().detach() for n, p in net.named_parameters()}
    moments = [s["exp_avg"].full_tensor() for s in optimizer.state_dict()["state"].values()]
    return [t.double().sum().item() for t in (*full.values(), *moments)]


def test_fsdp2_on_4_then_2_processes(tmp_path):
    saved = run_ranks(train_fsdp, 4, free_port(), str(tmp_path), "save")
    loaded = run_ranks(train_fsdp, 2, free_port(), str(tmp_path), "load")
    assert all(of_rank == saved[0] for of_rank in (*saved, *loaded))
    for name in ("plain", "dcp", "async"):
        assert sw.verify(tmp_path / name)
    # each can be read the other's way
    a, b = (swt.load_state_dict(tmp_path / n, "model.*")["model"] for n in ("plain", "dcp"))
    assert torch.equal(a["b.weight"] if "b.weight" in a else a["b"]["weight"], b["b.weight"] if "b.weight" in b else b["b"]["weight"])


def save_until_killed(rank: int, size: int, port: int, folder: str) -> None:
    start(rank, size, port)
    state = {"w": torch.full((2000, 500), 1.0)}
    for step in range(100):
        if rank == 1 and step == 3:  # in the middle of a save, somewhere
            threading.Timer(0.01, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        try:
            swt.save(f"{folder}/step-{step}", state, deadline=240 if step < 3 else 3)
        except sw.Error as error:
            assert "rank 1" in str(error) or "rank 0" in str(error), error
            return


def test_a_killed_rank_leaves_the_last_checkpoint(tmp_path):
    run_ranks(save_until_killed, 2, free_port(), str(tmp_path), may_die=True)
    with sw.CheckpointManager(tmp_path) as m:
        latest = m.latest()
        assert latest is not None and latest.step >= 2 and not latest.rejected
        assert sw.verify(latest.path)
    assert not [n for n in os.listdir(tmp_path) if n.startswith(".")]


def test_checkpoints_of_numpy_load_by_dcp(tmp_path):
    import numpy as np

    sw.save(tmp_path / "a", {"w": np.arange(6.0).reshape(2, 3), "step": 4})
    target = {"w": torch.zeros(2, 3, dtype=torch.float64), "step": 0}
    dcp.load(target, storage_reader=swt.StorageReader(tmp_path / "a"))
    assert target["step"] == 4 and target["w"][1, 2] == 5




def test_a_checkpoint_of_dcps_own_is_imported(tmp_path):
    state = {"m": {"w": torch.arange(12.0).view(3, 4), "h": torch.ones(2, dtype=torch.bfloat16)}, "step": 3, "betas": (0.9, 0.99)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "dcp"))
    path = sw.import_dcp(tmp_path / "dcp", tmp_path / "a")
    found = swt.load_state_dict(path)
    assert torch.equal(found["m"]["w"], state["m"]["w"]) and torch.equal(found["m"]["h"], state["m"]["h"])
    assert found["step"] == 3 and found["betas"] == (0.9, 0.99)

    class Evil:
        def __reduce__(self):
            return os.system, ("touch " + str(tmp_path / "pwned"),)

    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(sw.Unsupported, match="system"):
        sw.import_dcp(tmp_path / "evil", tmp_path / "b")
    with pytest.raises(FileNotFoundError, match="metadata"):
        sw.import_dcp(tmp_path, tmp_path / "b")
    assert not (tmp_path / "pwned").exists() and not (tmp_path / "b").exists()
