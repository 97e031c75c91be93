"""Writes process_view.jsonl: what JAX says each process holds of a sharded array.

Needs jax 0.10.2 and numpy. The index maps are JAX's own, over 24 emulated CPU devices; only which
process a device belongs to is made up.

  XLA_FLAGS=--xla_force_host_platform_device_count=24 JAX_PLATFORMS=cpu \\
      python3 gen_process_view.py > process_view.jsonl
"""

import dataclasses
import json
import random

import jax
import numpy as np
from jax._src import sharding_impls
from jax.sharding import Mesh, NamedSharding, PartitionSpec

rng = random.Random(7)


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    process_index: int


class View:
    """A NamedSharding as one process sees it, hashable as JAX's caches want."""

    def __init__(self, named, process_of, process):
        self.named, self.process_of, self.process = named, process_of, process
        self.num_devices = named.num_devices
        self.is_fully_replicated = named.is_fully_replicated
        self.addressable_devices = [d for d in self.devices() if d.process_index == process]
        self.is_fully_addressable = len(self.addressable_devices) == self.num_devices

    def devices(self):
        return [Device(d.id, self.process_of[d.id]) for d in self.named.mesh.devices.flat]

    def devices_indices_map(self, shape):
        indices = self.named.devices_indices_map(shape)
        return {Device(d.id, self.process_of[d.id]): index for d, index in indices.items()}

    def addressable_devices_indices_map(self, shape):
        indices = self.devices_indices_map(shape)
        return {d: i for d, i in indices.items() if d.process_index == self.process}

    def shard_shape(self, shape):
        return self.named.shard_shape(shape)


def random_case():
    sizes = rng.choice([[2, 2, 2], [4, 2], [2, 4], [8], [2, 3, 4], [6, 4], [4, 3, 2], [3, 4], [16]])
    axes = "abc"[: len(sizes)]
    count = int(np.prod(sizes))
    ids = list(range(count))
    number = rng.choice([n for n in (1, 2, 2, 3, 4, 4, 8) if count % n == 0])
    processes = [d // (count // number) for d in range(count)]
    kind = rng.randrange(5)
    if kind == 0:
        rng.shuffle(ids)
    elif kind == 1:
        rng.shuffle(processes)
    elif kind == 2:
        processes = [rng.randrange(3) for _ in ids]
    rank = rng.randint(1, 3)
    entries = [[] for _ in range(rank)]
    for axis in rng.sample(axes, len(axes)):
        if rng.randrange(4):
            rng.choice(entries).append(axis)
    return sizes, axes, ids, processes, entries


def answer(sizes, axes, ids, processes, entries):
    devices = jax.devices()
    mesh = Mesh(np.array([devices[i] for i in ids], dtype=object).reshape(sizes), tuple(axes))
    spec = PartitionSpec(*[tuple(e) if e else None for e in entries])
    named = NamedSharding(mesh, spec)
    size_of = dict(zip(axes, sizes))
    shape = tuple(int(np.prod([size_of[a] for a in e])) * rng.randint(1, 3) for e in entries)
    rows = {}
    for process in sorted(set(processes[i] for i in ids)):
        view = View(named, processes, process)
        shares = []
        for dim in range(len(shape)):
            try:
                shares.append(list(sharding_impls.get_process_index_and_count(view, dim, len(shape))))
            except sharding_impls.NonUniformShardingError:
                shares.append(None)
        local = [sharding_impls.num_addressable_indices(view, dim, shape) for dim in range(len(shape))]
        rows[process] = {"shares": shares, "local": local,
                         "global": list(sharding_impls.local_to_global_shape(view, tuple(local)))}
    text = ",".join(f"{a}={n}" for a, n in zip(axes, sizes)) + "@" + ",".join(map(str, ids))
    spec_text = ",".join("+".join(e) if e else "-" for e in entries)
    return {"mesh": text, "spec": spec_text, "process_of": processes, "shape": shape,
            "processes": rows}


for _ in range(250):
    print(json.dumps(answer(*random_case()), separators=(",", ":")))
