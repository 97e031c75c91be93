#!/usr/bin/python3
"""The rooms of the Python package: prints each breach of the order of its folders, and of their sizes.

Usage: python_rooms.py, in the root of the repository.
"""

import ast
import pathlib

ROOT = pathlib.Path("python/shardwise")
# As rule 8 has it for C++: a part uses itself and the parts before it, and parts joined by "|" do not see each other.
# A part is folders, each with all below it, and files, joined by "+". Imports for type checkers alone do not count.
ORDER = """_interpreter _errors|_progress _dtypes|_sharding _trees _paths _arrays _argument_types _foreign_names|_stores|jax/args group
_checkpoint/save+_checkpoint/edits _formats _checkpoint _jobs|_records _convert|sources _loader
_programs programs _capture/arguments+_capture/__init__|_capture/shared _capture/jax/ops|_capture/torch/ops/rules
_capture/torch/ops/complex|_capture/torch/ops/ctc|_capture/jax
_capture/torch/checks+_capture/torch/constants+_capture/torch/decompositions+_capture/torch/foreach+_capture/torch/fused_attention
_capture/torch/patches+_capture/torch/step_state+_capture/torch/variables _capture/torch/trace
_capture/torch/ops/graph _capture/torch/ops _capture/torch torch/_spmd torch|jax orbax __init__ __main__"""
# Methods of a tensor give its shards, which are made of such tensors.
CIRCLES = {frozenset({"torch/_spmd/shards", "torch/_spmd/tensors"})}
MOST_FILES = 20
# Words that may stand in these files only.
ROOM_OF = {
    "sys.modules": ["_interpreter"],
    "_getframe": ["_interpreter"],
    "linecache": ["_capture/torch/checks"],
    "setattr(torch": ["_capture/torch/patches"],
}
STEPS = [[part.split("+") for part in step.split("|")] for step in ORDER.split()]


def place(file):
    """The step and the part of a file, by the longest name in the order that holds it."""
    found = (-1, -1, "")
    for rank, step in enumerate(STEPS):
        for number, part in enumerate(step):
            for name in part:
                if (file == name or file.startswith(name + "/")) and len(name) > len(found[2]):
                    found = rank, number, name
    return found[:2]


def name_of(path):
    return str(path.relative_to(ROOT).with_suffix(""))


def imports(path, known):
    """The files that a file imports, also within functions."""
    todo = list(ast.parse(path.read_text()).body)
    folder = path.parent.relative_to(ROOT).parts
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = [*folder[: len(folder) - node.level + 1], *filter(None, (node.module or "").split("."))]
            for alias in node.names:
                if alias.name in ("_core", "__file__"):  # the package need not be imported for them
                    continue
                for parts in ([*base, alias.name], [*base, alias.name, "__init__"], base, [*base, "__init__"]):
                    if "/".join(parts) in known:
                        yield "/".join(parts), node.lineno
                        break
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            if any(name.split(".")[0] == "shardwise" for name in names):
                yield "__init__", node.lineno
        else:
            todo += ast.iter_child_nodes(node)


def circles(used):
    """Files that import each other, each circle once."""
    done, told = set(), set()

    def visit(file, way):
        if file in way:
            told.add(frozenset(way[way.index(file) :]))
        elif file not in done:
            for other in used[file]:
                visit(other, [*way, file])
            done.add(file)

    for file in used:
        visit(file, [])
    return told


def main():
    paths = sorted(ROOT.rglob("*.py"))
    known = {name_of(path): path for path in paths}
    used = {file: set() for file in known}
    for file, path in known.items():
        own = place(file)
        if own[0] < 0:
            print(f"{path} has no place in the order of {ROOT}: tests/architecture/python_rooms.py")
        for other, line in imports(path, known):
            used[file].add(other)
            there = place(other)
            if there[0] > own[0] or (there[0] == own[0] and there != own):
                print(f"{path}:{line} imports {other}, which does not stand before it in {ROOT}")
        for word, rooms in ROOM_OF.items():
            if word in path.read_text() and file not in rooms:
                print(f'{path} has "{word}", which belongs to {", ".join(rooms)}')
    for circle in circles(used) - CIRCLES:
        print(f"{ROOT}: {', '.join(sorted(circle))} import each other")
    for folder in sorted({path.parent for path in paths}):
        files = len(list(folder.glob("*.py")))
        if files > MOST_FILES:
            print(f"{folder} has {files} files, never more than {MOST_FILES}")


if __name__ == "__main__":
    main()
