"""h5py: one file, contiguous datasets or chunks with shuffle and zstd-3. It does not sync: worker.py does."""
import os

import h5py
import hdf5plugin
import numpy as np

from rival import Rival, blocks


class Measured(Rival):
    def __init__(self, case, tensors):
        super().__init__(case, tensors)
        # A cache that holds a tensor: with the default one, slices of columns decode each chunk again.
        self.cache = {} if case == "contiguous" else {"rdcc_nbytes": 64 << 20}

    def options(self, shape):
        if self.case == "contiguous":
            return {}
        return dict(chunks=(min(256, shape[0]), *shape[1:]), shuffle=True, **hdf5plugin.Zstd(clevel=3))

    def save(self, path):
        os.mkdir(path)
        with h5py.File(path + "/h5", "w", **self.cache) as file:
            for name, x in self.arrays.items():
                file.create_dataset(name, data=x, **self.options(x.shape))

    def restore(self, path):
        restored = {}
        with h5py.File(path + "/h5", "r", **self.cache) as file:
            for name, dataset in file.items():
                restored[name] = np.empty(dataset.shape, dataset.dtype)
                dataset.read_direct(restored[name])
        return restored

    def resharded(self, path):
        with h5py.File(path + "/h5", "r", **self.cache) as file:
            return {name: [(box, d[box]) for box in blocks(d.shape)] for name, d in file.items()}
