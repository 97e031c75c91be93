"""torch.distributed.checkpoint: one process; or two, which save rows and restore rows or columns."""
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from rival import THREADS, Rival


class Measured(Rival):
    def __init__(self, case, tensors):
        self.rank, self.processes = (int(os.environ.get(key, n)) for key, n in (("RANK", 0), ("WORLD_SIZE", 1)))
        self.shapes = {name: x.shape for name, x in tensors.items()}
        if self.processes > 1:
            dist.init_process_group("gloo", init_method="file://" + os.environ["RENDEZVOUS"],
                                    rank=self.rank, world_size=self.processes)
            self.mesh = init_device_mesh("cpu", (self.processes,))
            torch.set_num_threads(1)
        self.tensors = {name: self.sharded(torch.from_numpy(np.array(x[self.box(x.shape, 0)])), 0)
                        for name, x in tensors.items()}

    def box(self, shape, dim):
        """What of a tensor this process has where that dim is cut."""
        size = shape[dim] // self.processes
        return (slice(None),) * dim + (slice(self.rank * size, (self.rank + 1) * size),)

    def sharded(self, local, dim):
        return local if self.processes == 1 else DTensor.from_local(local, self.mesh, [Shard(dim)], run_check=False)

    def save(self, path):
        writer = dcp.FileSystemWriter(path, thread_count=max(1, THREADS // self.processes))
        dcp.save(self.tensors, storage_writer=writer, no_dist=self.processes == 1)

    def load(self, path, dim):
        restored = {}
        for name, shape in self.shapes.items():
            local = [n // self.processes if d == dim else n for d, n in enumerate(shape)]
            restored[name] = self.sharded(torch.empty(local), dim)
        dcp.load(restored, storage_reader=dcp.FileSystemReader(path), no_dist=self.processes == 1)
        self.dim = dim
        return restored

    def restore(self, path):
        return self.load(path, 0)

    @property
    def resharded(self):
        return (lambda path: self.load(path, 1)) if self.processes > 1 else None

    def parts(self, restored):
        return {name: [(self.box(self.shapes[name], self.dim), (x if self.processes == 1 else x.to_local()).numpy())]
                for name, x in restored.items()}

    def barrier(self):
        if self.processes > 1:
            dist.barrier()
