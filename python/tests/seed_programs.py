"""Programs for PyTorch/XLA SPMD, as its users write them. test_seed_oracle.py runs them with other imports and compares their
notes with those of PyTorch/XLA in seed_expected.json, which was made so:

    python -m venv seed && seed/bin/pip install torch_xla==2.9.0 torch==2.9.1 numpy
    PJRT_DEVICE=CPU CPU_NUM_DEVICES=8 seed/bin/python python/tests/seed_programs.py python/tests/seed_expected.json
"""

import contextlib
import json
import os
import re
import sys

IMPORTS = """\
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
from torch_xla.distributed.spmd import Mesh
from torch_xla.distributed.spmd import XLAShardedTensor
"""

BEGIN = IMPORTS + """
xr.use_spmd()
device = xm.xla_device()
num_devices = xr.global_runtime_device_count()
device_ids = np.array(range(num_devices))
torch.manual_seed(0)
"""

SPECS = BEGIN + """
meshes = {
    "4x2": Mesh(device_ids, (4, 2), ("data", "model")), "8x1": Mesh(device_ids, (num_devices, 1), ("data", "model")),
    "2x2x2": Mesh(device_ids, (2, 2, 2), ("x", "y", "z")), "unnamed": Mesh(device_ids, (2, 4)),
    "back": Mesh(device_ids[::-1].copy(), (4, 2), ("data", "model")),
}
specs = [("4x2", ("data", None)), ("4x2", (None, "model")), ("4x2", ("model", "data")), ("4x2", (("data", "model"), None)),
         ("4x2", (("model", "data"), None)), ("4x2", (None, None)), ("8x1", ("data", "model")), ("8x1", ("model", None)),
         ("2x2x2", ("x", "z")), ("2x2x2", (("x", "z"), "y")), ("unnamed", (0, 1)), ("unnamed", (None, 0)), ("back", ("data", None)),
         ("back", ("model", "data"))]
for mesh, spec in specs:
    t = torch.arange(35.0).reshape(7, 5).to(device)
    xs.mark_sharding(t, meshes[mesh], spec)
    note(f"{mesh} {spec}", t)
    note_shards(f"{mesh} {spec}", t)
"""

OPERATIONS = BEGIN + """
mesh = Mesh(device_ids, (4, 2), ("data", "model"))
a, b, w = (torch.randn(*shape).to(device) for shape in ((8, 4), (4, 6), (4, 6)))
xs.mark_sharding(a, mesh, ("data", None))
xs.mark_sharding(w, mesh, (None, "model"))
c, d = a @ b, a @ w
e = (a @ b).relu()
xs.mark_sharding(e, mesh, (None, "model"))
note("marked, pending", e)
f = e * 2 + 1
g = d.t().exp()
total = d.sum(0)
h = torch.cat([d, d], 0)
s = d.softmax(-1)
v = d.reshape(4, 2, 6).mean(1)
xm.mark_step()
for name, t in dict(a=a, b=b, w=w, c=c, d=d, e=e, f=f, g=g, total=total, s=s, v=v).items():
    note(name, t)
after = f.sum(1) + c.mean()
w.add_(1)
xm.mark_step()
note("after", after)
note("w.add_", w)
"""

MLP = BEGIN + """
mesh = Mesh(device_ids, (4, 2), ("data", "model"))
for kind in ("SGD", "AdamW"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    xs.mark_sharding(model[0].weight, mesh, ("model", None))
    xs.mark_sharding(model[2].weight, mesh, (None, "model"))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
    for step in range(5):
        x, y = torch.randn(8, 6).to(device), torch.randint(0, 4, (8,)).to(device)
        xs.mark_sharding(x, mesh, ("data", None))
        xs.mark_sharding(y, mesh, ("data",))
        optimizer.zero_grad()
        output = model(x)
        loss = F.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
        xm.mark_step()
        note(f"{kind} loss {step}", loss)
        note(f"{kind} output {step}", output)
    for name, p in model.named_parameters():
        note(f"{kind} {name}", p)
        note(f"{kind} {name}.grad", p.grad)
        for key, state in optimizer.state[p].items():
            if torch.is_tensor(state) and state.dim():
                note(f"{kind} {name}.{key}", state)
"""

GPT = BEGIN + """
mesh = Mesh(device_ids, (4, 2), ("fsdp", "tensor"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        mask = torch.triu(torch.full((length, length), -1e9, device=x.device), 1)
        mixed = ((scores + mask).softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, words=32, width=16, heads=4, layers=2, length=8):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


model = GPT().to(device)
for name, p in model.named_parameters():
    if p.dim() == 2:
        down = "out" in name or "down" in name or "words" in name or "places" in name
        xs.mark_sharding(p, mesh, ("tensor", "fsdp") if not down else ("fsdp", "tensor"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(4):
    ids = torch.randint(0, 32, (8, 9))
    x, y = ids[:, :-1].contiguous().to(device), ids[:, 1:].contiguous().to(device)
    xs.mark_sharding(x, mesh, ("fsdp", None))
    xs.mark_sharding(y, mesh, ("fsdp", None))
    optimizer.zero_grad()
    logits = model(x)
    loss = F.cross_entropy(logits.reshape(-1, 32), y.reshape(-1))
    loss.backward()
    optimizer.step()
    xm.mark_step()
    note(f"loss {step}", loss)
note("logits", logits)
for name, p in model.named_parameters():
    note(name, p)
"""

FSDP = BEGIN + """
mesh = Mesh(device_ids, (num_devices,), ("fsdp",))
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16)).to(device)
for p in model.parameters():
    xs.mark_sharding(p, mesh, ("fsdp",) + (None,) * (p.dim() - 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(4):
    x, y = torch.randn(16, 8).to(device), torch.randn(16, 16).to(device)
    xs.mark_sharding(x, mesh, ("fsdp", None))
    xs.mark_sharding(y, mesh, ("fsdp", None))
    optimizer.zero_grad()
    output = model(x)
    loss = F.mse_loss(output, y)
    loss.backward()
    optimizer.step()
    xm.mark_step()
    note(f"loss {step}", loss)
note("output", output)
for name, p in model.named_parameters():
    note(name, p)
    note(f"{name}.momentum", optimizer.state[p]["momentum_buffer"])
"""

# Spatial partitioning: images are cut in batch and height, weights are not.
IMAGES = BEGIN + """
mesh = Mesh(device_ids, (4, 2), ("batch", "height"))
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
model, head = model.to(device), nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for step in range(3):
    x, y = torch.randn(8, 3, 16, 16).to(device), torch.randint(0, 4, (8,)).to(device)
    xs.mark_sharding(x, mesh, ("batch", None, "height", None))
    optimizer.zero_grad()
    features = model(x)
    loss = F.cross_entropy(head(features.mean((2, 3))), y)
    loss.backward()
    optimizer.step()
    xm.mark_step()
    note(f"loss {step}", loss)
note("features", features)
for name, value in [*model.state_dict().items(), *head.state_dict().items()]:
    if value.dim():
        note(name, value)
"""

PROGRAMS = {"specs": SPECS, "operations": OPERATIONS, "mlp": MLP, "gpt": GPT, "fsdp": FSDP, "images": IMAGES}


def with_our_imports(program):
    """Replaces the lines that import PyTorch/XLA, as a user does."""
    lines = [re.sub(r"\btorch_xla(\.\w+)*", "shardwise.torch.spmd", line) if line.lstrip().startswith(("import ", "from ")) else line
             for line in program.splitlines()]
    return "\n".join("import shardwise.torch.spmd as torch_xla" if line == "import shardwise.torch.spmd" else line for line in lines)


def noting(sharding_of):
    """Returns the notes that a program makes on its tensors, and the functions that make them."""
    noted = {}

    def note(name, tensor):
        values = tensor.detach().cpu().flatten()
        some = values.tolist() if len(values) <= 24 else [values.sum().item(), values.norm().item(), *values[:8].tolist()]
        noted[name] = {"sharding": sharding_of(tensor), "values": [float(f"{value:.7g}") for value in some]}

    def note_shards(name, tensor):
        noted[name]["shards"] = [[shard.data.tolist(), str(shard.indices), shard.replica_id] for shard in shards_of(tensor)]

    return noted, {"note": note, "note_shards": note_shards}


def shards_of(tensor):
    return (tensor if hasattr(tensor, "local_shards") else sys.modules["torch_xla.distributed.spmd"].XLAShardedTensor(tensor)).local_shards


def main(path):
    import torch_xla

    expected = {}
    for name, program in PROGRAMS.items():
        expected[name], functions = noting(torch_xla._XLAC._get_xla_sharding_spec)
        with contextlib.redirect_stdout(sys.stderr):
            exec(program, functions)
    with open(path, "w") as file:
        json.dump(expected, file)
    print(os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main(sys.argv[1])
