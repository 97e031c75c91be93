"""The code of the blog "PyTorch/XLA SPMD: Scale Up Model Training and Serving with Automatic Parallelization", as it is printed but for
the lines that import PyTorch/XLA, and for slips of the pen that no PyTorch would run: num_devicese, ouput."""

import collections
import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this environment has not")

from seed_programs import with_our_imports
from torch import nn

import shardwise.torch.spmd as spmd

MESH = """
import numpy as np
import torch_xla.runtime as xr
from torch_xla.experimental.xla_sharding import Mesh

# Assuming you are running on a TPU host that has 8 devices attached
num_devices = xr.global_runtime_device_count()
# mesh shape will be (4,2) in this example
mesh_shape = (num_devices // 2, 2)
device_ids = np.array(range(num_devices))
# axis_names 'x' nad 'y' are optional
mesh = Mesh(device_ids, mesh_shape, ('x', 'y'))

logical = mesh.get_logical_mesh()
shape = mesh.shape()
"""

SPEC = """
import torch_xla.distributed.spmd as xs
# Provide optional mesh axis names and use them in the partition spec
mesh = Mesh(device_ids, (4, 2), ('data', 'model'))
partition_spec = ('model', 'data')
xs.mark_sharding(input_tensor, mesh, partition_spec)
"""

PARTIAL = """
import torch_xla.distributed.spmd as xs
# Provide optional mesh axis names and use them in the partition spec
mesh = Mesh(device_ids, (2, 2, 2), ('x', 'y', 'z'))

# evenly shard across x and z and replicate among y
partition_spec = ('x', 'z')  # equivalent to ('x', None, 'z')
xs.mark_sharding(input_tensor, mesh, partition_spec)
"""

SIMPLE = """
import numpy as np
import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.experimental.xla_sharding as xs
from torch_xla.experimental.xla_sharded_tensor import XLAShardedTensor
from torch_xla.experimental.xla_sharding import Mesh

# Enable XLA SPMD execution mode.
xr.use_spmd()

# Device mesh, this and partition spec as well as the input tensor shape define the individual shard shape.
num_devices = xr.global_runtime_device_count()
mesh_shape = (2, num_devices // 2)  # 2x4 on v3-8, 2x2 on v4-8
device_ids = np.array(range(num_devices))
mesh = Mesh(device_ids, mesh_shape, ('x', 'y'))

t = torch.randn(8, 4).to(xm.xla_device())

# Mesh partitioning, each device holds 1/8-th of the input
partition_spec = (0, 1)
m1_sharded = xs.mark_sharding(t, mesh, partition_spec)
assert isinstance(m1_sharded, XLAShardedTensor) == True
# Note that the sharding annotation is also in-placed updated to t
"""

TRAINING = """
# Sharding annotate the linear layer weights.
model = SimpleLinear().to(xm.xla_device())
xs.mark_sharding(model.fc1.weight, mesh, partition_spec)
optimizer = make_optimizer(model.parameters())

# Training loop
model.train()
for step, (data, target) in enumerate(loader):
  # Assumes `loader` returns data, target on XLA device
  optimizer.zero_grad()
  # Sharding annotate input data, we can shard any input
  # dimensions. Sharding the batch dimension enables
  # data parallelism, sharding the feature dimension enables
  # spatial partitioning.
  xs.mark_sharding(data, mesh, partition_spec)
  output = model(data)
  loss = loss_fn(output, target)
  loss.backward()
  optimizer.step()
  xm.mark_step()
  losses.append(loss.item())
"""


class SimpleLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.relu, self.fc2 = nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc2(self.relu(self.fc1(x)))


def run(text, **names):
    exec(with_our_imports(text), names)
    return names


def test_the_mesh():
    names = run(MESH)
    assert np.array_equal(names["logical"], [[0, 1], [2, 3], [4, 5], [6, 7]])
    assert names["shape"] == collections.OrderedDict([("x", 4), ("y", 2)])


@pytest.mark.parametrize("text, sharding", [
    (SPEC, "{devices=[2,4]0,2,4,6,1,3,5,7}"), (PARTIAL, "{devices=[2,2,2]0,2,1,3,4,6,5,7 last_tile_dim_replicate}"),
])
def test_the_specs(text, sharding):
    spmd.use_spmd()
    t = torch.randn(8, 4).to(spmd.xla_device())
    run(MESH + text, input_tensor=t)
    assert spmd.get_xla_sharding_spec(t) == sharding


def test_the_simple_example():
    names = run(SIMPLE)
    assert spmd.get_xla_sharding_spec(names["t"]) == spmd.get_xla_sharding_spec(names["m1_sharded"]) == "{devices=[2,4]0,1,2,3,4,5,6,7}"
    assert {shard.data.shape for shard in names["t"].local_shards} == {(4, 1)}


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-4),
], ids=["sgd", "adamw"])
def test_the_training_loop(make):
    """The blog's loop forgets loss.backward()."""
    torch.manual_seed(3)
    module, expected = SimpleLinear(), []
    batches = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(5)]
    plain = copy.deepcopy(module)
    optimizer = make(plain.parameters())
    for data, target in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(plain(data), target)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    loader = ((data.to(spmd.xla_device()), target.to(spmd.xla_device())) for data, target in batches)
    names = run(SIMPLE + TRAINING, SimpleLinear=lambda: module, loader=loader, losses=[], loss_fn=nn.functional.cross_entropy, make_optimizer=make)
    torch.testing.assert_close(names["losses"], expected, rtol=1e-5, atol=1e-6)
    found = {name: value.cpu() for name, value in names["model"].state_dict().items()}
    torch.testing.assert_close(found, plain.state_dict(), rtol=1e-5, atol=1e-6)
    assert spmd.get_xla_sharding_spec(names["model"].fc1.weight) == "{devices=[2,4]0,1,2,3,4,5,6,7}"
