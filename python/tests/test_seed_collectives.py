"""Programs for PyTorch/XLA SPMD: collectives of manual regions, autocast, FSDPv2, and the names about processes, steps and files."""

import io

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from torch import nn
from torch.nn import functional as F

import shardwise as sw
import shardwise.torch.spmd as spmd

MESHES = [((4, 2), np.arange(8)), ((8,), np.arange(8)), ((2, 2, 2), np.array([3, 1, 0, 2, 7, 6, 4, 5])), ((1, 8), np.arange(8)[::-1].copy())]
GROUPS = [None, [[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]], [[6, 1], [0, 7], [5, 2], [3, 4]], [[7, 6, 5, 4, 3, 2, 1, 0]]]
NUMPY = {"sum": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@pytest.fixture(autouse=True)
def all_devices():
    spmd.use_spmd()
    spmd.set_device_count(8)
    before = spmd.get_global_mesh()
    yield
    spmd.set_global_mesh(before)


def on_devices(mesh, parts, collective):
    """Returns each device's part after it, by id: parts[id] is the part before."""
    rank = len(mesh.mesh_shape)
    axes = tuple(range(rank))
    stacked = np.stack([parts[device] for device in mesh.device_ids]).reshape(-1, *parts[0].shape[1:])
    spec = (axes, *[None] * (parts[0].ndim - 1))
    part = spmd.enable_manual_sharding(torch.from_numpy(stacked).to(spmd.xla_device()), spec, mesh=mesh)
    made = collective(part)
    whole = spmd.disable_manual_sharding(made, spec, (made.shape[0] * 8, *made.shape[1:]), mesh=mesh).numpy()
    return {int(device): whole[n * made.shape[0]:(n + 1) * made.shape[0]] for n, device in enumerate(mesh.device_ids)}


def group_of(groups, device):
    return next(group for group in (groups or [list(range(8))]) if device in group)


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: str(mesh[0]))
def test_collectives_are_those_of_each_device_by_hand(mesh, groups):
    shape, ids = mesh
    mesh = spmd.Mesh(ids, shape)
    draw = np.random.default_rng(len(shape))
    parts = {device: draw.integers(-3, 4, (8, 16)).astype(np.float32) for device in range(8)}
    size = len(group_of(groups, 0))
    for reduction in NUMPY:
        found = on_devices(mesh, parts, lambda x, how=reduction: spmd.all_reduce(how, x, 0.5, groups))
        for device in range(8):
            total = NUMPY[reduction].reduce([parts[one] for one in group_of(groups, device)])
            np.testing.assert_array_equal(found[device], total * 0.5)
    for dim in (0, 1, -1):
        found = on_devices(mesh, parts, lambda x, d=dim: spmd.all_gather(x, d, groups, pin_layout=False))
        scattered = on_devices(mesh, parts, lambda x, d=dim: spmd.reduce_scatter("sum", x, 2.0, d, size, groups))
        for device in range(8):
            group = group_of(groups, device)
            np.testing.assert_array_equal(found[device], np.concatenate([parts[one] for one in group], axis=dim))
            total = np.split(sum(parts[one] for one in group) * 2, size, axis=dim)
            np.testing.assert_array_equal(scattered[device], total[group.index(device)])
    for split, concat in ((0, 0), (0, 1), (1, 0), (1, 1)):
        found = on_devices(mesh, parts, lambda x, s=split, c=concat: spmd.all_to_all(x, s, c, size, groups))
        for device in range(8):
            group = group_of(groups, device)
            sent = [np.split(parts[one], size, axis=split)[group.index(device)] for one in group]
            np.testing.assert_array_equal(found[device], np.concatenate(sent, axis=concat))
    pairs = [[0, 3], [3, 5], [5, 0], [2, 2], [0, 7]]
    found = on_devices(mesh, parts, lambda x: spmd.collective_permute(x, pairs))
    sources = {target: source for source, target in pairs}
    for device in range(8):
        np.testing.assert_array_equal(found[device], parts[sources[device]] if device in sources else np.zeros((8, 16)))


def test_all_of_bits_and_a_list_in_place():
    mesh = spmd.get_1d_mesh("data")
    parts = {device: np.array([[device % 2, 1, 0]], dtype=np.int64) for device in range(8)}
    both = on_devices(mesh, parts, lambda x: spmd.all_reduce(spmd.REDUCE_AND, x))
    either = on_devices(mesh, parts, lambda x: spmd.all_reduce(spmd.REDUCE_OR, [x])[0])
    assert both[3].tolist() == [[0, 1, 0]] and either[4].tolist() == [[1, 1, 0]]
    # torch_xla 2.9 gave these for the names that work there.
    x = torch.arange(32.0).reshape(8, 4).to(spmd.xla_device())
    mesh = spmd.Mesh(np.arange(8), (4, 2), ("data", "model"))
    part = spmd.enable_manual_sharding(x, ("data", "model"), mesh=mesh)
    pairs = [[0, 1], [2, 3], [4, 5], [6, 7]]
    total = spmd._XLAC._xla_spmd_all_reduce(spmd.REDUCE_SUM, part, 1.0, pairs)
    assert spmd.disable_manual_sharding(total, ("data", "model"), (8, 4), mesh=mesh).tolist()[:2] == [[2, 4, 2, 4], [10, 12, 10, 12]]
    part = spmd.enable_manual_sharding(x, ("data", "model"), mesh=mesh)
    own = spmd._XLAC._xla_spmd_reduce_scatter(spmd.REDUCE_SUM, part, 1.0, 0, 2, pairs)
    assert spmd.disable_manual_sharding(own, (("data", "model"), None), (8, 2), mesh=mesh).tolist()[:3] == [[2, 4], [10, 12], [18, 20]]


def test_what_collectives_refuse():
    mesh = spmd.get_1d_mesh("data")
    whole = torch.ones(8, 4).to(spmd.xla_device())
    assert spmd.all_reduce("sum", whole).tolist() == [[1.0] * 4] * 8  # as in SPMD mode of PyTorch/XLA
    assert spmd.all_reduce("sum", whole, 0.5).tolist() == [[0.5] * 4] * 8
    part = spmd.enable_manual_sharding(whole, ("data", None), mesh=mesh)
    for call, told in (
        (lambda: spmd.all_gather(whole), "all_gather: found a tensor that is whole, needed one of a manual region"),
        (lambda: spmd.all_reduce("mean", part), "all_reduce: found the reduction 'mean', needed one of sum, mul"),
        (lambda: spmd.all_reduce("sum", part, groups=[[0, 1], [2]]), "all_reduce: found the groups .*, needed groups of as many devices each"),
        (lambda: spmd.all_gather(part, 2), "all_gather: found the dim 2, needed one of a tensor of 2"),
        (lambda: spmd.reduce_scatter("sum", part, 1.0, 1, 8), "reduce_scatter: found 4 rows cut 8 ways"),
        (lambda: spmd.all_to_all(part, 1, 0, 4), "all_to_all: found 4 rows cut 4 ways in groups of 8"),
        (lambda: spmd.collective_permute(part, [[0, 1], [2, 1]]), "collective_permute: found the pairs"),
        (lambda: spmd.collective_permute(part, [[0, 8]]), "needed devices from 0 to 7"),
    ):
        with pytest.raises(sw.InvalidArgument, match=told):
            call()


# The dtype of a result by torch_xla 2.9, under autocast("xla", dtype=torch.bfloat16): of f32 and of bf16.
AUTOCAST = {
    "mm": (lambda a: a.mm(a), "bfloat16", "bfloat16"), "linear": (lambda a: F.linear(a, a, a[0]), "bfloat16", "bfloat16"),
    "einsum": (lambda a: torch.einsum("ij,jk->ik", a, a), "bfloat16", "bfloat16"), "relu": (F.relu, "bfloat16", "bfloat16"),
    "conv": (lambda a: F.conv2d(a[None, None], a[None, None]), "bfloat16", "bfloat16"), "gelu": (F.gelu, "float32", "bfloat16"),
    "softmax": (lambda a: F.softmax(a, -1), "float32", "float32"), "layer_norm": (lambda a: F.layer_norm(a, (4,)), "float32", "bfloat16"),
    "cross_entropy": (lambda a: F.cross_entropy(a, a.argmax(1)), "float32", "float32"), "mse": (lambda a: F.mse_loss(a, a), "float32", "float32"),
    "sum": (lambda a: a.sum(), "float32", "bfloat16"), "pow": (lambda a: a**2, "float32", "float32"), "exp": (torch.exp, "float32", "bfloat16"),
    "dot": (lambda a: torch.dot(a[0], a[0]), "float32", "bfloat16"), "prod": (torch.prod, "float32", "float32"),
}


@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_has_the_dtypes_of_pytorch_xla(name):
    function, *wanted = AUTOCAST[name]
    x = (torch.rand(4, 4) + 0.1).to(spmd.xla_device())
    with torch.autocast("xla", dtype=torch.bfloat16):
        assert [str(function(one).dtype) for one in (x, x.bfloat16())] == [f"torch.{dtype}" for dtype in wanted]
        assert torch.cat([x, x.bfloat16()]).dtype == torch.float32
    assert function(x).dtype == torch.float32


def test_a_loop_with_what_people_write_around_it_learns_as_on_the_cpu(tmp_path):
    def learned(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
        if device != "cpu":
            mesh = spmd.Mesh(np.arange(8), (4, 2), ("data", "model"))
            spmd.mark_sharding(model[0].weight, mesh, ("model", None))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        told, logged = [], []
        for number in range(4):
            with spmd.step():
                for _ in range(2):  # gradients add up
                    x, y = torch.randn(16, 8).to(device), torch.randint(0, 4, (16,)).to(device)
                    loss = F.cross_entropy(model(x), y) / 2
                    loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                spmd.optimizer_step(optimizer, barrier=number % 2 == 0)
                schedule.step()
                optimizer.zero_grad()
                average.update_parameters(model)
                spmd.add_step_closure(lambda value: logged.append(f"{value:.4f}"), (loss.detach(),))
            if loss > 100:
                raise AssertionError
            told += [loss.item(), float(norm)]
        model.eval()
        with torch.no_grad():
            told.append(average.module(torch.ones(2, 8).to(device)).sum().item())
        assert len(logged) == 4
        spmd.save(model.state_dict(), tmp_path / "state.pt")
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, tmp_path / "cpu.pt")
        saved, same = torch.load(tmp_path / "state.pt"), torch.load(tmp_path / "cpu.pt")
        assert all(value.device.type == "cpu" and torch.equal(value, same[name]) for name, value in saved.items())
        model.load_state_dict(saved)
        if device != "cpu":
            assert model[0].weight.sharding_spec.startswith("{devices=[2,1,4]")
        return [*told, *(value.cpu().sum().item() for value in model.state_dict().values())], logged

    found, logged = learned(spmd.xla_device())
    wanted, _ = learned("cpu")
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    assert [float(text) for text in logged] == pytest.approx(wanted[0:8:2], abs=1e-4)


def test_fsdpv2_cuts_parameters_and_outputs():
    mesh = spmd.Mesh(np.arange(8), (8, 1), ("fsdp", "model"))
    spmd.set_global_mesh(mesh)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
    x = torch.randn(16, 8)
    wanted = plain(x)
    policy = lambda module, recurse, nonwrapped_numel: recurse or isinstance(module, nn.Linear)  # noqa: E731
    model = spmd.SpmdFullyShardedDataParallel(plain, auto_wrap_policy=policy)
    assert isinstance(model.module[0], spmd.SpmdFullyShardedDataParallel)
    output = model(x.to(spmd.xla_device()))
    assert output.sharding_spec == "{devices=[8,1]0,1,2,3,4,5,6,7}" and output.partition_spec == ("fsdp", None)
    assert model[0].module.weight.partition_spec == ("fsdp", None) and model[2].module.weight.partition_spec == (None, "fsdp")
    assert torch.allclose(output.cpu(), wanted, atol=1e-6)
    with pytest.raises(sw.InvalidArgument, match="found a module that is wrapped already"):
        spmd.SpmdFullyShardedDataParallel(model)
    with pytest.raises(sw.InvalidArgument, match="needed one called 'fsdp'"):
        spmd.SpmdFullyShardedDataParallel(plain, mesh=spmd.get_1d_mesh("data"))
    with pytest.raises(sw.InvalidArgument, match="found a ModuleList, which has no forward"):
        spmd.SpmdFullyShardedDataParallel(nn.ModuleList([plain]))


def test_values_shards_and_marks_as_users_look_at_them():
    mesh = spmd.Mesh(np.arange(8), (4, 2), ("data", "model"))
    x = torch.arange(32.0).reshape(8, 4).to(spmd.xla_device())
    spmd.mark_sharding(x, mesh, ("data", None))
    assert f"{x.sum():.1f} {x[0, 3]:5.2f}" == "496.0  3.00" and f"{x[0]}".startswith("tensor([0., 1., 2., 3.]")
    assert np.array(x, dtype=np.float64, copy=True)[1].tolist() == [4.0, 5.0, 6.0, 7.0]
    assert (x.mesh_shape, x.partition_spec, x.sharding_type) == ((4, 2), ("data", None), spmd.ShardingType.PARTIAL)
    shards = x.local_shards
    for shard in shards:
        shard.data *= 2
    x.load_local_shards_(shards[::-1])
    assert x.sum().item() == 992.0
    for bad in (shards[:7], [*shards, shards[0]]):
        with pytest.raises(sw.InvalidArgument, match=f"load_local_shards_: found parts of {len(bad)} devices .*, needed one of each of the 8"):
            x.load_local_shards_(bad)
    for bad_data in (torch.zeros(1, 4), shards[0].data.double()):
        first = spmd.XLAShard(bad_data, shards[0].indices, "EMULATED:0", 0)
        with pytest.raises(sw.InvalidArgument, match="load_local_shards_: found a part of"):
            x.load_local_shards_([first, *shards[1:]])
    for bad in (None, [shard.data for shard in shards], "shards"):
        with pytest.raises(sw.InvalidArgument, match="needed are those of local_shards"):
            x.load_local_shards_(bad)
    shards[1].data = shards[1].data + 1  # device 0 holds this part, too
    with pytest.raises(sw.InvalidArgument, match="found other values of EMULATED:1 than of EMULATED:0, which hold the same part"):
        x.load_local_shards_(shards)
    empty = torch.full((8,), torch.nan).to(spmd.xla_device())
    spmd.mark_sharding(empty, mesh, (None,))
    empty.load_local_shards_(empty.local_shards)  # NaN equals NaN here
    assert x.sum().item() == 992.0
    w = torch.ones(8, 4, requires_grad=True, device=spmd.xla_device())
    made = spmd.mark_sharding_with_gradients(w, mesh, ("data", "model"))
    (made * x).sum().backward()
    assert made.sharding_spec == "{devices=[4,2]0,1,2,3,4,5,6,7}" and torch.equal(w.grad.cpu(), x.cpu())
    y = spmd.annotate_custom_sharding(x * 1, mesh, (None, "model"))
    assert y.sum().item() == 992.0


def test_processes_steps_files_and_what_there_is_not():
    assert (spmd.world_size(), spmd.global_ordinal(), spmd.process_count(), spmd.addressable_runtime_device_count()) == (1, 0, 1, 8)
    assert spmd.is_master_ordinal() and spmd.device_count() == 8 and len(spmd.global_runtime_device_attributes()) == 8
    assert spmd.mesh_reduce("loss", torch.ones(2).to(spmd.xla_device()), lambda all_of: all_of[0].sum().item()) == 2.0
    assert spmd.rendezvous("end", b"x") == [b"x"] and spmd.is_xla_tensor(torch.ones(1).to(spmd.device())) and spmd.is_bf16_supported()
    double = spmd.compile(lambda x: x * 2)
    assert double(torch.ones(2).to(spmd.device())).tolist() == [2.0, 2.0]
    spmd.manual_seed(3)
    with spmd.fork_rng():
        first = torch.rand(2)
    assert torch.equal(torch.rand(2), first) and spmd.get_rng_state() == 3
    spec = spmd.ShardingSpec(spmd.Mesh(np.arange(8), (8, 1), ("data", "model")), ("data", None))
    (placed,) = spmd.send_cpu_data_to_device([torch.ones(8, 2)], spmd.device(), spec)
    assert placed.sharding_spec == "{devices=[8,1]0,1,2,3,4,5,6,7}"
    file = io.BytesIO()
    spmd.save({"a": [placed]}, file)
    printed = io.StringIO()
    spmd.master_print("loss", 1, fd=printed, flush=True)
    assert printed.getvalue() == "loss 1\n"
    file.seek(0)
    assert torch.load(file)["a"][0].device.type == "cpu"
    for name, told in (("launch", r"launch: found a function that emulated devices lack, needed fn\(0, \*args\)"),
                       ("xla_distribute_tensor", "needed mark_sharding"), ("get_memory_info", "peak_bytes")):
        with pytest.raises(sw.Unsupported, match=told):
            getattr(spmd, name)(1)
    with pytest.raises(AttributeError, match="has no attribute 'mark_shardings'"):
        spmd.mark_shardings


def test_a_gradient_through_a_manual_region_is_refused_and_none_is_lost():
    mesh = spmd.Mesh(np.arange(8), (4, 2), ("data", "model"))
    w = torch.ones(8, 4, requires_grad=True, device=spmd.xla_device())
    part = spmd.enable_manual_sharding(w * 3, ("data", "model"), mesh=mesh)
    whole = spmd.disable_manual_sharding(part, ("data", "model"), (8, 4), mesh=mesh)
    with pytest.raises(sw.Unsupported, match="backward: found a gradient through a manual region"):
        (whole.sum() + w.sum()).backward()
    assert whole.sum().item() == 96.0


@pytest.mark.parametrize("spec", [None, "data", 3])
def test_a_partition_spec_that_is_no_tuple_is_one_error(spec):
    mesh = spmd.Mesh(np.arange(8), (4, 2), ("data", "model"))
    x = torch.ones(8, 4).to(spmd.xla_device())
    with pytest.raises(sw.InvalidArgument, match=r"mark_sharding: found .* for the partition spec, needed a tuple .* \(None, None\)"):
        spmd.mark_sharding(x, mesh, spec)
    with pytest.raises(sw.InvalidArgument, match="mark_sharding: found a NoneType for the mesh, needed a Mesh"):
        spmd.mark_sharding(x, None, ("data", None))
