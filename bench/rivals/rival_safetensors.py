"""safetensors: one file, or eight files by several threads. It does not sync: worker.py does."""
from concurrent.futures import ThreadPoolExecutor
import os

from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from rival import THREADS, Rival, blocks


class Measured(Rival):
    def __init__(self, case, tensors):
        super().__init__(case, tensors)
        files = 8 if case.startswith("8 files") else 1
        names = list(self.arrays)
        self.names = [names[i::files] for i in range(files)]
        self.map = map if files == 1 else ThreadPoolExecutor(THREADS).map

    def each(self, path, work):
        """Of work(file, names), for each file, the dicts as one."""
        done = self.map(lambda i: work(f"{path}/{i}", self.names[i]), range(len(self.names)))
        return {name: x for part in done for name, x in part.items()}

    def save(self, path):
        os.mkdir(path)
        self.each(path, lambda file, names: save_file({n: self.arrays[n] for n in names}, file) or {})

    def open(self, path):
        with safe_open(f"{path}/0", "np") as file:
            return file.keys()

    def restore(self, path):
        return self.each(path, lambda file, names: load_file(file))

    def resharded(self, path):
        def read(name, names):
            with safe_open(name, "np") as file:
                slices = {n: file.get_slice(n) for n in names}
                return {n: [(box, s[box]) for box in blocks(s.get_shape())] for n, s in slices.items()}
        return self.each(path, read)
