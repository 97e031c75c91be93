"""Has the common parts of exports to DCP and Orbax: the tree of a checkpoint's names, and reads of its
elements part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from .._arrays.boxes import aligned_empty, read_boxes
from .._checkpoint.edits import Edits
from .._checkpoint.tensor import Checkpoint
from .._errors import Error, InvalidArgument
from .._progress import ProgressFunction
from .._trees import nested as _nested, objects as _objects

_LISTS = ("list", "tuple")
_LEAST_MEMORY = 8 << 20
_LEAST_PART, _MOST_PART = 1 << 20, 64 << 20
_PARTS_IN_MEMORY = 8
"""A part takes at most 1 / 8 of the memory budget: chunks of the reader and copies in the packages need the
rest."""


@dataclass(frozen=True)
class Leaf:
    """A tensor or object of the checkpoint, in a tree of dicts and lists."""

    name: str


@dataclass
class Export:
    """An export under way: the checkpoint and the options."""

    checkpoint: Checkpoint
    target: str  #: its name in messages; the export is first written elsewhere
    max_shard: int  #: the most bytes of tensors in a file; 0: no limit
    memory: int
    tell: ProgressFunction | None = None
    done: int = 0

    def __post_init__(self) -> None:
        if self.memory < _LEAST_MEMORY:
            raise self.refuse(InvalidArgument, f"the memory budget is {self.memory} bytes, "
                                               f"needed are at least {_LEAST_MEMORY}")
        if self.max_shard < 0:
            raise self.refuse(InvalidArgument, f"max_shard is {self.max_shard}, needed is a number of bytes, "
                                               "or 0 for no limit")
        sizes = dict(_core.dtypes())  # numpy may lack some of these dtypes
        self.total = sum(tensor.size * sizes[tensor.dtype_name] for tensor in self.checkpoint.values())

    def part_bytes(self) -> int:
        """Returns the most bytes of elements that are in memory at a time."""
        most = max(_LEAST_PART, min(_MOST_PART, self.memory // _PARTS_IN_MEMORY))
        return min(most, self.max_shard) if self.max_shard else most

    def refuse(self, kind: type[Error], what: str) -> Error:
        return kind(f"export to {self.target}: {what}")

    def read(self, name: str, begin: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
        """Returns the elements of a box, row-major."""
        tensor = self.checkpoint[name]
        out = aligned_empty(shape, tensor.dtype)
        read_boxes(tensor.reader, [(tensor.number, begin, out)])
        return out

    def count(self, size: int) -> None:
        """Counts `size` more bytes as written."""
        self.done += size
        if self.tell is not None and self.total:
            self.tell(self.done, self.total)


def opened(source: Any, memory: int, edits: Edits, threads: int = 0) -> Checkpoint:
    """Opens a checkpoint with edits, and keeps the keys of its tensors for tree_of()."""
    checkpoint = Checkpoint(source, memory=memory, threads=threads)
    if any(edits):
        try:
            tree = checkpoint.tree
            if isinstance(tree, dict) and tree.get("kind") == "pytree":
                checkpoint.document["paths"] = {leaf.name: _nested.encoded_path(path)
                                                for path, leaf in leaves_of(_of_node(tree["root"], set()))}
            checkpoint._edit(None, edits)
        except BaseException:
            checkpoint.close()
            raise
    return checkpoint


def tree_of(work: Export, separator: str = "") -> Any:
    """Returns the saved dicts, lists and None, with a Leaf for each name. A name without known keys is itself
    a key; a separator splits it into keys. Raises InvalidArgument if the place of a leaf also holds other
    names."""
    checkpoint = work.checkpoint
    tree = checkpoint.tree
    names = [*checkpoint, *checkpoint.objects]
    if isinstance(tree, dict) and tree.get("kind") == "pytree" and not _is_of_names(tree["root"]):
        used: set[str] = set()
        root = _of_node(tree["root"], used)
        if used.issuperset(names):
            return root
    encoded = checkpoint.document.get("paths", {})
    paths = {name: checkpoint.paths[name] if name in encoded else tuple(name.split(separator)) if separator
             else (name,) for name in names}
    return _of_paths(work, paths, _nested.decoded_kinds(checkpoint.document))


def _is_of_names(root: Any) -> bool:
    """Returns True if edits have replaced a tree by a flat tree of names."""
    return isinstance(root, dict) and root.get("node") == ""


def _of_node(node: Any, used: set[str]) -> Any:
    """Returns the tree of a stored node of JAX, and adds its names to `used`."""
    if node is None:
        return None
    if isinstance(node, str) or "key" in node:
        name = node if isinstance(node, str) else node["name"]
        used.add(name)
        return Leaf(name)
    if isinstance(node, list) or "tuple" in node:
        return [_of_node(child, used) for child in (node if isinstance(node, list) else node["tuple"])]
    if "dict" in node:
        return {str(_objects.decode_key(key)): _of_node(child, used) for key, child in node["dict"]}
    keys = node["fields"] if "namedtuple" in node else [key for key, _ in node["items"]]
    children = node["items"] if "namedtuple" in node else [child for _, child in node["items"]]
    return {key: _of_node(child, used) for key, child in zip(keys, children)}


def _of_paths(work: Export, paths: Mapping[str, tuple[Any, ...]], kinds: Mapping[Any, Any] | None) -> Any:
    root: dict[Any, Any] = {}
    for name, path in paths.items():
        inner, keys = root, [_key(path, at, kinds) for at in range(len(path))]
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
            if isinstance(inner, Leaf):
                raise _collision(work, inner.name, name)
        if keys[-1] in inner:
            raise _collision(work, next(leaf.name for _, leaf in leaves_of({"": inner[keys[-1]]})), name)
        inner[keys[-1]] = Leaf(name)
    return _with_lists(root)


def _key(path: tuple[Any, ...], at: int, kinds: Mapping[Any, Any] | None) -> str | int:
    """Returns an int for an index of a list or of a container of unknown kind; else a text."""
    kind = None if kinds is None else kinds.get(path[:at])
    is_list = kinds is None or kind in _LISTS or isinstance(kind, list) and kind[0] == "deque" or (
        isinstance(kind, dict) and "namedtuple" in kind)
    return path[at] if type(path[at]) is int and is_list else str(path[at])


def _with_lists(tree: Any) -> Any:
    """Turns dicts with the keys 0, 1, 2, ... into lists. Other dicts get texts as keys, as items of a list
    may have been left out."""
    if isinstance(tree, Leaf):
        return tree
    items = {key: _with_lists(child) for key, child in tree.items()}
    if items and set(items) == set(range(len(items))):
        return [items[i] for i in range(len(items))]
    return {str(key): child for key, child in items.items()}


def leaves_of(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Leaf]]:
    """Yields the keys and the Leaf of each leaf."""
    if isinstance(tree, Leaf):
        yield path, tree
    elif tree is not None:
        for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves_of(child, (*path, key))


def named_leaves(work: Export, tree: Any, format: str) -> dict[str, tuple[tuple[str | int, ...], str]]:
    """Returns the keys and the checkpoint's name of each leaf, by its name in DCP and Orbax, which joins the
    keys with ".". Raises InvalidArgument if two leaves have one name, as these formats would drop one of
    them."""
    leaves: dict[str, tuple[tuple[str | int, ...], str]] = {}
    for path, leaf in leaves_of(tree):
        name = _nested.named(path)
        if name in leaves:
            raise work.refuse(InvalidArgument,
                              f"{leaves[name][1]!r} and {leaf.name!r} would both be {name!r} in {format}: "
                              "needed is another name, by --rename or rename=, for one of them")
        leaves[name] = (path, leaf.name)
    return leaves


def parts_of(shape: tuple[int, ...], itemsize: int,
             most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yields the begin and shape of boxes that cover a tensor in its order, each of at most `most` bytes or
    of one element."""
    rows = part_shape(shape, itemsize, most)
    if 0 in shape:
        yield (0,) * len(shape), shape
        return
    for at in np.ndindex(*[-(-extent // step) for extent, step in zip(shape, rows)]):
        begin = tuple(i * step for i, step in zip(at, rows))
        yield begin, tuple(min(step, extent - first) for step, extent, first in zip(rows, shape, begin))


def part_shape(shape: tuple[int, ...], itemsize: int, most: int) -> tuple[int, ...]:
    """Returns the shape of the boxes of parts_of(), except the last ones along a dim."""
    below = itemsize
    steps: list[int] = []
    for extent in reversed(shape):
        step = max(1, min(max(extent, 1), most // below))
        # Steps are equal, so that the last part is not much shorter.
        step = -(-max(extent, 1) // -(-max(extent, 1) // step))
        steps.insert(0, step)
        below *= max(extent, 1) if step >= extent else most
    return tuple(steps)


def _collision(work: Export, first: str, second: str) -> Error:
    return work.refuse(InvalidArgument,
                       f"{first!r} and {second!r}: one is where the other one has its parts; "
                       "needed is another name, by --rename or rename=, for one of them")
