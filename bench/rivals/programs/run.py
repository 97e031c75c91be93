#!/usr/bin/env python3
"""Traced programs beside JAX and torch: run.py SCRIPTS [--build DIR] [--steps N] [--quick]

SCRIPTS is a folder with the rivals' programs: common.py (weights and batches), jax_programs.py,
torch_programs.py and, in an environment of its own, xla_programs.py. This program writes common.py's
arrays to .npz, runs our GPT (examples/gpt) and MLP (bench/programs_bench) and the rivals on the same
mesh, by turns, and prints a table. It fails where a loss of 20 steps is more than 1e-4 from JAX's, or
a step is slower than JAX's.

Run it with a Python that has jax and numpy, and torch for its column; let nothing else run.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

MESHES = {
    "mlp": ["1", "data=8", "data=4,model=2", "model=8", "fsdp=8"],
    "gpt": ["1", "data=8", "fsdp=8", "data=4,model=2", "fsdp=4,model=2", "model=4"],
}
LOSSES = 20


def plan_of(mesh):
    tensor, gathered = "model" in mesh, "fsdp" in mesh
    if tensor:
        return "2d" if gathered else "tensor"
    return "none" if mesh == "1" else "fsdp" if gathered else "data"


def write_arrays(scripts, program, folder):
    """common.py's weights and batches as two .npz files."""
    import numpy as np

    sys.path.insert(0, str(scripts))
    import common

    arguments = common.arguments("").parse_args(["--program", program])
    np.savez(folder / f"{program}_weights.npz", **common.init(arguments))
    batches = {}
    for i, (x, y) in enumerate(common.batches(arguments)):
        batches[f"x{i}"], batches[f"y{i}"] = x, y
    np.savez(folder / f"{program}_tokens.npz", **batches)


def ours(build, program, mesh, folder, steps):
    binary = build / ("examples/gpt/gpt" if program == "gpt" else "bench/programs_bench")
    command = [binary, "--mesh", mesh, "--plan", plan_of(mesh), "--weights",
               folder / f"{program}_weights.npz", "--tokens", folder / f"{program}_tokens.npz",
               "--steps", str(max(steps, LOSSES)), "--json"]
    # OpenBLAS is as free to choose its instructions as the rivals are.
    free = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=free)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
    return json.loads(done.stdout)


def rival(scripts, name, program, mesh, steps, folder, mode="bench"):
    """Its lines of JSON by metric, and with mode=loss the list of losses."""
    source = (scripts / f"{name}_programs.py").read_text()
    marker = "if losses:\n"
    source = source.replace(marker, marker + '    print("LOSSES", json.dumps([float(v).hex() for v in losses]))\n', 1)
    path = folder / f"{name}_{mode}.py"
    path.write_text(f"import sys, json\nsys.path.insert(0, {str(scripts)!r})\n" + source)
    command = [sys.executable, path, "--program", program, "--steps", str(steps), "--mode", mode]
    if mesh != "1" or name != "torch":
        command += ["--mesh", mesh]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{name} {program} {mesh}: {done.stderr[-300:]}", file=sys.stderr)
        return {}, []
    metrics = {}
    losses = []
    for line in done.stdout.splitlines():
        if line.startswith("LOSSES "):
            losses = [float.fromhex(v) for v in json.loads(line[7:])]
        elif line.startswith("{"):
            row = json.loads(line)
            metrics[row["metric"]] = row["value"]
    return metrics, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--programs", default="mlp,gpt")
    parser.add_argument("--quick", action="store_true", help="one mesh of 8 devices for each program")
    options = parser.parse_args()
    scripts = options.scripts.resolve()
    failures = []
    print(f"{'program, mesh':24} {'step ms':>9} {'JAX':>8} {'torch':>8} {'first ms':>9} {'JAX':>8} "
          f"{'peak MB':>8} {'wire bytes':>11} {'loss off by':>12}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for program in options.programs.split(","):
            write_arrays(scripts, program, folder)
            torch, _ = rival(scripts, "torch", program, "1", options.steps, folder)
            for mesh in ["data=8"] if options.quick else MESHES[program]:
                mine = ours(options.build, program, mesh, folder, options.steps)
                jax, _ = rival(scripts, "jax", program, mesh, options.steps, folder)
                _, losses = rival(scripts, "jax", program, mesh, LOSSES, folder, mode="loss")
                off = max((abs(float.fromhex(a) - b) / abs(b)
                           for a, b in zip(mine["losses"], losses[:LOSSES])), default=float("nan"))
                step = mine["step_seconds"] * 1e3
                compiled = jax.get("trace+lower", 0) + jax.get("partition+compile", 0)
                wire = sum(c["wire_bytes"] for c in mine["collectives"])
                print(f"{program + ' ' + mesh:24} {step:9.1f} {jax.get('step', 0):8.1f} "
                      f"{torch.get('step', 0):8.1f} {mine['first_step_seconds'] * 1e3:9.1f} {compiled:8.0f} "
                      f"{max(mine['planned_peak_bytes']) / 1e6:8.1f} {wire:11d} {off:12.1e}", flush=True)
                # The MLP's first steps at this rate are unstable: the rivals differ among themselves.
                if not off <= 1e-4:
                    failures.append(f"{program} {mesh}: a loss is {off:.1e} from JAX's")
                if mesh != "1" and "step" in jax and step > jax["step"]:
                    failures.append(f"{program} {mesh}: a step takes {step:.1f} ms, JAX's {jax['step']:.1f}")
                if mine["planned_peak_bytes"] != mine["measured_peak_bytes"]:
                    failures.append(f"{program} {mesh}: another peak of memory than planned")
    for failure in failures:
        print("NOT MET:", failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
