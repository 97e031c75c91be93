#!/usr/bin/env python3
"""Compares Shardwise with its rivals: the same tensors, on the same file system, by turns in one run (README.md).

Prints a table of medians, and how many times as fast as the fastest rival Shardwise is. Exit status 3: something
was restored that was not saved, or a program failed; whether limits are reached is in the table.
"""
import argparse
import collections
import concurrent.futures
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from machine import measured_on

HERE = pathlib.Path(__file__).resolve().parent
CASES = [  # rival, case, comparisons; "small once": slow, so in the first round only and not warmed up
    ("safetensors", "one file", ["raw", "small"]),
    ("safetensors", "8 files, threads", ["raw"]),
    ("h5py", "contiguous", ["raw", "small once"]),
    ("h5py", "shuffle, zstd-3", ["zstd once"]),
    ("dcp", "1 process, threads", ["raw", "small once"]),
    ("dcp", "2 processes", ["raw"]),
    ("orbax", "uncompressed", ["raw", "small once"]),
    ("orbax", "zstd", ["zstd"]),
    ("tensorstore", "zarr3 in OCDBT", ["raw", "small once"]),
]
MODULES = {"safetensors": ["safetensors"], "h5py": ["h5py", "hdf5plugin"], "dcp": ["torch"],
           "orbax": ["orbax-checkpoint", "jax"], "tensorstore": ["tensorstore"]}
MEASURES = [  # kind, step, title, unit, limit: how many times as fast as the fastest rival (stored: smaller)
    ("raw", "save", "durable save, raw", "GB/s", 1.5),
    ("raw", "kept", "durable save, raw, one kept", "GB/s", 1.5),
    ("raw", "removed", "durable save, raw, and removal of the one before", "GB/s", 1.5),
    ("raw", "restore", "restore, raw", "GB/s", 1.5),
    ("raw", "resharded", "restore onto another mesh, raw", "GB/s", 1.5),
    ("raw", "cold", "restore, raw, cold", "GB/s", None),
    ("zstd", "save", "durable save, zstd", "GB/s", 4),
    ("zstd", "restore", "restore, zstd", "GB/s", 3),
    ("zstd", "resharded", "restore onto another mesh, zstd", "GB/s", 1.5),
    ("zstd", "cold", "restore, zstd, cold", "GB/s", None),
    ("zstd", "stored", "bytes on disk / bytes", "", 1),
    ("small", "save", "small tensors, durable save", "s", 1),
    ("small", "restore", "small tensors, open and restore", "s", 1),
    ("small", "open", "small tensors, open", "s", None),
]
OPEN_LIMIT_S = 0.05
KEPT_ROUNDS = 3  # as in worker.py
OURS = "shardwise"
# --memory kept: what `shardwise bench` does with mallopt. Memory that is given back stays with the process.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**62), "MALLOC_TOP_PAD_": str(64 << 20)}


def fail(message):
    """Ends this program: something is missing, failed, or was restored that was not saved."""
    print(f"run.py: {message}", file=sys.stderr)
    sys.exit(3)


def run(what, *processes):
    """Runs programs side by side, each a command and additions to its environment; returns the output of the
    first. If one fails, the others end, too, and this program."""
    running = [subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=os.environ | environment) for command, environment in processes]
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            outputs = {pool.submit(process.communicate): process for process in running}
            for output in concurrent.futures.as_completed(outputs):
                if status := outputs[output].returncode:
                    for process in running:
                        process.kill()
                    print("".join(output.result())[-3000:], file=sys.stderr)
                    fail(f"{what} failed, with status {status}")
            return next(iter(outputs)).result()[0]
    finally:
        for process in running:
            process.kill()


class Bench:
    def __init__(self, args, scratch):
        self.args, self.scratch = args, scratch
        self.values = collections.defaultdict(lambda: collections.defaultdict(list))  # kind, step -> system -> each
        self.bytes = {}

    def ours(self, command, kind, *more):
        root = self.scratch / "ours"
        once = [] if "--repeat" in more else ["--repeat", 1]
        line = [self.args.shardwise, "bench", command, root, *more, *once, "--json"]
        result = json.loads(run(f"shardwise bench {command}, {kind},", (line, {})))
        if command == "restore" and result["verified"] is not True:
            fail(f"shardwise, {kind}: {result.get('difference', 'the restored tensors were not compared')}")
        return result

    def save_ours(self, kind, *keep):
        if kind == "small":
            tensors = ["--tensors", self.args.small, "--shape", 1024, "--mesh", "one=1", "--spec", "one"]
        else:
            tensors = ["--tensors", self.args.tensors, "--shape", self.args.shape, "--mesh", "data=4,model=2",
                       "--spec", "data,model"]
        return self.ours("save", kind, *tensors, "--codec", "zstd" if kind == "zstd" else "none", *(keep or ["--keep"]))

    def make_tensors(self, kind):
        """What Shardwise saves, for the rivals to save: in one file, one after the other."""
        import h5py
        import numpy
        folder = pathlib.Path(self.save_ours(kind)["directory"])
        with h5py.File(folder / "shards-00000-of-00001.h5"), h5py.File(folder / "index.h5") as index:
            first = index["tensor_00000"]
            stacked = numpy.lib.format.open_memmap(self.tensors(kind), "w+", first.dtype, (len(index), *first.shape))
            for i, tensor in enumerate(index.values()):
                tensor.read_direct(stacked[i])
        stacked.flush()
        self.bytes[kind] = stacked.nbytes
        shutil.rmtree(self.scratch / "ours")

    def tensors(self, kind):
        return self.scratch / ("small.npy" if kind == "small" else "large.npy")

    def add(self, kind, system, seconds, stored):
        for step, value in (seconds | {"stored": stored}).items():
            self.values[kind, step][system].append(value)

    def measure_ours(self, kind):
        saved = self.save_ours(kind)
        fresh = ["--fresh-memory"] if self.args.memory == "fresh" else []
        restored = self.ours("restore", kind, *fresh)
        seconds = {"save": saved["median_seconds"], "restore": restored["median_seconds"],
                   "open": restored["open_seconds"]}
        if kind != "small":
            turned = ["--mesh", "data=2,model=4", "--spec", "data,model"]
            seconds["resharded"] = self.ours("restore", kind, *turned, *fresh)["median_seconds"]
            if self.args.cold:
                seconds["cold"] = self.ours("restore", kind, "--cold", *fresh)["median_seconds"]
        shutil.rmtree(self.scratch / "ours")
        if kind == "raw":
            kept = self.save_ours(kind, "--keep-last", 1, "--repeat", KEPT_ROUNDS)
            seconds |= {"kept": kept["median_seconds"], "removed": kept["with_retention"]["median_seconds"]}
        self.add(kind, OURS, seconds, saved["file_bytes"] / saved["logical_bytes"])

    def measure_rival(self, kind, rival, case, *more):
        command = [sys.executable, HERE / "worker.py", rival, case, self.tensors(kind), self.scratch / "rival", *more]
        command += (["--cold"] if self.args.cold else []) + (["--kept"] if kind == "raw" else [])
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3"} | (KEEP_MEMORY if self.args.memory == "kept" else {})
        ranks = 2 if case == "2 processes" else 1
        if ranks > 1:
            meeting = tempfile.mktemp(dir=self.scratch)
            environment |= {"WORLD_SIZE": str(ranks), "RENDEZVOUS": meeting}
        processes = [(command, environment | ({"RANK": str(r)} if ranks > 1 else {})) for r in range(ranks)]
        result = json.loads(run(f"{rival}, {case},", *processes).splitlines()[-1])
        self.add(kind, f"{rival}, {case}", **result)

    def round(self, number):
        kinds = [kind for kind in ("raw", "zstd", "small") if kind in self.args.kinds]
        turns = [(kind, rival, case, mode) for kind in kinds for rival, case, of in [(OURS, "", [kind])] + CASES
                 for mode in of if mode.split()[0] == kind and rival in self.args.rivals + [OURS]]
        for i, (kind, rival, case, mode) in enumerate(turns):
            once = mode.endswith(" once")
            if once and number > 0:
                continue
            print(f"round {number + 1} of {self.args.rounds}, {i + 1} of {len(turns)}: {kind}, {rival} {case}",
                  file=sys.stderr, flush=True)
            os.sync()
            if rival == OURS:
                self.measure_ours(kind)
            else:
                self.measure_rival(kind, rival, case, *(["--once"] if once else []))

    def table(self):
        """Rows of text, the fastest rival first."""
        rows = [("", "", "", "x rival", "limit", "")]
        for kind, step, title, unit, limit in MEASURES:
            found = {s: statistics.median(v) for s, v in self.values[kind, step].items()}
            if OURS not in found:
                continue
            ours, best = found.pop(OURS), min(found.values(), default=None)
            def show(x):
                return f"{self.bytes['raw'] / x / 1e9:.2f}" if unit == "GB/s" else f"{x:.3f}"

            ratio = best and best / ours
            says, holds = (f">= {limit}", ratio and ratio >= limit) if limit else ("", None)
            if step == "open":
                says, holds = f"<= {OPEN_LIMIT_S} s", ours <= OPEN_LIMIT_S
            rows.append((f"{title}{unit and ', '}{unit}", OURS, show(ours), f"{ratio:.2f}" if ratio else "", says,
                         "" if holds is None else "yes" if holds else "NO"))
            rows += [("", system, show(x), "", "", "") for system, x in sorted(found.items(), key=lambda item: item[1])]
        return rows


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", help="a folder on the file system to be measured")
    parser.add_argument("--rivals", default=",".join(MODULES), help="some of %(default)s")
    parser.add_argument("--kinds", default="raw,zstd,small", help="some of %(default)s")
    parser.add_argument("--tensors", type=int, default=64, help="how many large ones (%(default)s; 8 for a quick try)")
    parser.add_argument("--shape", default="2048,4096", help="of each large one, of f32 (%(default)s)")
    parser.add_argument("--small", type=int, default=10_000, help="how many of 4 KiB (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="each runs everything once (%(default)s)")
    parser.add_argument("--cold", action="store_true", help="also restore files that are not in the page cache")
    parser.add_argument("--memory", choices=("fresh", "kept"), default="fresh",
                        help="restore into memory that is new to the process, as at the start of a job, or into that "
                        "of the time before (%(default)s)")
    parser.add_argument("--json", metavar="OUT", help="write each value that was measured to this file")
    parser.add_argument("--shardwise", type=pathlib.Path, help="the command (build/release/tools/shardwise)",
                        default=HERE.parents[1] / "build/release/tools/shardwise")
    args = parser.parse_args()
    args.rivals, args.kinds = args.rivals.split(","), args.kinds.split(",")
    for given, known in ((args.rivals, MODULES), (args.kinds, ("raw", "zstd", "small"))):
        for name in given:
            if name not in known:
                parser.error(f'"{name}" is not known; there are {", ".join(known)}')
    if min(args.rounds, args.tensors, args.small) < 1:
        parser.error("--rounds, --tensors and --small need 1 or more")
    try:
        rows, columns = map(int, args.shape.split(","))
    except ValueError:
        rows = columns = 1
    if rows % 4 or columns % 4:
        parser.error(f"--shape {args.shape}: ROWS,COLUMNS are needed, both multiples of 4")
    args.size = 4 * max(args.tensors * rows * columns, args.small * 1024)
    return args


def check_machine(args):
    if not args.shardwise.exists():
        fail(f"{args.shardwise} is not there; build it: cmake --build --preset release --target shardwise_tool")
    wanted = dict(line.split("==") for line in (HERE / "requirements.txt").read_text().split())
    versions = {}
    for package in sorted({"numpy", "h5py"}.union(*(MODULES[rival] for rival in args.rivals))):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            fail(f"{package} is missing: {sys.executable} -m pip install {package}=={wanted[package]}, or -r "
                 f"{HERE / 'requirements.txt'} for all; --rivals leaves some out")
        if versions[package] != wanted[package]:
            print(f"run.py: {package} is {versions[package]}, measured before with {wanted[package]}", file=sys.stderr)
    os.makedirs(args.dir, exist_ok=True)
    free = shutil.disk_usage(args.dir).free
    if free < 6 * args.size:
        fail(f"{args.dir} has {free >> 20} MiB free, {6 * args.size >> 20} are needed; --tensors takes fewer")
    return versions


def main():
    args = arguments()
    versions = check_machine(args)
    with tempfile.TemporaryDirectory(prefix="shardwise-rivals-", dir=args.dir) as scratch:
        bench = Bench(args, pathlib.Path(scratch).resolve())
        for kind in dict.fromkeys("small" if kind == "small" else "raw" for kind in args.kinds):
            print(f"make the tensors, {kind}", file=sys.stderr, flush=True)
            bench.make_tensors(kind)
        for number in range(args.rounds):
            bench.round(number)
    versions_text = ", ".join(" ".join(item) for item in versions.items())
    print(f"{args.tensors} tensors f32 [{args.shape}], {args.small} of f32 [1024]; {os.cpu_count()} cores; medians of "
          f"{args.rounds} rounds; restores into {args.memory} memory; {versions_text}\n")
    rows = bench.table()
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    for row in rows:
        cells = [cell.rjust(w) if i in (2, 3) else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())
    if args.json:
        each = [{"kind": kind, "step": step, "system": system, "values": values}
                for (kind, step), systems in bench.values.items() for system, values in systems.items()]
        result = {**measured_on(), "versions": versions, "memory": args.memory, "bytes": bench.bytes, "measured": each}
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
