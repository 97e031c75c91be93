"""Tests the other names of PyTorch/XLA SPMD: the examples of its API reference, manual regions, loaders, pictures, and refusals."""

import collections
import copy
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from seed_programs import with_our_imports
from torch import nn

import shardwise as sw
import shardwise.torch.spmd as spmd
from shardwise.torch._spmd import marks
from shardwise.torch._spmd.mesh import devices_of

EXAMPLES = {
    "Mesh": """
import numpy as np
import torch_xla.core.xla_model as xm
from torch_xla.distributed.spmd import Mesh
mesh_shape = (4, 2)
num_devices = len(xm.get_xla_supported_devices())
device_ids = np.array(range(num_devices))
mesh = Mesh(device_ids, mesh_shape, ('x', 'y'))
mesh.get_logical_mesh()
found = mesh.shape()
""",
    "get_1d_mesh": """
# This example is assuming 1 TPU v4-8
import torch_xla.distributed.spmd as xs
mesh = xs.get_1d_mesh("data")
found = mesh.mesh_shape, mesh.axis_names
""",
    "set_global_mesh": """
import torch_xla.distributed.spmd as xs
mesh = xs.get_1d_mesh("data")
xs.set_global_mesh(mesh)
found = xs.get_global_mesh() == mesh
""",
    "HybridMesh": """
from torch_xla.distributed.spmd import HybridMesh
# This example is assuming 2 slices of v4-8.
ici_mesh_shape = (1, 4, 1) # (data, fsdp, tensor)
dcn_mesh_shape = (2, 1, 1)
mesh = HybridMesh(ici_mesh_shape=ici_mesh_shape, dcn_mesh_shape=dcn_mesh_shape, axis_names=('data','fsdp','tensor'))
found = mesh.shape()
""",
    "mark_sharding": """
import numpy as np
import torch
from torch import nn
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
from torch_xla.distributed.spmd import Mesh
xr.use_spmd()
mesh_shape = (4, 2)
num_devices = xr.global_runtime_device_count()
device_ids = np.array(range(num_devices))
mesh = Mesh(device_ids, mesh_shape, ('x', 'y'))

# 4-way data parallel
input = torch.randn(8, 32).to(xm.xla_device())
xs.mark_sharding(input, mesh, (0, None))

# 2-way model parallel
linear = nn.Linear(32, 10).to(xm.xla_device())
xs.mark_sharding(linear.weight, mesh, (None, 1))
found = input.sharding_spec, linear.weight.sharding_spec
""",
    "clear_sharding": """
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
torch_xla.runtime.use_spmd()

t1 = torch.randn(8,8).to(torch_xla.device())
mesh = xs.get_1d_mesh()
xs.mark_sharding(t1, mesh, (0, None))
xs.clear_sharding(t1)
found = t1.sharding_spec
""",
}
FOUND = {
    "Mesh": collections.OrderedDict([("x", 4), ("y", 2)]), "get_1d_mesh": ((8,), ("data",)), "set_global_mesh": True,
    "HybridMesh": collections.OrderedDict([("data", 2), ("fsdp", 4), ("tensor", 1)]),
    "mark_sharding": ("{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}"),
    "clear_sharding": "{replicated}",
}


@pytest.fixture(autouse=True)
def spmd_mode():
    spmd.use_spmd()
    yield
    spmd.set_device_count(8)


def mesh(*shape, names=("data", "model")):
    return spmd.Mesh(np.arange(8), shape or (4, 2), names)


def placed(*shape):
    return torch.arange(float(np.prod(shape))).reshape(shape).to(spmd.xla_device())


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_reference(name):
    names = {}
    exec(with_our_imports(EXAMPLES[name]), names)
    assert names["found"] == FOUND[name]


def test_a_hybrid_mesh_has_a_slice_after_the_other():
    hybrid = spmd.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(1, 2))
    assert hybrid.get_logical_mesh().tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_marks_over_meshes_of_one_step_are_cut_by_parts_of_their_axes():
    x, w = placed(8, 8), placed(8, 8)
    spmd.mark_sharding(x, mesh(), ("data", None))
    spmd.mark_sharding(w, mesh(2, 2, 2, names=("x", "y", "z")), (None, "z"))
    y = x @ w
    spmd.mark_step()
    assert y.sharding_spec == "{devices=[4,2]0,1,2,3,4,5,6,7}" and spmd.last_plan().mesh.shape == {"axis0": 2, "axis1": 2, "axis2": 2}
    torch.testing.assert_close(y.cpu(), x.cpu() @ w.cpu())


def test_what_replaces_a_marked_tensor_is_cut_so():
    x, w = placed(8, 8), placed(8, 8)
    spmd.mark_sharding(x, mesh(), ("data", None))
    spmd.mark_sharding(w, mesh(), (None, "model"))
    w.copy_(x * 2)
    spmd.mark_step()
    plan = spmd.last_plan()
    assert w.sharding_spec == "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}" and str(plan._executable.output_spec(0)) == "-,model"
    assert torch.equal(w.cpu(), x.cpu() * 2)


def test_a_region_is_done_by_each_device_to_its_part():
    x = placed(8, 6)
    part = spmd.enable_manual_sharding(x, ("data", "model"), mesh=mesh())
    assert part.shape == (2, 3) and x.sharding_spec == "{devices=[4,2]0,1,2,3,4,5,6,7}"
    whole = spmd.disable_manual_sharding(part * 2 + part.sum(0), ("data", "model"), (8, 6), mesh=mesh()) + 1
    spmd.mark_step()
    expected = torch.cat([torch.cat([p * 2 + p.sum(0) for p in rows.split(3, 1)], 1) for rows in x.cpu().split(2)]) + 1
    torch.testing.assert_close(whole.cpu(), expected)
    with pytest.raises(sw.InvalidArgument, match="found one of a manual region, .*, needed disable_manual_sharding"):
        part.cpu()


def test_a_region_takes_the_global_mesh_and_dims_that_divide():
    spmd.set_global_mesh(mesh())
    part = spmd.enable_manual_sharding(placed(8, 6), (("data", "model"), None))
    assert part.shape == (1, 6)
    with pytest.raises(sw.InvalidArgument, match=r"found the shape \[7, 6\], needed \[8, 6\]"):
        spmd.disable_manual_sharding(part, (("data", "model"), None), (7, 6))
    with pytest.raises(sw.InvalidArgument, match=r"found \[6, 6\] cut \(4, 1\) ways, needed dims that divide"):
        spmd.enable_manual_sharding(placed(6, 6), ("data", None))
    spmd.set_global_mesh(None)
    with pytest.raises(sw.InvalidArgument, match="found no mesh"):
        spmd.enable_manual_sharding(placed(8, 6), ("data", None))


def test_a_weight_is_not_changed_by_what_is_of_a_region():
    x, w = placed(8, 2), placed(2, 2)
    part = spmd.enable_manual_sharding(x, ("data", None), mesh=mesh())
    w.add_((part.t() @ part))
    with pytest.raises(sw.InvalidArgument, match="changed in place: found one of a manual region"):
        spmd.mark_step()
    assert torch.equal(w.cpu(), torch.arange(4.0).reshape(2, 2))


def test_a_loader_places_marks_and_steps():
    batches = [(torch.ones(8, 4) * n, torch.arange(8)) for n in range(3)]
    loader = spmd.MpDeviceLoader(batches, spmd.xla_device(), input_sharding=spmd.ShardingSpec(mesh(), ("data", None)))
    sums = []
    for x, y in loader:
        assert x.sharding_spec == "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}" and y.sharding_spec == "{replicated}"
        sums.append(x.sum())
    assert len(loader) == 3 and [total.item() for total in sums] == [0, 32, 64] and all(total._root.value is not None for total in sums)


def test_a_loader_takes_a_spec_for_each_key():
    batch = {"x": torch.ones(8, 4), "y": torch.arange(8)}
    specs = {"x": spmd.ShardingSpec(mesh(), ("data", None), minibatch=True), "y": None}
    (found,) = spmd.MpDeviceLoader([batch], spmd.xla_device(), input_sharding=specs)
    assert isinstance(found["x"], spmd.XLAShardedTensor) and not isinstance(found["y"], spmd.XLAShardedTensor)
    with pytest.raises(sw.InvalidArgument, match=r"found a batch with \['y'\]"):
        list(spmd.MpDeviceLoader([batch], spmd.xla_device(), input_sharding={"x": None}))
    with pytest.raises(sw.InvalidArgument, match="found a batch with list"):
        list(spmd.MpDeviceLoader([[1]], spmd.xla_device(), input_sharding={"x": None}))


def test_a_patched_linear_layer_learns_as_its_own():
    torch.manual_seed(0)
    plain = nn.Linear(4, 3)
    layer = nn.Linear(4, 3)
    layer.load_state_dict(plain.state_dict())
    layer.to(spmd.xla_device())
    layer.forward = types.MethodType(spmd.xla_patched_nn_linear_forward, layer)
    spmd.apply_backward_optimization_barrier(layer)
    spmd.mark_sharding(layer.weight, mesh(), ("model", None) if layer.out_features % 2 == 0 else (None, "model"))
    x = torch.randn(2, 5, 4)
    plain(x).square().sum().backward()
    layer(x.to(spmd.xla_device())).square().sum().backward()
    for own, other in zip(layer.parameters(), plain.parameters()):
        torch.testing.assert_close(own.grad.cpu(), other.grad, rtol=1e-5, atol=1e-6)


def test_pictures(capsys):
    x = placed(8, 4)
    spmd.mark_sharding(x, mesh(), ("model", None))
    assert spmd.visualize_tensor_sharding(x) == "0 2 4 6\n-------\n1 3 5 7" and capsys.readouterr().out == "0 2 4 6\n-------\n1 3 5 7\n"
    assert spmd.visualize_sharding("{devices=[2,4]0,1,2,3,4,5,6,7}") == "0 | 1 | 2 | 3\n-------------\n4 | 5 | 6 | 7"
    assert spmd.visualize_sharding("{replicated}") == "0 1 2 3 4 5 6 7"
    for text, needed in (("{devices=[2,2,2]0,1,2,3,4,5,6,7}", "first two dims"), ("{manual}", "needed a sharding such as")):
        with pytest.raises(sw.InvalidArgument, match=needed):
            spmd.visualize_sharding(text)
    with pytest.raises(sw.InvalidArgument, match="pending and not marked"):
        spmd.visualize_tensor_sharding(x.t() + 1)


def test_types_and_shards():
    x = placed(8, 3)
    assert spmd._XLAC._get_xla_sharding_spec(x) == spmd.get_xla_sharding_spec(x) == "{replicated}"
    assert spmd.get_xla_sharding_type(x) is spmd.ShardingType.REPLICATED and [s.indices for s in x.local_shards] == [...] * 8
    spmd.mark_sharding(x, mesh(), ("data", "model"))
    assert spmd.get_xla_sharding_type(x) is spmd.ShardingType.TILED and x.global_tensor is x
    assert spmd.wrap_if_sharded(x) is spmd.XLAShardedTensor(x) is spmd.unwrap_sharded_tensor(spmd.wrap_as_sharded_tensor(x)) is x
    shard = x.local_shards[7]
    assert shard.indices == [slice(6, 8, 1), slice(2, 3, 1)] and shard.data.tolist() == [[20, 0], [23, 0]] and shard.unpadded_data.tolist() == [[20], [23]]
    spmd.clear_sharding(x)
    spmd.mark_sharding(x, mesh(), (None, "model"))
    assert spmd.get_xla_sharding_type(x) is spmd.ShardingType.PARTIAL and spmd.get_xla_sharding_type(x * 2) is None


@pytest.mark.parametrize("make, told", [
    (lambda x: spmd.mark_sharding(x, mesh(), ("data",)), r"found 1 entries of \('data',\), needed one for each dim of \[8, 4\]"),
    (lambda x: spmd.mark_sharding(x, mesh(), ("data", "data")), "found an axis twice"),
    (lambda x: spmd.mark_sharding(x, mesh(), ("batch", None)), "found 'batch', needed None or an axis of"),
    (lambda x: spmd.mark_sharding(x, mesh(), (2, None)), "found 2, needed None or an axis"),
    (lambda x: spmd.mark_sharding(x, mesh(), (-1, None)), "found -1, needed None or an axis"),
    (lambda x: spmd.mark_sharding(x, spmd.Mesh([0, 1], (2,)), (0, None)), "found a mesh of 2 devices, needed all 8"),
    (lambda x: spmd.mark_sharding(x.cpu(), mesh(), (0, None)), "found a tensor on cpu, needed one of the device"),
    (lambda x: spmd.mark_sharding(spmd.mark_sharding(x, mesh(), (0, None)), mesh(), (1, None)), "clear_sharding.. removes it"),
    (lambda x: mesh(4, 4), "found 8 devices for the shape"),
    (lambda x: spmd.Mesh([0, 0], (2,)), "needed 0 to 1, once each"),
    (lambda x: mesh(4, 2, names=("a", "a")), "needed 2 different ones"),
    (lambda x: devices_of("many"), "CPU_NUM_DEVICES: found 'many', needed a number of devices"),
    (lambda x: spmd.set_device_count(0), "found 0, needed 1 or more"),
])
def test_what_is_refused(make, told):
    with pytest.raises((sw.InvalidArgument, sw.Unsupported), match=told):
        make(placed(8, 4))


def test_marks_are_searched_for_if_there_are_none():
    spmd.set_global_mesh(mesh())
    spmd.use_spmd(auto=True)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    module = copy.deepcopy(plain).to(spmd.xla_device())
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.01, eps=1e-4) for one in (plain, module)]
    plans = []
    for _ in range(5):
        x, losses = torch.randn(2048, 64), []
        for one, optimizer in zip((plain, module), optimizers):
            optimizer.zero_grad()
            loss = one(x.to(one[0].weight.device)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        spmd.mark_step()
        torch.testing.assert_close(losses[1].detach().cpu(), losses[0].detach(), rtol=1e-5, atol=1e-6)
        plans.append(spmd.last_plan())
    assert plans[-1] is plans[-2] and plans[-1].mesh.shape == {"data": 4, "model": 2}
    assert any(one.mark and set(one.mark) - set("-,") for one in plans[-1]._program.inputs)
    spmd.set_global_mesh(None)
    marked = placed(8, 4)
    spmd.mark_sharding(marked, mesh(), ("data", None))
    total = (marked * nn.Parameter(torch.ones(4)).to(spmd.xla_device())).sum(0)
    spmd.mark_step()
    assert spmd.last_plan().mesh.shape == {"data": 4, "model": 2} and total.tolist() == [112, 120, 128, 136]


def test_marks_need_spmd_mode(monkeypatch):
    monkeypatch.setattr(marks, "_is_spmd", False)
    assert not spmd.is_spmd()
    with pytest.raises(sw.InvalidArgument, match="found one device, needed all of them: use_spmd"):
        spmd.mark_sharding(placed(8, 4), mesh(), (0, None))


def test_a_step_with_meshes_that_do_not_go_together():
    x, y = placed(8, 8), placed(8, 8)
    spmd.mark_sharding(x, mesh(), (0, None))
    spmd.mark_sharding(y, spmd.Mesh(np.arange(8)[::-1].copy(), (4, 2)), (0, None))
    z = x + y
    with pytest.raises(sw.InvalidArgument, match="needed the same devices in the same order"):
        spmd.mark_step()
    with pytest.raises(sw.InvalidArgument, match="its step failed"):
        z.cpu()


def test_the_number_of_devices_is_said():
    spmd.set_device_count(6)
    three = spmd.Mesh(np.arange(6), (3, 2), ("a", "b"))
    x = spmd.mark_sharding(placed(7, 2), three, ("a", None))
    y = x.cumsum(0)
    spmd.sync()
    assert y.cpu()[-1].tolist() == [42, 49] and len(y.local_shards) == 6 == len(spmd.get_xla_supported_devices())
