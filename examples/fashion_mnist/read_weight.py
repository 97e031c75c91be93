"""Reads a weight of a checkpoint with h5py alone: read_weight.py CHECKPOINT [TENSOR]."""
import math
import os
import sys

import h5py

checkpoint, tensor = sys.argv[1], (sys.argv[2:] or ["w1"])[0]
with h5py.File(os.path.join(checkpoint, "index.h5"), "r") as index:
    weight = index[tensor]
    print(f"{tensor}: {weight.dtype} {weight.shape}, cut {weight.attrs['spec'].decode()} over {weight.attrs['mesh'].decode()}")
    values = weight[...]
print(values[:3, :5])
print(f"{tensor}_sum {math.fsum(values.ravel().tolist()):.9g}")
