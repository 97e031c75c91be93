#!/usr/bin/env python3
"""The seeds of a fuzz target are one text: an input a line, with \\xNN for bytes that are not printable ASCII.

seeds.py unpack SEEDS FOLDER    writes each input to a file of its own, as libFuzzer reads them
seeds.py add SEEDS FILE...      adds the contents of files, for an input that has found something
"""
import pathlib
import sys


def line_of(data):
    return "".join(chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in data)


def data_of(line):
    return line.encode("ascii").decode("unicode_escape").encode("latin-1")


def unpack(seeds, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for number, line in enumerate(pathlib.Path(seeds).read_text("ascii").splitlines()):
        (folder / f"{number:04}").write_bytes(data_of(line))


def add(seeds, *files):
    seeds = pathlib.Path(seeds)
    lines = set(seeds.read_text("ascii").splitlines()) if seeds.exists() else set()
    lines.update(line_of(pathlib.Path(file).read_bytes()) for file in files)
    seeds.write_text("".join(f"{line}\n" for line in sorted(lines)), "ascii")


if __name__ == "__main__":
    commands = {"unpack": unpack, "add": add}
    if len(sys.argv) < 4 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
