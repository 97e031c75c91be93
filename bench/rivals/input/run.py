#!/usr/bin/env python3
"""Compares Shardwise's loader with other input pipelines: run.py FOLDER [--build DIR] [--quick] [--json OUT]

Makes the data in FOLDER (about 1.1 GB) if it is not there, runs input_bench and the rivals (rivals.py)
by turns, and prints one table with its goals. Ends with status 1 if a goal is missed.

Run it with a Python that has torch, jax, grain, h5py, numpy and pillow; let nothing else run.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import data
import rivals

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from machine import measured_on

GROUPS = ["rows data=8", "rows data=4,model=2", "tokens", "images", "packs", "cipher", "resume"]
MESHES = ["data=8", "data=4,model=2"]
RIVALS_OF = {"rows data=8": ("rows data=8", "rows host")}  # where they are not called as the group


class Results:
    """Per case: unit, the values of all windows, and per limit the ratios, one a turn."""

    def __init__(self):
        self.cases = {}

    def add(self, line):
        seen = json.loads(line)
        case = self.cases.setdefault(seen["case"], {"unit": seen["unit"], "windows": [], "of": {}})
        case["windows"] += seen["windows"]
        for limit, ratio in seen["of"].items():
            case["of"].setdefault(limit, []).append(ratio)

    def value(self, case):
        return statistics.median(self.cases[case]["windows"])

    def of(self, case, limit):
        return statistics.median(self.cases[case]["of"][limit])


def run(command, results):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        results.add(line)
    if done.returncode != 0:
        print(f"{' '.join(map(str, command))}: {done.stderr[-400:]}", file=sys.stderr)


def best(results, prefix, suffix="threads"):
    names = [case for case in results.cases if case.startswith(prefix) and case.endswith(suffix)]
    return max(names, key=results.value)


def aims(results):
    """(what, found, needed, at least or at most)."""
    found = []
    for mesh in MESHES:
        ours = best(results, f"rows {mesh}: hdf5,")
        limit = f"rows {mesh}: memcpy gather, 2 threads"
        found.append((f"{ours} / two-thread gather", results.of(ours, limit), 0.6, "least"))
        labelled = best(results, f"rows {mesh}: hdf5 and labels,")
        placed = [case for case in results.cases if case in rivals.CASES and case.startswith(f"rows {mesh}:")]
        if placed:
            fastest = max(placed, key=results.value)
            ratio = results.value(labelled) / results.value(fastest)
            found.append((f"{labelled} / {fastest}", ratio, 3, "least"))
    for batch in (64, 512):
        ours = best(results, f"tokens {batch}: raw file,")
        found.append((f"{ours} / memcpy", results.of(ours, f"tokens {batch}: memcpy, 1 threads"), 0.8, "least"))
    if "images: torch, 2 workers" in results.cases:
        ratio = results.value("images: jpeg folder to 224, 2 threads") / results.value("images: torch, 2 workers")
        found.append(("images: jpeg folder, 2 threads / torch, 2 workers", ratio, 1, "least"))
    found.append(("packs: fill of 1,024", results.value("packs: fill of 1,024"), 0.99, "least"))
    for case in ("cipher: record of a number", "cipher: number of a record"):
        found.append((f"{case}, ns", results.value(case), 120, "most"))
    found.append(("resume at 9e8 of 1e9, ms", results.value("resume at 9e8 of 1e9: first batch"), 10, "most"))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one turn, short windows")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    data.make(options.folder)
    quick = ["--quick"] if options.quick else []
    results = Results()
    here = pathlib.Path(__file__).parent
    for _ in range(1 if options.quick else options.turns):
        for group in GROUPS:
            run([options.build / "bench/input_bench", options.folder, "--only", group, *quick], results)
            for case in rivals.CASES:
                if case.startswith(RIVALS_OF.get(group, group)):
                    run([sys.executable, here / "rivals.py", options.folder, case, *quick], results)
    print(f"{'case':62} {'median':>9} {'least':>9} {'most':>9} unit         of its limits")
    for name, case in results.cases.items():
        numbers = (statistics.median(case["windows"]), min(case["windows"]), max(case["windows"]))
        limits = ", ".join(f"{statistics.median(r):.2f} of {limit.split(': ')[1]}" for limit, r in case["of"].items())
        print(f"{name:62} {' '.join(f'{n:9.4g}' for n in numbers)} {case['unit']:12} {limits}")
    print()
    missed = 0
    for what, found, needed, which in aims(results):
        met = found >= needed if which == "least" else found <= needed
        missed += not met
        print(f"{'MET    ' if met else 'NOT MET'} {what}: {found:.3g}, at {which} {needed}")
    if options.json:
        options.json.write_text(json.dumps({**measured_on(), "cases": results.cases}, indent=1))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
