"""Loads a checkpoint into a target, whose numpy arrays are filled in place."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from .._arrays.arrays import flattened, is_array
from .._arrays.boxes import aligned_empty, read_boxes
from .._arrays.overlap import Region, Regions
from .._errors import InvalidArgument
from .._trees.containers import is_container, items, kind_of, like
from .._trees.nested import Flat, Path, build, moved, names_of
from .resize import Resizing
from .tensor import Checkpoint, Tensor
from .ties import differ_text, differ_there

log = logging.getLogger("shardwise")


def _taken_apart(flat: Flat, containers: Collection[Path]) -> Flat:
    """Splits containers without arrays into leaves, unless they are stored whole. containers: the paths that
    are stored in parts."""
    parts = Flat({}, dict(flat.kinds))
    for path, leaf in flat.leaves.items():
        if path in containers and is_container(leaf) and not is_array(leaf) and any(True
                                                                                    for _ in items(leaf)):
            inner = Flat({(*path, key): value for key, value in items(leaf)}, {path: kind_of(leaf)})
            inner = _taken_apart(inner, containers)
            parts.leaves.update(inner.leaves)
            parts.kinds.update(inner.kinds)
        else:
            parts.leaves[path] = leaf
    return parts


class Filling:
    """A load of a checkpoint into a target. run() reads and changes; the constructor only checks."""

    def __init__(self, checkpoint: Checkpoint, target: Mapping[str, Any], *, strict: bool,
                 skip_mismatched: bool, resize: Mapping[str, str] | None) -> None:
        """Raises one InvalidArgument that names everything that does not fit."""
        self._checkpoint, self._skip_mismatched, self._resizing = checkpoint, skip_mismatched, Resizing(
            resize)
        places = {place: name for name, place in checkpoint.paths.items()}
        self._flat = _taken_apart(flattened(target),
                                  {place[:depth] for place in places for depth in range(1, len(place))})
        self._found = dict(self._flat.leaves)
        self._boxes: list[tuple[int, tuple[int, ...], np.ndarray]] = []
        self._copies: list[tuple[np.ndarray, np.ndarray]] = []  # the array that is read, and its destination
        self._scalars: list[tuple[Path, np.ndarray]] = []
        self._regions = Regions()
        self._wrong: list[str] = []
        there = {name: None for name in (*checkpoint, *checkpoint.objects)}
        names = names_of(self._flat.leaves, "/")
        stored = {path: name if name in there else places.get(path, name) for path, name in names.items()}
        tied = {id(leaf) for path, leaf in self._flat.leaves.items() if is_array(leaf)
                and stored[path] in there}
        missing: list[str] = []
        absent: list[str] = []
        for path, leaf in self._flat.leaves.items():
            if stored[path] in there:
                self._add(path, stored[path], leaf)
            elif id(leaf) in tied:
                pass  # another name of the array fills it
            elif not strict:
                missing.append(names[path])  # the leaf stays as it is
            else:
                import difflib

                near = difflib.get_close_matches(names[path], list(there), 1)
                self._wrong.append(f"{names[path]!r} is not in the checkpoint"
                                   + (f", nearest {near[0]!r}" if near else ""))
                absent.append(names[path])
        asked = set(stored.values()) - set(missing)
        if strict:
            self._wrong += [f"{name!r} is in the checkpoint, not in the target"
                            for name in there if name not in asked]
        self._wrong += [*self._resizing.faults(), *self._regions.faults()]
        if there and not asked:
            self._wrong.append("the target has none of the checkpoint's names, "
                               "needed is at least one" if missing
                               else "the target is empty, needed is at least one of the checkpoint's names")
        if missing and not self._wrong:
            log.warning("load %s: %d names of the target are not in the checkpoint, and stay as they are: %s",
                        checkpoint.path, len(missing), ", ".join(missing[:50]))
        if self._wrong:
            few = "; ".join(self._wrong[:50]) + (f"; and {len(self._wrong) - 50} more"
                                                 if len(self._wrong) > 50 else "")
            few += moved(absent or missing, there.keys() - asked, "/")
            raise InvalidArgument(f"load {checkpoint.path}: {len(self._wrong)} of "
                                  f"{len(asked | there.keys())} leaves do not fit: {few}")

    def _add(self, path: Path, name: str, leaf: Any) -> None:
        if name in self._checkpoint.objects:
            value = self._checkpoint.objects[name]
            if is_array(leaf):
                self._wrong.append(f"{name!r} is an object, a {type(value).__name__}, "
                                   f"the target {leaf.dtype} {list(leaf.shape)}")
            try:
                self._found[path] = like(leaf, value)
            except InvalidArgument as error:
                self._wrong.append(f"{name!r} {error}")
            return
        tensor = self._checkpoint[name]
        if leaf is None:
            self._found[path] = np.empty(tensor.shape, tensor.dtype)
            self._read(tensor, self._found[path], tensor.shape)
        elif not isinstance(leaf, (np.ndarray, np.generic)):
            self._wrong.append(f"{name!r} is {tensor.dtype} {list(tensor.shape)}, "
                               f"the target a {type(leaf).__name__}")
        elif leaf.dtype != tensor.dtype or tuple(leaf.shape) != tensor.shape and not (
                self._resizing.allows(name, tensor.shape, tuple(leaf.shape)) or self._skip_mismatched):
            self._wrong.append(f"{name!r} is {tensor.dtype} {list(tensor.shape)}, "
                               f"the target {leaf.dtype} {list(leaf.shape)}")
        elif tuple(leaf.shape) != tensor.shape and not self._resizing.allows(name, tensor.shape,
                                                                             tuple(leaf.shape)):
            pass  # the leaf stays as it is
        elif isinstance(leaf, np.generic):
            array = np.empty((), tensor.dtype)
            self._read(tensor, array, ())
            self._scalars.append((path, array))
        elif not leaf.flags.writeable:
            self._wrong.append(f"{name!r} is read-only in the target, needed is an array that can be filled")
        else:
            self._fill(name, tensor, leaf)

    def _fill(self, name: str, tensor: Tensor, array: np.ndarray) -> None:
        common = tuple(map(min, array.shape, tensor.shape))
        tied = self._regions.add(name, Region.of_array(array, tensor.dtype_name))
        if tied is None:
            self._read(tensor, array, common)
            return
        first = self._checkpoint[tied]
        if tuple(map(min, array.shape,
                     first.shape)) != common or differ_there(first, tensor, (0,) * len(common), common):
            self._wrong.append(differ_text(tied, name))

    def _read(self, tensor: Tensor, array: np.ndarray, common: tuple[int, ...]) -> None:
        """Plans the read of the common elements, which are at the beginning of tensor and array."""
        index: Any = (*map(slice, common), ...)
        place = array[index]  # a view, even of an array without dims
        into = place if place.flags.c_contiguous else aligned_empty(common, tensor.dtype)
        self._boxes.append((tensor.number, (0,) * len(common), into))
        if into is not place:
            self._copies.append((into, place))

    def run(self) -> dict[str, Any]:
        """Reads all boxes. Returns the tree of the target, with the saved values in place of its objects and
        scalars."""
        read_boxes(self._checkpoint._reader, self._boxes)
        for array, place in self._copies:
            place[...] = array
        for path, array in self._scalars:
            self._found[path] = array[()]
        filled: dict[str, Any] = build(self._found, self._flat.kinds)
        return filled
