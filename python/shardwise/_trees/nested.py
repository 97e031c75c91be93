"""Turns trees of containers into leaves by their paths, and back.

Arrays within dicts, lists and tuples are stored one by one, under names that follow from their paths. The
checkpoint also keeps the path of each name, and the kind of each container that is not a plain dict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._errors import Corrupt, InvalidArgument, WrongType
from . import containers as _containers, objects as _objects

Path = tuple[Any, ...]
"""Keys of dicts, and indices of lists."""

# The most levels of containers whose kinds the manifest can hold.
MOST_LEVELS = 100


@dataclass
class Flat:
    """A tree as its leaves and the kinds of its containers."""

    leaves: dict[Path, Any] = field(default_factory=dict)
    #: the kinds of `_containers`; None is a plain dict
    kinds: dict[Path, Any] = field(default_factory=dict)

    def tree_below(self, path: Path) -> Any:
        """Returns the tree at a path, which must be above all leaves."""
        return build({place[len(path):]: leaf for place, leaf in self.leaves.items()}, self.kinds, path)


def flatten(tree: Any, is_array: Callable[[Any], bool], path: Path = (), *, every_dict: bool = False,
            into: Flat | None = None) -> Flat:
    """Takes apart each container that holds an array at any depth. Every other value is a leaf; so is an
    empty container. every_dict: takes apart dicts with keys of str and int even without arrays. Raises
    InvalidArgument if the tree is nested too deep, and as check_places() does."""
    if not is_array(tree):
        _containers.check_places(tree, path)
    flat = Flat() if into is None else into
    _walk(tree, is_array, path, every_dict, flat)
    return flat


def _walk(tree: Any, is_array: Callable[[Any], bool], path: Path, every_dict: bool, flat: Flat) -> None:
    if (is_array(tree) or not _containers.is_container(tree) or not any(True for _ in _containers.items(tree))
        or not (every_dict and _is_plain_dict(tree) or _holds(tree, is_array))):
        flat.leaves[path] = tree
        return
    if len(path) > MOST_LEVELS:
        raise InvalidArgument(f"found containers nested deeper than {MOST_LEVELS} levels at "
                              f"{named(path[:4])!r}, or one that holds itself: needed are fewer levels")
    try:
        flat.kinds[path] = _containers.kind_of(tree)
    except TypeError as error:
        raise WrongType(f"{named(path)!r}: {error}") from None
    for key, value in _containers.items(tree):
        _walk(value, is_array, (*path, key), every_dict, flat)


def _is_plain_dict(tree: Any) -> bool:
    return isinstance(tree, Mapping) and all(type(key) in (str, int) for key in tree) and (
        _containers.kind_of(tree) in (None, "OrderedDict"))


def _holds(tree: Any, is_array: Callable[[Any], bool]) -> bool:
    """Returns True if an array is anywhere in a container. Does not recurse, as its depth has no limit."""
    levels = [iter([tree])]
    while levels:
        value = next(levels[-1], levels)
        if value is levels:
            levels.pop()
        elif type(value) in _containers.SCALARS:  # first, as there may be very many
            continue
        elif is_array(value):
            return True
        elif _containers.is_container(value):
            if len(levels) > 2 * MOST_LEVELS:
                return False  # encode() refuses it as an object
            levels.append(_containers.values(value))
    return False


def named(path: Path, separator: str = ".") -> str:
    """Returns the joined keys of a path."""
    return separator.join(map(str, path))


def names_of(paths: Iterable[Path], separator: str) -> dict[Path, str]:
    """Returns a name for each path, its joined keys. Of equal names, later ones get "~2", "~3", ..."""
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for path in paths:
        name = text = named(path, separator)
        number = 1
        while name in taken:
            number += 1
            name = f"{text}~{number}"
        taken.add(name)
        names[path] = name
    return names


def encoded_kinds(kinds: Mapping[Path, Any]) -> dict[str, Any]:
    """Returns the kinds of all containers but plain dicts in the form that a checkpoint stores, by the JSON
    text of the path."""
    return {json.dumps(encoded_path(path), ensure_ascii=False): _containers.written(kind)
            for path, kind in kinds.items() if kind is not None}


def decoded_kinds(document: Mapping[str, Any]) -> dict[Path, Any] | None:
    """Returns the kinds of a checkpoint's containers; None if an earlier version, which did not store them,
    wrote it."""
    kinds = document.get("containers")
    if not isinstance(kinds, dict):
        return None
    with _objects.refusing("a path of the checkpoint's containers"):
        return {decoded_path(json.loads(path)): kind for path, kind in kinds.items()}


def places(paths: Mapping[str, Path], document: Mapping[str, Any],
           flat: Iterable[str]) -> tuple[dict[str, Path], dict[Path, Any] | None]:
    """Returns the path of each name of a checkpoint, and the kinds of its containers. Names in a tree of
    shardwise.jax get their paths in that tree, except those in `flat`."""
    tree = document.get("tree")
    if "paths" in document or not isinstance(tree, dict) or tree.get("kind") != "pytree":
        return dict(paths), decoded_kinds(document)
    in_tree: dict[str, Path] = {}
    kinds: dict[Path, Any] = {}
    with _objects.refusing("the tree of the checkpoint"):
        _walk_tree(tree["root"], (), in_tree, kinds)
    flat_names = set(flat)
    return {name: path if name in flat_names else in_tree.get(name, path)
            for name, path in paths.items()}, kinds


def _walk_tree(node: Any, path: Path, paths: dict[str, Path], kinds: dict[Path, Any]) -> None:
    if isinstance(node, str) or isinstance(node, dict) and "key" in node:
        paths[node if isinstance(node, str) else node["name"]] = path
        return
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(node, list) or isinstance(node, dict) and "tuple" in node:
        kinds[path] = "list" if isinstance(node, list) else "tuple"
        inner = enumerate(node if isinstance(node, list) else node["tuple"])
    elif isinstance(node, dict) and "dict" in node:
        inner = ((_objects.decode_key(key), child) for key, child in node["dict"])
    elif isinstance(node, dict):
        inner = zip(node["fields"], node["items"]) if "namedtuple" in node else node["items"]
    for key, child in inner:
        _walk_tree(child, (*path, key), paths, kinds)


def encoded_path(path: Path) -> Any:
    """Returns a path as JSON. Raises WrongType, with the path, for a key that cannot be stored."""
    try:
        return _objects.encode(list(path))
    except TypeError as error:
        raise WrongType(f"{named(path)!r}: a key of {error}") from None


def decoded_path(encoded: Any) -> Path:
    """Returns the path that encoded_path() got. Raises TypeError for a value that is no key."""
    path = tuple(map(_objects.decode_key, encoded))
    hash(path)
    return path


def build(leaves: Mapping[Path, Any], kinds: Mapping[Path, Any] | None, at: Path = ()) -> Any:
    """Returns the tree of these leaves, whose paths begin at `at`. kinds: a path that it lacks is a plain
    dict. None: kinds are unknown, and a container with the keys 0, 1, 2, ... is a list."""
    tree = _Inner()
    for path, leaf in leaves.items():
        if not path:
            return leaf
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, _Inner())
            if not isinstance(inner, _Inner):
                raise Corrupt(f"{named(path)!r} is below {key!r}, which is no container")
        inner[path[-1]] = leaf
    return _container(tree, kinds, at)


class _Inner(dict[Any, Any]):
    """The items of a container that is not made yet. No leaf has this class."""


def _container(tree: _Inner, kinds: Mapping[Path, Any] | None, path: Path) -> Any:
    items = {key: _container(value, kinds, (*path, key)) if isinstance(value, _Inner) else value
             for key, value in tree.items()}
    if kinds is not None:
        with _objects.refusing(f"the container {named(path)!r} of the checkpoint"):
            return _containers.container_of(kinds.get(path), items.items())
    return list(items.values()) if items and list(items) == list(range(len(items))) else items


def moved(missing: Iterable[str], there: Iterable[str], separator: str) -> str:
    """Returns advice if missing names are stored on other levels: an example, and the rename that fits most
    of them; empty if no missing name ends as a stored name does."""
    wanted, stored = list(missing)[:1000], list(there)
    last: dict[str, list[str]] = {}
    for name in stored:
        last.setdefault(name.rpartition(separator)[2], []).append(name)
    votes: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name in wanted:
        for candidate in last.get(name.rpartition(separator)[2], [])[:100]:
            if candidate != name:
                votes.setdefault(_beginnings(candidate, name, separator), []).append((candidate, name))
    if not votes:
        return ""
    (old, new), pairs = max(votes.items(), key=lambda vote: len(vote[1]))
    return (f'; {pairs[0][0]!r} is stored, {pairs[0][1]!r} asked for: write rename={{"{old}*": "{new}*"}}, '
            'or a target with the stored levels')


def _beginnings(first: str, second: str, separator: str) -> tuple[str, str]:
    """Returns the levels of each name before the levels with which both end."""
    first_parts, second_parts = first.split(separator), second.split(separator)
    common = 0
    while (common < min(len(first_parts), len(second_parts))
           and first_parts[-1 - common] == second_parts[-1 - common]):
        common += 1
    return tuple(separator.join([*parts[: len(parts) - common], ""])
                 for parts in (first_parts, second_parts))  # type: ignore[return-value]
