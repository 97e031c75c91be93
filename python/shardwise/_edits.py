"""How names and dtypes change as a checkpoint is read. The rules are those of `shardwise reshard`: the library's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ._errors import InvalidArgument
from ._nested import Path, decoded_path, encoded_path

Rename = Mapping[str, str]
"""New names by patterns: {"model.*": "*"}."""

Cast = Any
"""A dtype for all floats, or dtypes by patterns: {"*": "bf16"}."""

_PER_RANK = "@rank0"


def renames_of(rename: Rename | None) -> list[tuple[str, str]]:
    rename = {} if rename is None else rename
    if not isinstance(rename, Mapping) or not all(type(text) is str and text for pair in rename.items() for text in pair):
        raise InvalidArgument(f"rename is {rename!r}, needed are new names by patterns, as {{'model.*': '*'}}")
    return list(rename.items())


def casts_of(cast: Cast | None) -> list[tuple[str, str]]:
    if cast is None:
        return []
    rules = cast.items() if isinstance(cast, Mapping) else [("*", cast)]
    return [(pattern, _dtype_name(pattern, dtype)) for pattern, dtype in rules]


def _dtype_name(pattern: str, dtype: Any) -> str:
    if isinstance(dtype, str):
        return dtype
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    try:
        if dtype is not None:  # numpy takes it for float64
            return str(np.dtype(dtype).name)
    except TypeError:
        pass
    raise InvalidArgument(f"cast of {pattern!r} is {dtype!r}, needed is a dtype, as 'bf16'")


def edits_of(names: str | Iterable[str] | None, rename: Rename | None, cast: Cast | None) -> tuple[
        list[str], list[tuple[str, str]], list[tuple[str, str]]]:
    """As the core takes them. names: patterns; None: all."""
    patterns = [] if names is None else [names] if isinstance(names, str) else list(names)
    if names is not None and not patterns:
        raise InvalidArgument("names is empty, needed is a pattern, or None for all")
    return patterns, renames_of(rename), casts_of(cast)


def renamed_document(document: Mapping[str, Any], new: Mapping[str, str]) -> dict[str, Any]:
    """What is stored beside the tensors, with new names for these, and without all others. Objects are left to the caller."""
    made = dict(document)
    if "per_rank" in made:  # stored as name@rank0, or its parts as name@rank0.part
        new = {**new, **{name.partition(_PER_RANK)[0]: now.partition(_PER_RANK)[0] for name, now in new.items()
                         if name.partition(_PER_RANK)[0] in made["per_rank"]}}
    for part in ("numpy", "paths", "aliases"):
        if part in made:
            made[part] = {new[name]: value for name, value in made[part].items() if name in new}
    if "paths" in made:
        old = {now: name for name, now in new.items()}
        made["paths"] = {now: path if now == old[now] else encoded_path(_new_path(decoded_path(path), old[now], now))
                         for now, path in made["paths"].items()}
    if "aliases" in made:
        made["aliases"] = {alias: new[name] for alias, name in made["aliases"].items() if name in new}
    if "per_rank" in made:
        made["per_rank"] = {new[name]: ranks for name, ranks in made["per_rank"].items() if name in new}
    tree = made.get("tree")
    if isinstance(tree, dict) and tree.get("kind") == "pytree":
        leaves = dict(_leaves_of(tree["root"]))
        if leaves.keys() - new.keys() or any(new[name] != name for name in leaves):
            # A tree of names: its own keys say what they were.
            items = [[new[name], {**leaf, "name": new[name]} if isinstance(leaf, dict) else new[name]]
                     for name, leaf in leaves.items() if name in new]
            made["tree"] = {"kind": "pytree", "root": {"node": "", "items": items}}
    return made


def _new_path(path: Path, name: str, now: str) -> Path:
    """A path for a new name: keys at both ends that stay, and between them what is new, which is one key if it was one."""
    separator = next((s for s in (".", "/") if s.join(map(str, path)) == name), None)
    if separator is None:
        return (now,)
    before: list[Any] = []
    after: list[Any] = []
    rest, keys = now, list(path)
    while len(keys) > 1 and rest.endswith(separator + str(keys[-1])):
        after.insert(0, keys.pop())
        rest = rest[: -len(separator + str(after[0]))]
    while len(keys) > 1 and rest.startswith(str(keys[0]) + separator):
        before.append(keys.pop(0))
        rest = rest[len(str(before[-1]) + separator):]
    if len(keys) == 1 and isinstance(keys[0], str):
        return (*before, rest, *after)
    numbers = {str(key): key for key in keys if not isinstance(key, str)}
    return (*before, *(numbers.get(part, part) for part in rest.split(separator)), *after)


def _leaves_of(node: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a tree of JAX's by name."""
    if isinstance(node, str):
        yield node, node
    elif isinstance(node, dict) and "key" in node:
        yield node["name"], node
    elif isinstance(node, dict) and ("dict" in node or "node" in node):
        for _, child in node["dict"] if "dict" in node else node["items"]:
            yield from _leaves_of(child)
    elif node is not None:
        for child in node if isinstance(node, list) else node["tuple"] if "tuple" in node else node["items"]:
            yield from _leaves_of(child)
