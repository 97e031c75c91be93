#!/usr/bin/env python3
"""The memory that saves and loads take beyond what is there before them: the state, or what is to be filled. Each is
measured in a process of its own, whose peak begins anew before the call. jobs.py prints these rows, too.

  PYTHONPATH=<build>/python/package python bench/rivals/python/peaks.py FOLDER [--mib 1024]
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np

import shardwise as sw

TENSORS = 200
ALLOWED_MIB = 256
# By name: what is there before, the call, and how many copies of the state it may make beyond what is allowed.
WAYS = {
    "sw.save": ("numpy", "sw.save(new, state, codec=codec)", 0),
    "sw.load": ("none", "sw.load(old)", 1),
    "CheckpointManager.save_async": ("numpy", "sw.CheckpointManager(new, codec=codec).save_async(1, state).result()", 1),
    "swt.save": ("torch", "swt.save(new, state, codec=codec)", 0),
    "swt.save_async": ("torch", "swt.save_async(new, state, codec=codec).result()", 1),
    "swt.load": ("torch", "swt.load(old, state)", 0),
    "swt.load_state_dict": ("none", "swt.load_state_dict(old)", 1),
    "swj.save": ("jax", "swj.save(new, state, codec=codec)", 0),
    "swj.save_async": ("jax", "swj.save_async(new, state, codec=codec).result()", 0),
    "swj.load": ("shapes", "jax.block_until_ready(swj.load(old, state))", 1),
    "swj.load to numpy": ("none", "swj.load(old)", 1),
}


def status(field: str) -> int:
    """Bytes, of this process."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


def grown(function: Callable[[], Any]) -> int:
    """Bytes that the process had at most, beyond those before."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = status("VmRSS")
    kept = function()
    peak = status("VmHWM") - before
    del kept
    return peak


def state_of(kind: str, mib: int) -> Any:
    rows = mib * (1 << 20) // TENSORS // 4096 // 8 * 8
    rng = np.random.default_rng(1)
    state: dict[str, Any] = {f"layers.{i}.weight": rng.standard_normal((rows, 1024), dtype=np.float32) for i in range(TENSORS)}
    if kind == "torch":
        import torch

        state = {name: torch.from_numpy(array) for name, array in state.items()}
    if kind in ("jax", "shapes"):
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        by_rows = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d"))
        for name, array in state.items():
            state[name] = (jax.device_put(array, by_rows) if kind == "jax" else
                           jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=by_rows))
        jax.block_until_ready(state)
    return state


def one(way: str, folder: pathlib.Path, mib: int, codec: str) -> None:
    """In the child: prints MiB."""
    kind, call, _ = WAYS[way]
    names: dict[str, Any] = {"sw": sw, "old": folder / "old", "new": folder / "new", "codec": codec}
    exec("import jax, shardwise.jax as swj" if "swj" in call else "import shardwise.torch as swt" if "swt" in call else "", names)
    for size in (8, mib):  # first a small one: libraries, threads
        for path in (names["old"], names["new"]):
            shutil.rmtree(path, ignore_errors=True)
        sw.save(names["old"], state_of("numpy", size), codec=codec)
        names["state"] = None if kind == "none" else state_of(kind, size)
        peak = grown(lambda: eval(call, names))
    print(peak >> 20)


def peaks(folder: pathlib.Path, mib: int) -> Iterator[tuple[str, int, int]]:
    """What, MiB at most, and MiB allowed."""
    for way, (_, _, copies) in WAYS.items():
        for codec in ("none", "zstd"):
            done = subprocess.run([sys.executable, __file__, str(folder), "--mib", str(mib), "--one", way, "--codec", codec],
                                  capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"{way}: {done.stderr}")
            yield f"{way}, {codec}", int(done.stdout), copies * mib + ALLOWED_MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--one", choices=list(WAYS))
    parser.add_argument("--codec", default="zstd")
    words = parser.parse_args()
    folder = words.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if words.one:
        one(words.one, folder, words.mib, words.codec)
        return
    for what, most, allowed in peaks(folder, words.mib):
        print(f"{what:<40} {most:>6} MiB, allowed {allowed} MiB", flush=True)


if __name__ == "__main__":
    main()
