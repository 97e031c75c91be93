"""Counts words that stop a reader, in comments, docstrings, messages and pages, and holds the counts:
words.py WORDS. Run in the folder of the sources. Prints each pattern that stands in more
lines than its line of WORDS allows.
A line of WORDS: the most lines, a space, a regular expression that is looked for in each line."""
import pathlib
import re
import sys

FOLDERS = ("shard", "storage", "runtime", "loader", "checkpoint", "convert", "tools", "python", "examples",
           "bench", "docs", "tests", "scripts")
ENDINGS = (".h", ".cc", ".py", ".pyi", ".md", ".sh")


def lines():
    pages = sorted(pathlib.Path().glob("*.md"))
    for path in (*pages, *(path for folder in FOLDERS for path in sorted(pathlib.Path(folder).rglob("*")))):
        if path.suffix in ENDINGS and path.is_file() and "data" not in path.parts:
            yield from path.read_text(errors="replace").splitlines()


every_line = list(lines())
for line in pathlib.Path(sys.argv[1]).read_text().splitlines():
    if line.startswith("#"):
        continue
    most, _, pattern = line.partition(" ")
    count = sum(re.search(pattern, one) is not None for one in every_line)
    if count > int(most):
        print(f"words: found {count} lines with {pattern}, never more than {most}: {sys.argv[1]}")
