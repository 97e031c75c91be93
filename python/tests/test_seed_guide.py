"""The code of the PyTorch/XLA SPMD user guide (pytorch.org/xla, "PyTorch/XLA SPMD User Guide") and of its translation, as it is printed but
for the lines that import PyTorch/XLA."""

import collections

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from seed_programs import with_our_imports

import shardwise.torch.spmd as spmd

FIRST = """
import numpy as np
import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
from torch_xla.distributed.spmd import Mesh


# Enable XLA SPMD execution mode.
xr.use_spmd()


# Device mesh, this and partition spec as well as the input tensor shape define the individual shard shape.
num_devices = xr.global_runtime_device_count()
mesh_shape = (num_devices, 1)
device_ids = np.array(range(num_devices))
mesh = Mesh(device_ids, mesh_shape, ('data', 'model'))


t = torch.randn(8, 4).to(xm.xla_device())


# Mesh partitioning, each device holds 1/8-th of the input
partition_spec = ('data', 'model')
xs.mark_sharding(t, mesh, partition_spec)
"""

SPECS = """
t1 = torch.randn(8, 8, 16).to(device)
t2 = torch.randn(8).to(device)

# First dimension is being replicated.
xs.mark_sharding(t1, mesh, (None, 'data', 'model'))

# First dimension is being sharded at data dimension.
# model dimension is used for replication when omitted.
xs.mark_sharding(t2, mesh, ('data',))

# First dimension is sharded across both mesh axes.
xs.mark_sharding( t2, mesh, (('data', 'model'),))
"""

TRANSLATION = """
import numpy as np
import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.experimental.xla_sharding as xs
from torch_xla.experimental.xla_sharding import Mesh

# 启用XLA SPMD执行模式
xr.use_spmd()

# 设备网格
num_devices = xr.global_runtime_device_count()
mesh_shape = (4, 2)
device_ids = np.array(range(num_devices))
mesh = Mesh(device_ids, mesh_shape, ('data', 'model'))

# 定义一个张量
t = torch.randn(8, 4).to(xm.xla_device())

partition_spec = {spec}
xs.mark_sharding(t, mesh, partition_spec)
"""


def run(text, **names):
    exec(with_our_imports(text), names)
    return names


def test_the_first_program():
    names = run(FIRST)
    t, mesh = names["t"], names["mesh"]
    assert spmd.get_xla_sharding_spec(t) == "{devices=[8,1]0,1,2,3,4,5,6,7}"
    assert mesh.shape() == collections.OrderedDict([("data", 8), ("model", 1)])
    shards = t.local_shards
    assert [shard.data.shape for shard in shards] == [(1, 4)] * 8 and torch.equal(torch.cat([shard.data for shard in shards]), t.cpu())


def test_an_operation_on_it_and_a_step():
    names = run(FIRST + "total = (t * 2 + 1).sum(0)\nxm.mark_step()\n")
    t, total = names["t"], names["total"]
    torch.testing.assert_close(total.cpu(), (t.cpu() * 2 + 1).sum(0), rtol=1e-5, atol=1e-6)
    assert spmd.last_plan().mesh.shape == {"data": 8} and spmd.last_plan().wire_bytes.keys() == {("all-reduce", "data")}


def test_a_tensor_of_other_dims_than_the_mesh():
    names = run(FIRST + SPECS.replace("device)", "xm.xla_device())"))
    assert spmd.get_xla_sharding_spec(names["t1"]) == "{devices=[1,8,1]0,1,2,3,4,5,6,7}"
    assert spmd.get_xla_sharding_spec(names["t2"]) == "{devices=[8]0,1,2,3,4,5,6,7}"


@pytest.mark.parametrize("spec, sharding, shape", [
    ("('data', None)", "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", (2, 4)),
    ("(None, 'model')", "{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}", (8, 2)),
    ("('data', 'model')", "{devices=[4,2]0,1,2,3,4,5,6,7}", (2, 2)),
])
def test_data_model_and_both(spec, sharding, shape):
    t = run(TRANSLATION.format(spec=spec))["t"]
    assert spmd.get_xla_sharding_spec(t) == sharding and {shard.data.shape for shard in t.local_shards} == {shape}


def test_partial_replication():
    """The guide's t has two dims; the spec of three is of a tensor of three."""
    text = TRANSLATION.format(spec="('data', None)") + """
t = torch.randn(8, 4, 2).to(xm.xla_device())
mesh = Mesh(device_ids, (2, 2, 2), ('x', 'y', 'z'))
partition_spec = ('x', None, 'z')  # 在x和z轴上分片，在y轴上复制
xs.mark_sharding(t, mesh, partition_spec)
"""
    t = run(text)["t"]
    assert spmd.get_xla_sharding_spec(t) == "{devices=[2,1,2,2]0,2,1,3,4,6,5,7 last_tile_dim_replicate}"


def test_the_mesh_of_the_guide_is_that_of_numpy():
    mesh = run(FIRST)["mesh"]
    assert isinstance(mesh.get_logical_mesh(), np.ndarray) and mesh.get_logical_mesh().tolist() == [[n] for n in range(8)]
