#!/usr/bin/env python3
"""The state of a training job, saved and loaded by Shardwise, by torch.distributed.checkpoint, Orbax and safetensors, in
turns; how long single calls of Shardwise take, and how much memory. Medians, and ratios with their goals.

  PYTHONPATH=<build>/python/package python bench/rivals/python/jobs.py FOLDER [--mib 2048] [--rounds 3] [--json OUT]

The state is 200 tensors of random float32. Every save ends with its files on the disk; every load is from the page cache
into memory that was touched. Nothing is compressed, as the rivals do not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import numpy as np

import shardwise as sw

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from machine import measured_on

TENSORS = 200


def sync(path: pathlib.Path) -> None:
    for file in path.rglob("*"):
        if file.is_file():
            with open(file, "rb") as f:
                os.fsync(f.fileno())


def in_turns(rounds: int, ways: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Median seconds of each way, after a round that warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            seconds = way()
            if number:
                times[name].append(seconds)
    return {name: statistics.median(found) for name, found in times.items()}


def seconds_of(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def arrays(mib: int) -> dict[str, np.ndarray]:
    rows = mib * (1 << 20) // TENSORS // 4096
    rng = np.random.default_rng(1)
    return {f"layers.{i}.weight": rng.standard_normal((rows, 1024), dtype=np.float32) for i in range(TENSORS)}


def of_torch(rank: int, size: int, port: int, folder: str, mib: int, rounds: int, pipe: Any) -> None:
    """One rank of a job: FSDP's kind of state, DTensors cut by rows."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import shardwise.torch as swt

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (size,))
    rows = mib * (1 << 20) // TENSORS // 4096 // size * size
    torch.manual_seed(1)

    def state(placement: Any) -> dict[str, Any]:
        return {f"layers.{i}.weight": distribute_tensor(torch.randn(rows, 1024), mesh, [placement]) if size > 1
                else torch.randn(rows, 1024) for i in range(TENSORS)}

    cut, other = state(Shard(0)), state(Shard(1) if size > 1 else Replicate())
    root = pathlib.Path(folder)

    def fresh(name: str) -> pathlib.Path:
        if rank == 0:
            shutil.rmtree(root / name, ignore_errors=True)
        dist.barrier()
        return root / name

    def timed(function: Callable[[], Any]) -> float:
        dist.barrier()
        began = time.perf_counter()
        function()
        dist.barrier()
        return time.perf_counter() - began

    def save(name: str, function: Callable[[pathlib.Path], Any]) -> float:
        path = fresh(name)
        return timed(lambda: function(path))

    found = {"save": in_turns(rounds, {
        "dcp": lambda: save("dcp", lambda p: dcp.save(cut, storage_writer=dcp.FileSystemWriter(p))),
        "swt": lambda: save("swt", lambda p: swt.save(p, cut, codec="none"))})}
    for what, target in (("load", cut), ("reshard", other)):
        found[what] = in_turns(rounds, {
            "dcp": lambda: timed(lambda: dcp.load(target, storage_reader=dcp.FileSystemReader(root / "dcp"))),
            "swt": lambda: timed(lambda: swt.load(root / "swt", target))})
    own = [t.to_local() if size > 1 else t for t in cut.values()]
    copies = [torch.empty_like(t) for t in own]

    def copy() -> None:
        for a, b in zip(copies, own):
            a.copy_(b)

    def settled() -> pathlib.Path:
        """A folder that is not there, its removal being done with: a copy right after it takes a third longer."""
        path = fresh("async")
        if rank == 0:
            os.sync()
        dist.barrier()
        return path

    def memcpy() -> float:
        settled()
        return timed(copy)

    def save_async() -> float:
        path = settled()
        began = time.perf_counter()
        pending = swt.save_async(path, cut, codec="none")
        seconds = time.perf_counter() - began
        pending.result()
        return seconds

    found["async"] = in_turns(rounds, {"memcpy": memcpy, "swt": save_async})
    if rank == 0:
        pipe.send(found)
    dist.barrier()
    dist.destroy_process_group()


def torch_job(size: int, folder: str, mib: int, rounds: int) -> dict[str, dict[str, float]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    port = 29500 + os.getpid() % 1000
    ranks = [context.Process(target=of_torch, args=(rank, size, port, folder, mib, rounds, theirs)) for rank in range(size)]
    for rank in ranks:
        rank.start()
    while not ours.poll(1):
        if any(rank.exitcode not in (None, 0) for rank in ranks):
            raise SystemExit("a rank has failed")
    found: dict[str, dict[str, float]] = ours.recv()
    for rank in ranks:
        rank.join()
    return found


def of_jax(folder: pathlib.Path, mib: int, rounds: int) -> dict[str, dict[str, float]]:
    import jax
    import orbax.checkpoint as ocp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    import shardwise.jax as swj

    by_rows = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d"))
    state = {name: jax.device_put(a[: len(a) // 8 * 8], by_rows) for name, a in arrays(mib).items()}
    jax.block_until_ready(state)
    wanted = {name: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=by_rows) for name, a in state.items()}
    checkpointer = ocp.StandardCheckpointer()

    def orbax_save() -> float:
        shutil.rmtree(folder / "orbax", ignore_errors=True)

        def save() -> None:
            checkpointer.save(folder / "orbax", state)
            checkpointer.wait_until_finished()
            sync(folder / "orbax")

        return seconds_of(save)

    def our_save() -> float:
        shutil.rmtree(folder / "swj", ignore_errors=True)
        return seconds_of(lambda: swj.save(folder / "swj", state, codec="none"))

    def our_async() -> float:
        shutil.rmtree(folder / "async", ignore_errors=True)
        began = time.perf_counter()
        pending = swj.save_async(folder / "async", state, codec="none")
        seconds = time.perf_counter() - began
        pending.result()
        return seconds

    return {"save": in_turns(rounds, {"orbax": orbax_save, "swj": our_save}),
            "restore": in_turns(rounds, {
                "orbax": lambda: seconds_of(lambda: jax.block_until_ready(checkpointer.restore(folder / "orbax", wanted))),
                "swj": lambda: seconds_of(lambda: jax.block_until_ready(swj.load(folder / "swj", wanted)))}),
            "async": in_turns(rounds, {"swj": our_async})}


INTERRUPTED = """
import sys, time, numpy as np, shardwise as sw
m = sw.CheckpointManager(sys.argv[1])
w = np.random.default_rng(1).random(100_000_000)
told = []
def tell(done, total):
    if not told: print("under way", flush=True)
    told.append(done)
try:
    m.save(1, {"w": w}, progress=tell)
except KeyboardInterrupt:
    print(time.time(), len([p for p in __import__("os").listdir(sys.argv[1]) if "step" in p]), flush=True)
"""


def ctrl_c(folder: pathlib.Path) -> float:
    """Seconds from the signal, in the middle of a save, to the exception."""
    shutil.rmtree(folder / "c", ignore_errors=True)
    job = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(folder / "c")], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None and job.stdout.readline() == "under way\n"
    sent = time.time()
    job.send_signal(signal.SIGINT)
    words = job.stdout.readline().split()
    job.wait()
    assert words[1:] == ["0"], f"there is still {words}"
    return float(words[0]) - sent


PEAK = """
import os, sys, numpy as np, shardwise as sw
kind, folder, mib = sys.argv[1], sys.argv[2], int(sys.argv[3])
rows = mib * 256 // 200
name = lambda i: f"layers.{i}.weight"

def status(word):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(word)) >> 10

if kind.startswith("swt"):
    import torch, shardwise.torch as swt
    state = {name(i): torch.ones(rows, 1024) for i in range(200)}
elif kind.startswith("swj"):
    import jax, shardwise.jax as swj
    state = {name(i): jax.device_put(np.ones((rows, 1024), np.float32)) for i in range(200)}
    wanted = {n: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for n, a in state.items()}
else:
    state = {name(i): np.ones((rows, 1024), np.float32) for i in range(200)}
run = {"sw.save": lambda: sw.save(folder, state, existing="replace"), "sw.load": lambda: sw.load(folder),
       "swt.save": lambda: swt.save(folder, state, existing="replace"), "swt.load": lambda: swt.load(folder, state),
       "swt.save_async": lambda: swt.save_async(folder, state, existing="replace").result(),
       "swj.save": lambda: swj.save(folder, state, existing="replace"), "swj.load": lambda: jax.block_until_ready(swj.load(folder, wanted)),
       "swj.save_async": lambda: swj.save_async(folder, state, existing="replace").result()}[kind]
if kind.endswith("load"):
    (sw.save if kind == "sw.load" else swt.save if kind == "swt.load" else swj.save)(folder, state, existing="replace")
open("/proc/self/clear_refs", "w").write("5")  # resets the peak
before = status("VmRSS")
found = run()
print(status("VmHWM") - before)
"""


def peaks(folder: pathlib.Path, mib: int) -> dict[str, tuple[int, int]]:
    """MiB that a call takes beyond the existing state, and how many of them are its result or a copy that it
    must make."""
    given = {"sw.save": 0, "sw.load": mib, "swt.save": 0, "swt.save_async": mib, "swt.load": 0, "swj.save": 0, "swj.save_async": 0,
             "swj.load": mib}
    return {kind: (int(subprocess.run([sys.executable, "-c", PEAK, kind, str(folder / "peak"), str(mib)], capture_output=True,
                                      text=True, check=True).stdout), of_it) for kind, of_it in given.items()}


def of_small(folder: pathlib.Path) -> dict[str, dict[str, float]]:
    """10,000 tensors of 4 KiB."""
    import safetensors.numpy
    import safetensors.torch

    import shardwise.torch as swt

    rng = np.random.default_rng(1)
    state = {f"layers.{i}.weight": rng.standard_normal(1024, dtype=np.float32) for i in range(10_000)}
    safetensors.numpy.save_file(state, folder / "small.safetensors")
    sw.save(folder / "small", state, existing="replace")
    return {"numpy": in_turns(9, {
                "safetensors": lambda: seconds_of(lambda: safetensors.numpy.load_file(folder / "small.safetensors")),
                "ours": lambda: seconds_of(lambda: sw.load(folder / "small"))}),
            "torch": in_turns(9, {
                "safetensors": lambda: seconds_of(lambda: safetensors.torch.load_file(folder / "small.safetensors")),
                "ours": lambda: seconds_of(lambda: swt.load_state_dict(folder / "small"))})}


NEW_PROCESS = """
import resource, sys
import numpy

def spent():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

began = spent()
if sys.argv[1] == "ours":
    from shardwise import load
else:
    from safetensors.numpy import load_file as load
imported = spent()
state = load(sys.argv[2])
print(imported - began, spent() - imported)
"""


def of_new_process(folder: pathlib.Path) -> dict[str, dict[str, float]]:
    """4,000 tensors of 4 KiB: processor time of the import, compared with numpy's, and of the first load."""
    import safetensors.numpy

    state = {f"layers.{i}.weight": np.full(1024, i, np.float32) for i in range(4000)}
    paths = {"safetensors": folder / "few.safetensors", "ours": folder / "few"}
    safetensors.numpy.save_file(state, paths["safetensors"])
    sw.save(paths["ours"], state, codec="none", existing="replace")
    found: dict[str, list[list[float]]] = {name: [] for name in paths}
    for _ in range(9):
        for name, path in paths.items():
            told = subprocess.check_output([sys.executable, "-c", NEW_PROCESS, name, path], text=True)
            found[name].append([float(word) for word in told.split()])
    return {what: {name: statistics.median(map(of, rounds)) for name, rounds in found.items()}
            for what, of in (("load", lambda row: row[1]), ("import and load", sum))}


def of_calls(folder: pathlib.Path) -> dict[str, float]:
    sw.save(folder / "one", {"w": np.zeros((4096, 4096), np.float32)}, codec="none", existing="replace")
    sw.save(folder / "many", {f"t{i}": np.zeros(1024, np.float32) for i in range(10_000)}, existing="replace")
    with sw.open(folder / "one") as one:
        rows = statistics.median(seconds_of(lambda: one["w"][10:20]) for _ in range(20))
    program = "import time; t = time.perf_counter(); import numpy, ml_dtypes; t = time.perf_counter(); import shardwise; print(time.perf_counter() - t)"
    imports = [float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout) for _ in range(5)]
    return {"w[10:20] of 64 MiB": rows, "open of 10,000 tensors": statistics.median(
                seconds_of(lambda: sw.open(folder / "many").close()) for _ in range(5)),
            "import, beside numpy's": statistics.median(imports),
            "Ctrl-C in a save": statistics.median(ctrl_c(folder) for _ in range(5))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    words = parser.parse_args()
    folder = words.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}

    def row(what: str, measured: str, aim: str, holds: bool) -> None:
        print(f"{what:<44} {measured:<34} {aim:<18} {'MET' if holds else 'NOT MET'}", flush=True)

    def against(what: str, rival: str, ours: str, times: dict[str, float], aim: float = 1.5) -> None:
        ratio = times[rival] / times[ours]
        row(what, f"{times[ours]:.3f} s, {rival} {times[rival]:.3f} s: {ratio:.2f} x", f">= {aim} x", ratio >= aim)

    found["calls"] = of_calls(folder)
    for (what, seconds), most in zip(found["calls"].items(), (0.002, 0.1, 0.15, 0.1)):
        row(what, f"{1000 * seconds:.1f} ms", f"<= {1000 * most:.0f} ms", seconds <= most)
    found["small"] = of_small(folder)
    for kind, times in found["small"].items():
        against(f"10,000 tensors of 4 KiB: load, {kind}", "safetensors", "ours", times, 1.0)
    found["new process"] = of_new_process(folder)
    for what, times in found["new process"].items():
        against(f"4,000 tensors of 4 KiB: {what}, new process", "safetensors", "ours", times, 1.0)
    found["peaks"] = peaks(folder, min(words.mib, 1024))
    for kind, (mib, of_it) in found["peaks"].items():
        row(f"{kind}: peak beyond a state of {min(words.mib, 1024)} MiB", f"{mib} MiB, {of_it} of them given or copied",
            f"<= {of_it + 256} MiB", mib <= of_it + 256)
    for size in (1, 4):
        found[f"torch {size}"] = times = torch_job(size, str(folder), words.mib, words.rounds)
        for what in ("save", "load", "reshard"):
            if size > 1 or what != "reshard":
                against(f"torch, {size} processes: {what}", "dcp", "swt", times[what])
        ratio = times["async"]["swt"] / times["async"]["memcpy"]
        row(f"torch, {size} processes: save_async blocks", f"{times['async']['swt']:.2f} s: {ratio:.2f} memcpy", "<= 1.15 memcpy",
            ratio <= 1.15)
    found["jax"] = times = of_jax(folder, words.mib, words.rounds)
    for what in ("save", "restore"):
        against(f"JAX, 8 devices: {what}", "orbax", "swj", times[what])
    row("JAX: save_async blocks", f"{1000 * times['async']['swj']:.1f} ms", "<= 5 ms", times["async"]["swj"] <= 0.005)
    if words.json:
        words.json.write_text(json.dumps({**measured_on(), **found}, indent=1))


if __name__ == "__main__":
    main()
