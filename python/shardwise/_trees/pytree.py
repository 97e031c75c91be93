"""Turns a pytree into names and a JSON text of its structure, and back.

A node is null for None; the name of a leaf, or {"key": impl, "name": name} for a typed PRNG key, whose data
is stored; a JSON list for a list; else an object: {"tuple": nodes}, {"dict": [[key, node], ...]} with keys
that `_objects` encodes, {"namedtuple": "module:class", "fields": names, "items": nodes}, and for every other
class that is registered with JAX {"node": "module:class", "items": [[name, node], ...]}.
"""

from __future__ import annotations

import collections
from typing import Any, Callable, Iterator

import jax
import numpy as np
from jax import tree_util

from .._errors import Corrupt, InvalidArgument, WrongType
from . import containers as _containers, objects as _objects
from .containers import check_places
from .nested import MOST_LEVELS

Parts = tuple[str, ...]
"""A path as the names of its keys."""

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)


class Json:
    """A leaf that is stored as one object, even if it holds containers."""

    def __init__(self, value: Any) -> None:
        self.value = value


def is_stateful(value: Any) -> bool:
    """Returns True if a leaf is stored by its state, as a loader is."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def name_of(parts: Parts) -> str:
    """Returns the name of the leaf at a path. A tree that is a leaf is called "value"."""
    return "/".join(parts) if parts else "value"


def parts_of(path: tuple[Any, ...]) -> Parts:
    """Returns the names of the keys of a path of JAX."""
    return tuple(tree_util.keystr((key,), simple=True, separator="/") for key in path)


def is_key(value: Any) -> bool:
    """Returns True if a value has the dtype of typed PRNG keys."""
    dtype = getattr(value, "dtype", None)
    return not isinstance(dtype, (np.dtype,
                                  type(None))) and bool(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key))


def flatten(tree: Any, prefix: Parts = ()) -> tuple[dict[str, Any], Any]:
    """Returns the leaves by name, and the node. Raises InvalidArgument if two leaves have one name."""
    check_places(tree, prefix)
    leaves: dict[str, Any] = {}
    return leaves, _walk(tree, prefix, leaves)


def _walk(value: Any, parts: Parts, leaves: dict[str, Any]) -> Any:
    def inner(part: str, child: Any) -> Any:
        return _walk(child, (*parts, part), leaves)

    kind = type(value)
    if len(parts) > MOST_LEVELS:
        raise InvalidArgument(f"found containers nested deeper than {MOST_LEVELS} levels at "
                              f"{'/'.join(parts[:4])!r}, or one that holds itself: needed are fewer levels")
    if value is None:
        return None
    if kind in _DICTS:
        return {"dict": [[_encoded(k, parts), inner(str(k), v)] for k, v in value.items()]}
    if kind is list:
        return [inner(str(i), v) for i, v in enumerate(value)]
    if kind is tuple:
        return {"tuple": [inner(str(i), v) for i, v in enumerate(value)]}
    children = children_of(value)
    if children is None:
        return _leaf(value, parts, leaves)
    if isinstance(value, tuple) and hasattr(value, "_fields") and len(children) == len(value._fields):
        return {"namedtuple": _containers.class_name(kind), "fields": list(value._fields),
                "items": [inner(part, child) for part, child in children]}
    return {"node": _containers.class_name(kind),
            "items": [[part, inner(part, child)] for part, child in children]}


def kinds(node: Any, place: str = "") -> dict[str, str]:
    """Returns the kind of each container in a node, by its place."""
    items: list[tuple[Any, Any]]
    if isinstance(node, list):
        kind, items = "list", list(enumerate(node))
    elif not isinstance(node, dict) or "key" in node:
        return {}
    elif "dict" in node:
        kind, items = "dict", [(str(key), child) for key, child in node["dict"]]
    elif "tuple" in node:
        kind, items = "tuple", list(enumerate(node["tuple"]))
    elif "namedtuple" in node:
        kind, items = node["namedtuple"], list(zip(node["fields"], node["items"]))
    else:
        kind, items = node["node"], node["items"]
    by_place = {place: kind}
    for key, child in items:
        by_place.update(kinds(child, f"{place}/{key}" if place else str(key)))
    return by_place


def children_of(value: Any) -> list[tuple[str, Any]] | None:
    """Returns the children of a node by name; None for a leaf."""
    if isinstance(value, (jax.Array, np.ndarray)):
        return None
    pairs, _ = tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    if len(pairs) == 1 and pairs[0][1] is value:
        return None
    return [("/".join(parts_of(path)), child) for path, child in pairs]


def _leaf(value: Any, parts: Parts, leaves: dict[str, Any]) -> Any:
    name = name_of(parts)
    if name in leaves:
        raise InvalidArgument(f"two leaves of the tree have the name {name!r}: a key holds a '/', "
                              "or keys of two types read the same")
    if not name:
        raise InvalidArgument("a leaf of the tree has an empty name: its key is ''")
    leaves[name] = value
    return {"key": str(jax.random.key_impl(value)), "name": name} if is_key(value) else name


def _encoded(key: Any, parts: Parts) -> Any:
    try:
        return _objects.encode(key)
    except TypeError as error:
        raise WrongType(f"a key of the dict at {'/'.join(parts)!r}: {error}") from None


def children(node: Any) -> list[tuple[str, Any]]:
    """Returns the names and nodes one level below a node."""
    if isinstance(node, list):
        return [(str(i), n) for i, n in enumerate(node)]
    if not isinstance(node, dict) or "key" in node:
        return []
    if "dict" in node:
        return [(str(_objects.decode_key(k)), n) for k, n in node["dict"]]
    if "tuple" in node:
        return [(str(i), n) for i, n in enumerate(node["tuple"])]
    if "namedtuple" in node:
        return list(zip(node["fields"], node["items"]))
    return [(part, n) for part, n in node["items"]]


def find(node: Any, parts: Parts) -> tuple[bool, Any]:
    """Returns True and the node at a path; False and None if there is no such node."""
    if not parts:
        return True, node
    return next((find(n, parts[1:]) for part, n in children(node) if part == parts[0]), (False, None))


def leaves_of(node: Any) -> Iterator[tuple[str, str]]:
    """Yields the name of each leaf, with the name of the PRNG for a key, else ""."""
    if isinstance(node, str):
        yield node, ""
    elif isinstance(node, dict) and "key" in node:
        yield node["name"], node["key"]
    else:
        for _, child in children(node):
            yield from leaves_of(child)


def build(node: Any, value_of: Callable[[str], Any]) -> Any:
    """Returns the tree of a node, with value_of(name) as its leaves. A named tuple gets its class if the
    module of the class is imported already; otherwise it becomes a dict of its fields, as every other class
    does. Nothing is imported, and no code of these classes runs."""
    if node is None:
        return None
    if isinstance(node, str):
        return value_of(node)
    if isinstance(node, list):
        return [build(n, value_of) for n in node]
    if not isinstance(node, dict):
        raise Corrupt(f"the tree of the checkpoint has a node {node!r}")
    if "key" in node:
        return value_of(node["name"])
    if "dict" in node:
        return {_objects.decode_key(k): build(n, value_of) for k, n in node["dict"]}
    if "tuple" in node:
        return tuple(build(n, value_of) for n in node["tuple"])
    built = {part: build(n, value_of) for part, n in children(node)}
    kind = _containers.named_tuple(node["namedtuple"], node["fields"]) if "namedtuple" in node else None
    return built if kind is None else tuple.__new__(kind, built.values())
