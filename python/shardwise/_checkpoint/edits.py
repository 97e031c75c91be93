"""Changes names, dtypes and shapes as a checkpoint is read, by the rules of `shardwise reshard`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._errors import InvalidArgument
from .._trees.nested import Path, decoded_path, encoded_path

Rename = Mapping[str, str]
"""New names by patterns: {"model.*": "*"}."""

Cast = Any
"""A dtype for all floats, or dtypes by patterns: {"*": "bf16"}."""

Transpose = Mapping[str, Sequence[int] | str]
"""The order of dims by patterns: {"*.kernel": (1, 0)}."""

Split = Mapping[str, str]
"""Parts by patterns, and the dim along which they are: {"*.qkv": "*.q,*.k,*.v@0"}."""

Join = Mapping[str, str]
"""Names by the patterns of their parts: {"*.q,*.k,*.v": "*.qkv@0"}."""

Resize = Mapping[str, str]
"""Growth or cuts of tensors by patterns: {"*embed*": "pad:50304,-"}."""

Pairs = list[tuple[str, str]]
Edits = tuple[list[str], list[str], Pairs, Pairs, Pairs, Pairs, Pairs, Pairs]

_PER_RANK = "@rank0"


def _pairs_of(kind: str, rules: Mapping[str, str] | None, needed: str) -> Pairs:
    rules = {} if rules is None else rules
    if not isinstance(rules, Mapping) or not all(type(text) is str and text for pair in rules.items()
                                                 for text in pair):
        raise InvalidArgument(f"{kind} is {rules!r}, needed are {needed}")
    return list(rules.items())


def _transposes_of(transpose: Transpose | None) -> Pairs:
    transpose = {} if transpose is None else transpose
    needed = "orders of dims by patterns, as {'*.kernel': (1, 0)}"
    if not isinstance(transpose, Mapping):
        raise InvalidArgument(f"transpose is {transpose!r}, needed are {needed}")
    rules = {pattern: order if isinstance(order, str) or not isinstance(order, Iterable)
             else ",".join(map(str, order)) for pattern, order in transpose.items()}
    return _pairs_of("transpose", rules, needed)


def _casts_of(cast: Cast | None) -> Pairs:
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
        if dtype is not None:  # numpy takes None for float64
            return str(np.dtype(dtype).name)
    except TypeError:
        pass
    raise InvalidArgument(f"cast of {pattern!r} is {dtype!r}, needed is a dtype, as 'bf16'")


def edits_of(names: str | Iterable[str] | None, rename: Rename | None = None, cast: Cast | None = None,
             transpose: Transpose | None = None,
             split: Split | None = None, join: Join | None = None, resize: Resize | None = None) -> Edits:
    """Returns the edits in the form that the core takes. names: patterns; None selects all."""
    patterns = [] if names is None else [names] if isinstance(names, str) else list(names)
    if names is not None and not patterns:
        raise InvalidArgument("names is empty, needed is a pattern, or None for all")
    return (patterns, [], _pairs_of("rename", rename, "new names by patterns, as {'model.*': '*'}"),
            _casts_of(cast), _transposes_of(transpose),
            _pairs_of("split", split, "parts by patterns, as {'*.qkv': '*.q,*.k,*.v@0'}"),
            _pairs_of("join", join, "names by patterns of their parts, as {'*.q,*.k,*.v': '*.qkv@0'}"),
            _pairs_of("resize", resize, "new extents by patterns, as {'*embed*': 'pad:50304,-'}"))


def chosen(operation: str, there: Iterable[str], names: str | Iterable[str] | None,
           exclude: Iterable[str] = ()) -> list[str]:
    """Returns the names that match a pattern of `names` (None: all) and no pattern of `exclude`. "*" stands
    for any characters, "?" for one. Raises InvalidArgument for a pattern that matches nothing, and if no name
    is left."""
    every = list(there)
    patterns = ["*"] if names is None else edits_of(names)[0]
    matches = {pattern: re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."),
                                   re.DOTALL).fullmatch for pattern in (*patterns, *exclude)}
    idle = [] if not every else [pattern for pattern, match in matches.items() if not any(map(match, every))]
    if idle:
        raise InvalidArgument(f"{operation}: {', '.join(map(repr, idle))} matches none of {len(every)} "
                              f"names, as {every[0]!r}")
    kept = [name for name in every if any(matches[pattern](name) for pattern in patterns)
            and not any(matches[pattern](name) for pattern in exclude)]
    if every and not kept:
        raise InvalidArgument(f"{operation}: nothing is selected of {len(every)} names, needed is one")
    return kept


class EditedName(NamedTuple):
    """A name after edits, and the stored names of its parts. is_whole: it is exactly one stored tensor, not
    transposed."""

    name: str
    parts: list[str]
    is_whole: bool


def edited_document(document: Mapping[str, Any], names: Sequence[EditedName]) -> dict[str, Any]:
    """Returns the document of a checkpoint with the new names, and without tensors that have no new name. The
    caller edits the objects."""
    copy = dict(document)
    used = Counter(part for name in names for part in name.parts)
    # These tensors are neither joined nor split, though they may be renamed or transposed.
    new = {name.parts[0]: name.name for name in names if len(name.parts) == used[name.parts[0]] == 1}
    if "per_rank" in copy:  # stored as name@rank0, or its parts as name@rank0.part
        new = {**new, **{name.partition(_PER_RANK)[0]: now.partition(_PER_RANK)[0]
                         for name, now in new.items() if name.partition(_PER_RANK)[0] in copy["per_rank"]}}
        copy["per_rank"] = {new[name]: ranks for name, ranks in copy["per_rank"].items() if name in new}
    if "numpy" in copy:
        copy["numpy"] = {name.name: copy["numpy"][name.parts[0]]
                         for name in names if name.parts[0] in copy["numpy"]}
    if "aliases" in copy:
        copy["aliases"] = {new[alias]: new[name]
                           for alias, name in copy["aliases"].items() if alias in new and name in new}
    if "paths" in copy:
        paths = {name: encoded for name, encoded in copy["paths"].items()}
        copy["paths"] = {new[name]: _moved(path, name, new[name])
                         for name, path in paths.items() if name in new}
        copy["paths"].update({name.name: _moved(paths[name.parts[0]], name.parts[0], name.name)
                              for name in names if name.parts[0] in paths and name.name not in copy["paths"]})
    tree = copy.get("tree")
    if isinstance(tree, dict) and tree.get("kind") == "pytree":
        leaves = dict(_leaves_of(tree["root"]))
        is_key = {name for name, leaf in leaves.items() if isinstance(leaf, dict)}
        same = {name.name for name in names if name.is_whole or not is_key.intersection(name.parts)}
        if leaves.keys() - new.keys() or any(new[name] != name or name not in same for name in leaves):
            # The keys of the tree are those before the edits, so a flat tree of names replaces it.
            items = [[name.name, {**leaves[name.parts[0]], "name": name.name} if name.is_whole
                      and name.parts[0] in is_key else name.name]
                     for name in names if name.parts[0] in leaves]
            copy["tree"] = {"kind": "pytree", "root": {"node": "", "items": items}}
    return copy


def _moved(encoded: Any, name: str, now: str) -> Any:
    return encoded if now == name else encoded_path(_new_path(decoded_path(encoded), name, now))


def _new_path(path: Path, name: str, now: str) -> Path:
    """Returns a path for a new name: it keeps the keys that stay at both ends, and puts new keys between
    them; one key stays one key."""
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
    """Yields the leaves of a tree of JAX's with their names."""
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
