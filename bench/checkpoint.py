#!/usr/bin/env python3
"""How fast are durable saves and restores, against raw writes and reads of the same bytes?

    bench/checkpoint.py DIRECTORY [MIB]

Runs `shardwise bench save` and `bench restore` (of $SHARDWISE, or of build/release) for 64 tensors, MIB in
all: 4096 for saves and 1024 for restores by default. Each row shows the limit that it has to reach: "auto" is
compared with "none", others with raw writes or reads. Then the script reshards the saved checkpoint; that
time is compared with one save and one restore. Exit status 1: a limit was missed. DIRECTORY is on the disk to
measure.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys

COMMAND = os.environ.get("SHARDWISE", pathlib.Path(__file__).parents[1] / "build/release/tools/shardwise")
TURNED = ("--mesh", "data=2,model=4")
missed = []


def run(*words):
    shown = subprocess.run([COMMAND, *map(str, words), "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(shown.stdout)


def row(name, value, least=None, most=None, unit=""):
    missed.extend([name] if (least and value < least) or (most and value > most) else [])
    limit = f"at least {least}" if least else f"at most {most}" if most else ""
    print(f"{name:<56} {value:>9.3f}{unit:<4} {limit}", flush=True)


def save(folder, mib, dtype, *options):
    rows = (mib << 20) // (64 * 4096 * (2 if dtype == "bf16" else 4))
    return run("bench", "save", folder, "--dtype", dtype, "--shape", f"{rows},4096", *options)


def saves(root, mib):
    none = save(root / "save", mib, "f32", "--codec", "none", "--async")
    row("checkpoint_save: f32, none / raw", none["of_raw"], least=0.90)
    row("checkpoint_save: caller is blocked", none["blocked_seconds"] * 1e3, most=1, unit=" ms")
    row("checkpoint_save: memory beyond the tensors", none["peak_host_bytes"] / 2**20, most=320,
        unit=" MiB")
    auto = save(root / "save", mib, "f32", "--codec", "auto")
    row("checkpoint_save: f32, auto / none", none["median_seconds"] / auto["median_seconds"], least=0.95)
    for dtype, shrinks in (("f32", 1.19), ("bf16", 1.47)):
        zstd = save(root / "save", mib, dtype)
        row(f"checkpoint_save: {dtype}, zstd / raw", zstd["of_raw"], least=0.80)
        row(f"checkpoint_save: {dtype}, zstd, bytes / stored bytes", zstd["ratio"], least=shrinks)
    kept = save(root / "save", mib, "f32", "--codec", "none", "--keep-last", 1)
    row("checkpoint_save: f32, none, one kept / raw", kept["of_raw"], least=0.90)
    rate = kept["with_retention"]["gb_per_s"] / kept["raw_write"]["gb_per_s"]
    row("checkpoint_save: f32, none, one kept, and retention / raw", rate, least=0.90)


def restores(root, mib):
    for codec, same, turned, cold in (("none", 0.85, 0.75 * 0.85, 1), ("zstd", None, None, 1.1)):
        saved = save(root / codec, mib, "f32", "--codec", codec, "--keep")
        rows = (("same mesh", (), same), ("transposed", TURNED, turned), ("cold", ("--cold",), cold))
        for name, words, least in rows:
            restored = run("bench", "restore", root / codec, *words)
            row(f"checkpoint_restore: {codec}, {name} / raw", restored["of_raw"], least=least)
            if name == "transposed":
                both = saved["median_seconds"] + restored["median_seconds"]
        time = run("reshard", root / codec, root / f"{codec}-turned", *TURNED, "--codec", codec)["seconds"]
        row(f"checkpoint_restore: reshard, {codec} / save and restore", time / both)


def main():
    root = pathlib.Path(sys.argv[1]) / "checkpoint.tmp"
    root.mkdir(parents=True)
    try:
        saves(root, int(sys.argv[2]) if len(sys.argv) > 2 else 4096)
        restores(root, int(sys.argv[2]) if len(sys.argv) > 2 else 1024)
    finally:
        shutil.rmtree(root)
    print(*(f"missed: {name}" for name in missed), sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main() if len(sys.argv) > 1 else __doc__)
