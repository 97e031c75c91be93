"""Measures one case of one rival in a process of its own, for run.py: prints one line of JSON.

Each step is timed from files and memory in a known state, and the restored tensors are compared, bit for bit,
with the saved ones. Exit status 1: they differ.
"""
import argparse
import ctypes
import importlib
import json
import mmap
import os
import shutil
import statistics
import sys
import time

import numpy as np

KEPT_WARM_UP, KEPT_ROUNDS = 4, 3


def files(path):
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def sync(path):
    """Files, folders, and the folder that they are in."""
    for name in files(path) + [folder for folder, _, _ in os.walk(path)] + [os.path.dirname(path)]:
        descriptor = os.open(name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def heat(path):
    """Into the page cache."""
    memory = bytearray(8 << 20)
    for name in files(path):
        with open(name, "rb", buffering=0) as file:
            while file.readinto(memory):
                pass


def chill(path):
    """Out of the page cache."""
    for name in files(path):
        with open(name, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def touch(size):
    """Free memory that a virtual machine has given back to its host takes its time when it is used again. What is
    free within the process goes back to the system, unless it is to be kept."""
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        ctypes.CDLL(None).malloc_trim(0)
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def settle(path, size):
    """Keeps the disk writing, always in one place, as long as the raw writes that `shardwise bench save`
    makes before each save: in that time a file system discards removed files."""
    block = b"\1" * (8 << 20)
    with open(path, "r+b" if os.path.exists(path) else "wb", buffering=0) as file:
        for _ in range(0, size, len(block)):
            file.write(block)
        os.fsync(file.fileno())


def compare(tensors, parts, processes):
    if parts.keys() != tensors.keys():
        sys.exit("the tensors restored are not those saved")
    for name, x in tensors.items():
        for index, part in parts[name]:
            want = x[index]
            if part.dtype != x.dtype or part.shape != want.shape or part.tobytes() != want.tobytes():
                sys.exit(f"{name}: the restored tensor differs from the saved one")
        if sum(part.size for _, part in parts[name]) * processes != x.size:
            sys.exit(f"{name}: a part of it was not restored")


def measure(rival, tensors, path, cold):
    """The seconds of each step, once."""
    first = int(os.environ.get("RANK", 0)) == 0
    size = sum(x.nbytes for x in tensors.values())
    seconds = {}

    def timed(key, work, before=None):
        if first and before:
            before(path)
        touch(size // rival.processes * 3 // 2)
        rival.barrier()
        begin = time.perf_counter()
        result = work(path)
        rival.barrier()
        if key == "save" and first:
            sync(path)
        rival.barrier()
        seconds[key] = time.perf_counter() - begin
        if key in ("restore", "cold", "resharded"):
            compare(tensors, rival.parts(result), rival.processes)

    timed("save", rival.save, before=lambda path: os.sync())
    stored = sum(map(os.path.getsize, files(path)))
    if rival.open:
        timed("open", rival.open, before=heat)
    timed("restore", rival.restore, before=heat)
    if next(iter(tensors.values())).ndim == 2:
        if rival.resharded:
            timed("resharded", rival.resharded, before=heat)
        if cold:
            timed("cold", rival.restore, before=chill)
    rival.barrier()
    if first:
        shutil.rmtree(path)
    rival.barrier()
    return {"seconds": seconds, "stored": stored / size}


def measure_kept(rival, size, path):
    """The seconds of saves of a job that keeps one checkpoint, without and with the removal of the one before: the
    medians of what follows some that warm up."""
    first = int(os.environ.get("RANK", 0)) == 0
    saves, removals = [], []
    for i in range(KEPT_WARM_UP + KEPT_ROUNDS):
        now, before = f"{path}-{i}", f"{path}-{i - 1}"
        if first:
            settle(f"{path}-settle", size)
        os.sync()
        touch(size // rival.processes * 3 // 2)
        rival.barrier()
        begin = time.perf_counter()
        rival.save(now)
        rival.barrier()
        if first:
            sync(now)
        saves.append(time.perf_counter() - begin)
        if first and i > 0:
            shutil.rmtree(before)
            sync(now)
        rival.barrier()
        removals.append(time.perf_counter() - begin)
    if first:
        shutil.rmtree(now)
        os.remove(f"{path}-settle")
    rival.barrier()
    return {"kept": statistics.median(saves[KEPT_WARM_UP:]), "removed": statistics.median(removals[KEPT_WARM_UP:])}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rival")
    parser.add_argument("case")
    parser.add_argument("tensors", help="a .npy file of all of them")
    parser.add_argument("path", help="of the checkpoint")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--kept", action="store_true", help="also save as a job that keeps one checkpoint")
    parser.add_argument("--once", action="store_true", help="without a first time that warms up")
    args = parser.parse_args()
    stacked = np.load(args.tensors, mmap_mode="r")
    tensors = {f"tensor_{i:05}": x for i, x in enumerate(stacked)}
    rival = importlib.import_module("rival_" + args.rival).Measured(args.case, tensors)
    if not args.once:
        measure(rival, tensors, args.path, args.cold)
    measured = measure(rival, tensors, args.path, args.cold)
    if args.kept:
        measured["seconds"] |= measure_kept(rival, sum(x.nbytes for x in tensors.values()), args.path)
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
