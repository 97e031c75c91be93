#!/usr/bin/env python3
"""Saves and loads the same arrays with Shardwise and with what else is installed, in turns: medians, and ratios.

  PYTHONPATH=<build>/python/package python bench/rivals/python/arrays.py FOLDER [--mib 512] [--rounds 3]

Every save ends with its files on the disk (fsync), which Shardwise and TensorStore do themselves; every load reads all
into fresh memory from the page cache.
"""

import argparse
import os
import shutil
import statistics
import time

import numpy as np

import shardwise as sw


def sync_folder(path: str) -> None:
    for folder, _, files in os.walk(path):
        for name in files:
            with open(os.path.join(folder, name), "rb") as f:
                os.fsync(f.fileno())


def rivals() -> dict:
    def shardwise(codec):
        return (lambda path, arrays: sw.save(path, arrays, codec=codec), lambda path: sw.load(path))

    found = {"shardwise none": shardwise("none"), "shardwise zstd": shardwise("zstd"),
             "np.savez": (lambda path, arrays: np.savez(path, **arrays), lambda path: dict(np.load(path + ".npz")))}
    try:
        from safetensors.numpy import load_file, save_file

        found["safetensors"] = (lambda path, arrays: save_file(arrays, path), load_file)
    except ImportError:
        pass
    try:
        import h5py

        def save_h5(path, arrays):
            with h5py.File(path, "w") as f:
                for name, array in arrays.items():
                    f[name] = array

        def load_h5(path):
            with h5py.File(path) as f:
                return {name: f[name][()] for name in f}

        found["h5py"] = (save_h5, load_h5)
    except ImportError:
        pass
    try:
        import torch
        import torch.distributed.checkpoint as dcp

        import shardwise.torch as swt

        def tensors(arrays):
            return {name: torch.from_numpy(array) for name, array in arrays.items()}

        def target(shapes):
            return {name: torch.empty(shape) for name, shape in shapes.items()}

        found["DCP"] = (lambda path, arrays: dcp.save(tensors(arrays), storage_writer=dcp.FileSystemWriter(path)),
                        lambda path: dcp.load(target(SHAPES), storage_reader=dcp.FileSystemReader(path)))
        found["DCP by shardwise"] = (
            lambda path, arrays: dcp.save(tensors(arrays), storage_writer=swt.StorageWriter(path, codec="none")),
            lambda path: dcp.load(target(SHAPES), storage_reader=swt.StorageReader(path)))
    except ImportError:
        pass
    return found


SHAPES: dict[str, tuple[int, ...]] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    arrays = {f"w{i}": rng.standard_normal((arguments.mib * 1024, 16), np.float32) for i in range(16)}
    SHAPES.update({name: array.shape for name, array in arrays.items()})
    total = sum(a.nbytes for a in arrays.values())
    os.makedirs(arguments.folder, exist_ok=True)
    seconds: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(arguments.rounds):
        for name, (save, load) in rivals().items():
            path = os.path.join(arguments.folder, "x")
            begin = time.perf_counter()
            save(path, arrays)
            if not name.startswith("shardwise") and "by shardwise" not in name:
                sync_folder(arguments.folder)
            saved = time.perf_counter()
            load(path)
            loaded = time.perf_counter()
            of = seconds.setdefault(name, ([], []))
            of[0].append(saved - begin)
            of[1].append(loaded - saved)
            shutil.rmtree(arguments.folder)
            os.makedirs(arguments.folder)
    print(f"{total / 2**20:.0f} MiB in {len(arrays)} float32 arrays, medians of {arguments.rounds}")
    base = [statistics.median(s) for s in seconds["shardwise none"]]
    for name, (saves, loads) in seconds.items():
        save, load = statistics.median(saves), statistics.median(loads)
        print(f"{name:18} save {save:6.2f} s ({save / base[0]:5.2f} x)   load {load:6.2f} s ({load / base[1]:5.2f} x)")


if __name__ == "__main__":
    main()
