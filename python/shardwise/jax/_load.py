"""Defines load(), which restores a pytree on any mesh."""

from __future__ import annotations

import difflib
import functools
import logging
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable, Iterator

import jax
import numpy as np

from .._arrays.arrays import MEMORY, Path
from .._arrays.boxes import aligned_empty, read_boxes
from .._checkpoint.edits import Cast, Join, Rename, Split, Transpose
from .._checkpoint.edits import Resize as Extents
from .._checkpoint.resize import Resize, Resizing, check_extents
from .._checkpoint.tensor import Checkpoint
from .._errors import InvalidArgument
from .._foreign_names import options_of_others
from .._trees import nested as _nested
from .._trees import pytree as _tree
from .._trees.containers import check_places
from .._trees.nested import moved
from ._target import Refused, Reading, reading_of

log = logging.getLogger("shardwise")

_HOST_BYTES = 2 << 30
"""The most bytes of arrays on the host at a time that go to accelerators."""


class _Any:
    """The class of ANY."""

    def __repr__(self) -> str:
        return "shardwise.jax.ANY"


ANY = _Any()
"""Stands in a target for a leaf, or for everything below a node, and loads the stored value as a load without
a target does."""


#: Options of other libraries.
_OTHER_NAMES = {"shardings": "a target whose leaves are shardings, or jax.ShapeDtypeStruct with them",
                "sharding": "a target whose leaves are shardings", "abstract_state": "target=",
                "abstract_pytree": "target=", "item": "target=", "like": "target=", "template": "target=",
                "dtype": "cast=", "partial": "strict=False", "partial_restore": "strict=False",
                "restore_args": "a target with the sharding wanted"}


@options_of_others(_OTHER_NAMES)
def load(path: Path, target: Any = None, *, strict: bool = True, names: str | Iterable[str] | None = None,
         rename: Rename | None = None, cast: Cast | None = None, transpose: Transpose | None = None,
         split: Split | None = None, join: Join | None = None, skip_mismatched: bool = False,
         resize: Resize | Extents | None = None, threads: int = 0, memory: int = MEMORY) -> Any:
    """Returns the tree of a checkpoint. Without a target it has numpy arrays (the data of PRNG keys), the
    saved objects, and the saved dict, list, tuple and None; a named tuple gets its class if the module is
    imported, else it is a dict of its fields; other classes become dicts. This needs no devices. A checkpoint
    that was saved without a tree gives a dict of names.

    A target is a tree of the same names, whose leaves say how each value is loaded. A jax.ShapeDtypeStruct
    with a sharding, or a jax.Array, gives an array on that sharding (without one: on the default device). A
    jax.sharding.Sharding takes any stored shape and dtype. A numpy.ndarray gives an array on the host. ANY
    gives the value of a load without a target, and a Python object one of its type. A loader, or another
    object with state_dict() and load_state_dict(), gets its state. A Python number and an array without dims
    may stand for each other if the kind is the same and the value exact. None is replaced by everything that
    is stored under its name. A process reads the boxes that its own devices hold, each once.

    strict=False: stored names that the target lacks are left out, and leaves of the target that the
    checkpoint lacks stay as they are, with a warning, if they have a value (a jax.ShapeDtypeStruct has none);
    a load that finds no name at all raises. names: patterns of the names to load, "params/*", as if nothing
    else was stored. rename: new names of stored arrays by patterns, {"params/*": "*"}; without a target the
    tree is then a dict of names. cast: dtypes for stored arrays, "bf16" for all floats, or by patterns of the
    stored names. transpose, split and join are those of shardwise.open(); a split or join also makes the tree
    a dict of names. skip_mismatched=True: an array in the target stays as it is if its stored shape differs.
    resize: rules for arrays that have grown or shrunk, by patterns of their names, {"*/embedding": "pad"}.
    "pad" fills the beginning of a larger array, and the rest is that of the target; "slice" takes the
    beginning of the stored array. Without a target, resize gives extents as in shardwise.open():
    "pad:50304,-".

    Raises, before it reads anything, one InvalidArgument that names everything that does not fit: names,
    shapes, dtypes (there are no other casts), shapes that a sharding does not divide, and a target without
    leaves, even with strict=False. Raises NotFound, Corrupt.
    """
    if target is None:
        check_extents(f"load {path}", skip_mismatched, resize)
    with (Checkpoint(path, threads=threads, memory=memory, names=names, rename=rename, cast=cast,
                     transpose=transpose, split=split,
                     join=join, resize=resize if target is None else None) as checkpoint):
        shapes: Any = None if target is None else resize
        return restore(checkpoint, target, strict=strict, skip_mismatched=skip_mismatched, resize=shapes)


def has_tree(checkpoint: Checkpoint) -> bool:
    """Returns True if shardwise.jax has saved the checkpoint."""
    return isinstance(checkpoint.tree, dict) and checkpoint.tree.get("kind") == "pytree"


def root_of(checkpoint: Checkpoint) -> Any:
    """Returns the root node of a checkpoint's tree; a node of all names if it has no tree."""
    if has_tree(checkpoint):
        return checkpoint.tree["root"]
    return {"node": "", "items": [[name, name] for name in [*checkpoint, *checkpoint.objects]]}


def restore(checkpoint: Checkpoint, target: Any = None, prefix: _tree.Parts = (), *, strict: bool = True,
            skip_mismatched: bool = False, resize: Resize | None = None) -> Any:
    """Loads the tree below a path of the checkpoint's tree, as load() does."""
    plan = planned(checkpoint, target, prefix, strict=strict, skip_mismatched=skip_mismatched, resize=resize)
    return plan.build(_read(checkpoint, plan.readings))


@dataclass
class Planned:
    """The plan of a restore, before it has read anything."""

    readings: dict[str, Reading]
    build: Callable[[dict[str, Any]], Any]  #: makes the tree of the values that were read

    def boxes(self) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """Returns the boxes that will be read: the number of the tensor, the begin of the box, and its
        shape."""
        return [(reading.number, begin, shape) for reading in self.readings.values()
                for begin, shape in reading.boxes]


def planned(checkpoint: Checkpoint, target: Any = None, prefix: _tree.Parts = (), *, strict: bool = True,
            skip_mismatched: bool = False, resize: Resize | None = None) -> Planned:
    """Plans a restore. Raises one InvalidArgument for everything that does not fit."""
    root = root_of(checkpoint)
    found, node = _tree.find(root, prefix)
    if not found:
        raise InvalidArgument(f"restore {checkpoint.path}: there is no item {'/'.join(prefix)!r}")
    resizing = Resizing(resize)
    if target is None:
        names = dict(_tree.leaves_of(node))
        return Planned({name: reading_of(checkpoint, name, None, key, resizing)
                        for name, key in names.items()}, lambda values: _tree.build(node, values.__getitem__))
    return _Restore(checkpoint, node, prefix, target, skip_mismatched, resizing).planned(strict)


class _Restore:
    """A restore of a tree onto a target."""

    def __init__(self, checkpoint: Checkpoint, node: Any, prefix: _tree.Parts, target: Any,
                 skip_mismatched: bool, resizing: Resizing) -> None:
        self._checkpoint, self._node, self._prefix, self._target = checkpoint, node, prefix, target
        self._skip_mismatched, self._resizing = skip_mismatched, resizing
        self._there = dict(_tree.leaves_of(node))
        # shardwise.torch and shardwise join the keys of a path by a dot.
        self._paths = {} if has_tree(checkpoint) else {tuple(map(str, path)): name
                                                       for name, path in checkpoint.paths.items()}
        self._readings: dict[str, Reading] = {}
        self._wrong: list[str] = []

    def planned(self, strict: bool) -> Planned:
        check_places(self._target)
        wanted, treedef = jax.tree_util.tree_flatten_with_path(self._target,
                                                               is_leaf=lambda leaf: leaf is None)
        unflatten: Callable[[list[Any]], Any] = treedef.unflatten  # type: ignore[attr-defined]
        builders: list[Callable[[dict[str, Any]], Any]] = []
        asked: set[str] = set()
        missing: list[str] = []
        for path, want in wanted:
            parts = _tree.parts_of(path)
            name = _tree.name_of((*self._prefix, *parts))
            if name not in self._there:
                name = self._paths.get((*self._prefix, *parts), name)
            if want is None:
                if name not in self._there and not self._is_there(parts):
                    # A None in the state of an optimizer, for example, is not a leaf.
                    builders.append(functools.partial(_own, None))
                    continue
                want = ANY
            if name in asked:
                self._wrong.append(f"two leaves of the target have the name {name!r}")
            asked.add(name)
            if want is ANY and name not in self._there:
                builders.append(self._below(parts, name, asked))
            elif name not in self._there and _tree.is_stateful(want) and self._is_there(parts):
                asked.remove(name)
                builders.append(functools.partial(_filled, want, self._below(parts, name, asked)))
            elif self._skip_mismatched and self._has_other_shape(name, want):
                builders.append(functools.partial(_own, want))
            elif not strict and name not in self._there and _has_value(want):
                asked.remove(name)
                missing.append(name)
                builders.append(functools.partial(_own, want))
            else:
                self._add(name, want)
                builders.append(operator.itemgetter(name))
        if strict:
            left = [f"{name!r} is in the checkpoint, not in the target"
                    for name in self._there if name not in asked]
            self._wrong += left[:-1] + [f"{last}: strict=False leaves such names out" for last in left[-1:]]
        self._wrong += self._resizing.faults()
        if self._there and not asked:
            self._wrong += [self._absent(name) for name in missing] or [
                "the target is empty, needed is at least one of the checkpoint's names"]
        if self._wrong:
            few = "; ".join(self._wrong[:50]) + (f"; and {len(self._wrong) - 50} more"
                                                 if len(self._wrong) > 50 else "")
            few += moved(missing or sorted(asked - self._there.keys()), self._there.keys() - asked, "/")
            raise InvalidArgument(f"restore {self._checkpoint.path}: {len(self._wrong)} of "
                                  f"{len(asked | self._there.keys())} leaves do not fit: {few}")
        if missing:
            log.warning("restore %s: %d leaves of the target are not in the checkpoint, and stay as they "
                        "are: %s", self._checkpoint.path, len(missing), ", ".join(missing[:50]))
        return Planned(self._readings, lambda values: unflatten([build(values) for build in builders]))

    def _has_other_shape(self, name: str, want: Any) -> bool:
        return (name in self._checkpoint and isinstance(want, (jax.Array, np.ndarray))
                and not self._there.get(name) and want.dtype == self._checkpoint[name].dtype
                and tuple(want.shape) != self._checkpoint[name].shape
                and not self._resizing.allows(name, self._checkpoint[name].shape, tuple(want.shape)))

    def _absent(self, name: str) -> str:
        if reason := self._checkpoint._left_out(name):
            return reason
        near = difflib.get_close_matches(name, list(self._there), 1)
        return f"{name!r} is not in the checkpoint" + (f", nearest {near[0]!r}" if near else "")

    def _add(self, name: str, want: Any) -> None:
        if name not in self._there:
            self._wrong.append(self._absent(name))
            return
        try:
            self._readings[name] = reading_of(self._checkpoint, name, None if want is ANY else want,
                                              self._there[name], self._resizing)
        except Refused as error:
            self._wrong.append(f"{name!r} {error}")

    def _below(self, parts: _tree.Parts, name: str, asked: set[str]) -> Callable[[dict[str, Any]], Any]:
        """Plans all leaves below a node."""
        found, node = _tree.find(self._node, parts)
        stored = [] if found else self._stored_below(parts)
        if not found and not stored:
            self._add(name, ANY)
        for below in stored or [leaf for leaf, _ in _tree.leaves_of(node) if found]:
            asked.add(below)
            self._add(below, ANY)
        if not stored:
            return lambda values: _tree.build(node, values.__getitem__)
        paths, depth = self._checkpoint.paths, len(self._prefix) + len(parts)
        kinds = _nested.decoded_kinds(self._checkpoint.document)
        return lambda values: _nested.build({paths[below][depth:]: values[below] for below in stored}, kinds,
                                            paths[stored[0]][:depth])

    def _stored_below(self, parts: _tree.Parts) -> list[str]:
        whole = (*self._prefix, *parts)
        return [name for path, name in self._paths.items() if path[:len(whole)] == whole]

    def _is_there(self, parts: _tree.Parts) -> bool:
        """Returns True if the checkpoint has a node there that is not empty."""
        found, inner = _tree.find(self._node, parts)
        return inner is not None if found else bool(self._stored_below(parts))


def _filled(stateful: Any, state: Callable[[dict[str, Any]], Any], values: dict[str, Any]) -> Any:
    stateful.load_state_dict(state(values))
    return stateful


def _has_value(leaf: Any) -> bool:
    """Returns True if a leaf can stay as it is, and False if it only describes an array."""
    return leaf is not ANY and not isinstance(leaf, (jax.ShapeDtypeStruct, jax.sharding.Sharding))


def _own(leaf: Any, _: dict[str, Any]) -> Any:
    return leaf


def _read(checkpoint: Checkpoint, readings: dict[str, Reading]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for batch in _batches(readings):
        targets = {name: {box: aligned_empty(box[1], reading.dtype) for box in reading.boxes}
                   for name, reading in batch.items()}
        read_boxes(checkpoint._reader, [(batch[name].number, begin, array) for name, arrays in targets.items()
                                        for (begin, _), array in arrays.items()])
        for name, reading in batch.items():
            values[name] = reading.finish(targets.pop(name))
        if len(batch) < len(readings):
            jax.block_until_ready([values[name] for name in batch])  # type: ignore[no-untyped-call]
    return values


def _batches(readings: dict[str, Reading]) -> Iterator[dict[str, Reading]]:
    """Yields the readings in as few batches as possible, so that a chunk is read once, but limits the bytes
    that only pass through the host."""
    batch: dict[str, Reading] = {}
    passing = 0
    for name, reading in readings.items():
        if batch and passing + reading.passing_bytes > _HOST_BYTES:
            yield batch
            batch, passing = {}, 0
        batch[name] = reading
        passing += reading.passing_bytes
    if batch:
        yield batch


def metadata(checkpoint: Checkpoint, prefix: _tree.Parts = ()) -> Any:
    """Returns the tree with a jax.ShapeDtypeStruct for each array, and with the objects."""
    _, node = _tree.find(root_of(checkpoint), prefix)
    keys = dict(_tree.leaves_of(node))
    struct: Any = jax.ShapeDtypeStruct

    def value_of(name: str) -> Any:
        if name in checkpoint.objects:
            return checkpoint.objects[name]
        tensor = checkpoint[name]
        if keys[name]:
            key = jax.eval_shape(lambda: jax.random.key(0, impl=keys[name]))
            data = jax.eval_shape(jax.random.key_data, key)
            return struct(tensor.shape[: tensor.ndim - data.ndim], key.dtype)
        return struct(tensor.shape, tensor.dtype)

    return _tree.build(node, value_of)
