#!/usr/bin/env python3
"""Draws how many times as fast as its rivals Shardwise is, from the results of the programs here:

  figure.py FOLDER [--measure] [--svg docs/figures/rivals.svg]

FOLDER has the files that run.py, python/jobs.py and input/run.py wrote with --json, or some of them:
storage.json, jobs.json, input.json. With --measure they run first, which needs an idle machine, set up as
README.md here describes. A bar is the rival's time over Shardwise's, or Shardwise's rate over the rival's;
for a rival that was measured in several ways, of the fastest one. Machine and date are those of the
measurement.
"""
import argparse
import html
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
RIVALS = {"dcp": "DCP", "orbax": "Orbax", "safetensors": "safetensors", "tensorstore": "TensorStore", "h5py": "h5py",
          "grain": "Grain", "jax": "JAX", "torch": "torch DataLoader"}
COLOURS = dict(zip(RIVALS, ("#d9822b", "#8f5bb5", "#3c8d5a", "#2f7fc1", "#b8443f", "#a08a1c", "#4b9a9a", "#8a6a52")))
STORAGE = [("raw", "save", "durable save"), ("raw", "restore", "restore"),
           ("raw", "resharded", "restore onto another mesh"), ("zstd", "save", "durable save, compressed"),
           ("zstd", "restore", "restore, compressed"), ("small", "save", "durable save of tensors of 4 KiB"),
           ("small", "restore", "restore of tensors of 4 KiB")]
JOBS = [(f"torch {size}", step, f"PyTorch, {size} {'process' if size == 1 else 'processes'}: {step}", "dcp", "swt")
        for size in (1, 4) for step in ("save", "load", "reshard") if size > 1 or step != "reshard"]
JOBS += [("jax", step, f"JAX, 8 devices: {step}", "orbax", "swj") for step in ("save", "restore")]
INPUT = [("rows data=8: hdf5 and labels,", "rows data=8: ", "minibatches on 8 devices"),
         ("rows data=4,model=2: hdf5 and labels,", "rows data=4,model=2: ", "minibatches on 4 x 2 devices"),
         ("images: jpeg folder", "images: ", "JPEG images")]
LEFT, RIGHT, BAR, GAP, TOP = 300, 70, 16, 12, 64  # pixels
WIDTH = 900


def storage_groups(found):
    """(title, {rival: how many times as fast Shardwise is}) of what run.py has measured."""
    for kind, step, title in STORAGE:
        medians = {row["system"]: statistics.median(row["values"]) for row in found["measured"]
                   if (row["kind"], row["step"]) == (kind, step)}
        ours = medians.pop("shardwise", None)
        if ours is not None:
            yield title, fastest((system.split(",")[0], seconds / ours) for system, seconds in medians.items())


def jobs_groups(found):
    for job, step, title, rival, ours in JOBS:
        times = found.get(job, {}).get(step)
        if times:
            yield title, {rival: times[rival] / times[ours]}


def input_groups(found):
    rates = {case: statistics.median(row["windows"]) for case, row in found["cases"].items()}
    for ours, others, title in INPUT:
        mine = [rate for case, rate in rates.items() if case.startswith(ours)]
        rivals = [(case.removeprefix(others).split(",")[0], rate) for case, rate in rates.items() if case.startswith(others)]
        if mine:
            yield title, fastest((rival, max(mine) / rate) for rival, rate in rivals if rival in RIVALS)


def fastest(ratios):
    """Of each rival the least ratio."""
    found = {}
    for rival, ratio in ratios:
        found[rival] = min(ratio, found.get(rival, math.inf))
    return found


def drawn(groups, measured):
    """The lines of the SVG, ratios on a logarithmic axis."""
    ratios = [ratio for _, rivals in groups for ratio in rivals.values()]
    low, high = math.floor(math.log2(min(1, *ratios))), math.ceil(math.log2(max(2, *ratios)))
    height = TOP + sum(BAR * (1 + len(rivals)) + GAP for _, rivals in groups) + 24

    def at(ratio):
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(ratio) - low) / (high - low)

    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">'
    yield "<title>How many times as fast as its rivals Shardwise is</title>"
    yield ('<style>text{font:12px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1c2126}.quiet{fill:#5d6770}.page{fill:#ffffff}'
           '.one{stroke:#1c2126}.tick{stroke:#d5dade}@media (prefers-color-scheme:dark){text{fill:#eef1f4}'
           '.quiet{fill:#a4afb9}.page{fill:#15181c}.one{stroke:#eef1f4}.tick{stroke:#3a424a}}</style>')
    yield f'<rect class="page" width="{WIDTH}" height="{height}"/>'
    yield '<text x="16" y="24">How many times as fast as its rivals Shardwise is. More than 1: Shardwise is faster</text>'
    yield f'<text class="quiet" x="16" y="42">{html.escape(measured)}</text>'
    for power in range(low, high + 1):
        x, name = at(2.0**power), f"{2**power}" if power >= 0 else f"1/{2**-power}"
        yield f'<line class="{"tick" if power else "one"}" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 22}"/>'
        yield f'<text class="quiet" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{name}</text>'
    y = TOP
    for title, rivals in groups:
        yield f'<text x="16" y="{y + 12}">{html.escape(title)}</text>'
        y += BAR
        for rival, ratio in sorted(rivals.items(), key=lambda item: item[1]):
            left, right = sorted((at(1), at(ratio)))
            yield f'<text class="quiet" x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{RIVALS[rival]}</text>'
            yield (f'<rect x="{left:.1f}" y="{y + 2}" width="{right - left:.1f}" height="{BAR - 4}" fill="{COLOURS[rival]}">'
                   f"<title>{html.escape(title)}, {RIVALS[rival]}: {ratio:.2f} x</title></rect>")
            yield f'<text x="{right + 6:.1f}" y="{y + 12}">{ratio:.2f} x</text>'
            y += BAR
        y += GAP
    yield "</svg>"


def measure(folder):
    """Runs the programs. input/run.py ends with status 1 if an aim is not met, and has measured all the same."""
    here, data = pathlib.Path(__file__).parent, folder / "data"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "build/release/python/package")}
    for kind, program in (("storage", "run.py"), ("jobs", "python/jobs.py"), ("input", "input/run.py")):
        out = folder / f"{kind}.json"
        out.unlink(missing_ok=True)
        done = subprocess.run([sys.executable, here / program, data / kind, "--json", out], cwd=ROOT, env=environment)
        if not out.exists():
            sys.exit(f"figure.py: {program} ended with status {done.returncode} and has written no {out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--measure", action="store_true", help="run the programs first")
    parser.add_argument("--svg", type=pathlib.Path, default=ROOT / "docs/figures/rivals.svg", help="(docs/figures/rivals.svg)")
    words = parser.parse_args()
    folder = words.folder.resolve()
    if words.measure:
        (folder / "data").mkdir(parents=True, exist_ok=True)
        measure(folder)
    groups, measured = [], []
    for kind, groups_of in (("storage", storage_groups), ("jobs", jobs_groups), ("input", input_groups)):
        path = folder / f"{kind}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        if "machine" not in found:
            sys.exit(f"figure.py: {path} does not say on which machine it was measured; needed is a newer one")
        measured.append(f"{found['machine']}, {found['date']}")
        groups += [(title, rivals) for title, rivals in groups_of(found) if rivals]
    if not groups:
        sys.exit(f"figure.py: {folder} has no comparison with a rival; needed is storage.json, jobs.json or input.json")
    words.svg.write_text("\n".join(drawn(groups, "; ".join(dict.fromkeys(measured)))) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
