"""Reads checkpoints of Orbax: those of a PyTree- or StandardCheckpointer, and steps of a
CheckpointManager."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import _core
from .._argument_types import step_number
from .._arrays.arrays import Existing, Sources, as_array, check_choice, check_claim
from .._checkpoint.edits import chosen
from .._checkpoint.save import Plan, write_groups
from .._dtypes import name_of
from .._errors import Corrupt, Error, InvalidArgument, IOFailed, NotFound, Unsupported
from .._paths import Path, content_of, local, local_or_bucket
from .._progress import Progress, function_of
from .._trees import objects as _objects
from .._trees.containers import class_name
from .folder_files import refuse_odd_files

_RANDOM_KEY = "jax_random_key"  # the folder in an item of JaxRandomKeySave
_GROUP_BYTES = 256 << 20
"""The bytes of arrays that are read at a time and written as one shard file; more if one array is larger."""
_LAZY_BYTES = 16 << 20
"""The bytes of arrays in one read for single boxes: Orbax takes some 30 ms to read one array or many."""


@dataclass
class _Item:
    """A tree of Orbax on the disk."""

    path: str
    prefix: tuple[str, ...]
    tree: Any  # Orbax's metadata
    only: str = ""  # if set, the only key of Orbax's tree to read, which is not part of names
    kept: set[str] | None = None  # if set, the only arrays to read; None reads all leaves

    def leaves(self) -> dict[str, Any]:
        """Returns the leaves to read, by name."""
        from .._trees import pytree as _tree

        leaves = _tree.flatten(self.tree, self.prefix)[0]
        if self.kept is None:
            return leaves
        return {name: meta for name, meta in leaves.items() if name in self.kept and _is_array(meta)}


@dataclass
class _Group:
    """The leaves that are in memory together."""

    item: _Item
    names: list[str]


def _is_array(meta: Any) -> bool:
    return type(meta).__name__ == "ArrayMetadata"


#: The steps of a folder to import: "all", the "newest", or these numbers.
Steps = str | int | Iterable[int]

_STEP = re.compile(r"(?:.*[_-])?(\d+)")  # Orbax's CheckpointManager may put a prefix before the number


def import_orbax(source: Path, target: Path, *, steps: Steps | None = None, existing: Existing = "fail",
                 progress: Progress = None, names: str | Iterable[str] | None = None) -> str:
    """Reads a checkpoint of Orbax, hashes it, and writes it as the checkpoint `target`. Returns its path.

    steps: with steps, `source` is the directory of an Orbax CheckpointManager, and `target` a folder of
    steps, which may be the same directory. "all" imports each step, "newest" the last step, and numbers these
    steps. A step that exists raises, unless existing="skip" goes on with the others. Returns the folder.

    Arrays pass through the memory of this process, 256 MiB or one array at a time, and each time become a
    shard file. Python's numbers and strings become objects. The tree has the containers that Orbax kept:
    dicts, lists and None; typed PRNG keys keep their type. A step of several items becomes an
    ocp.args.Composite, whose names are the first keys of the tree; JSON items become objects, and custom
    metadata becomes `user`. names: patterns, as in open(), which select arrays; with patterns, objects and
    the tree are left out. Needs the package orbax-checkpoint. progress: reports the bytes that were read.

    Raises NotFound, InvalidArgument if `source` is no checkpoint of Orbax, Corrupt if Orbax cannot read it,
    Unsupported for items and dtypes that cannot be imported, AlreadyExists, IOFailed.
    """
    check_choice("existing", existing, ("fail", "replace", "skip"))
    if steps is not None:
        folder = local_or_bucket(target, "import")
        for number, path in _selected(os.path.abspath(local(source, "import")), steps):
            imported(path, os.path.join(folder, f"step-{number:08d}"), existing, progress, names, ())
        return folder
    return imported(source, target, existing, progress, names, ())


def imported(source: Path, target: Path, existing: Existing, progress: Progress,
             names: str | Iterable[str] | None, exclude: Sequence[str]) -> str:
    """Runs import_orbax() for one checkpoint, without the names that match a pattern of `exclude`."""
    path = local_or_bucket(target, "import")
    if existing == "skip" and _core.is_saved(path):
        return path
    root = os.path.abspath(local(source, "import"))
    with _orbaxs_errors(root):
        return _imported(root, path, existing, progress, names, exclude)


def _selected(root: str, steps: Steps) -> list[tuple[int, str]]:
    """Returns the numbers and paths of the selected steps, ascending."""
    there = dict(_steps_of(root))
    if not there:
        raise NotFound(f"import {root}: it holds no step of Orbax's")
    if isinstance(steps, str):
        check_choice("steps", steps, ("all", "newest"))
        numbers = sorted(there) if steps == "all" else [max(there)]
    else:
        numbers = sorted({step_number("import", step)
                          for step in (steps if isinstance(steps, Iterable) else [steps])})
    missing = [str(number) for number in numbers if number not in there]
    if missing:
        raise NotFound(f"import {root}: there is no step {', '.join(missing)}, "
                       f"of {', '.join(map(str, sorted(there)))}")
    return [(number, there[number]) for number in numbers]


def _steps_of(root: str) -> list[tuple[int, str]]:
    """Returns the numbers and paths of the steps that Orbax has committed, ascending."""
    if not os.path.isdir(root):
        raise NotFound(f"import {root}: it is not there")
    return sorted((int(match[1]), entry.path) for entry in os.scandir(root) if entry.is_dir() and (
        match := _STEP.fullmatch(entry.name)) and _is_step(entry.path))


def _is_step(path: str) -> bool:
    return os.path.exists(os.path.join(path, "_CHECKPOINT_METADATA")) or _is_tree(path) or any(
        _is_tree(entry.path) for entry in os.scandir(path) if entry.is_dir())


def _imported(root: str, target: str, existing: Existing, progress: Progress,
              names: str | Iterable[str] | None, exclude: Sequence[str]) -> str:
    items, plan = _items_of(root)
    tell = function_of(progress, f"import {os.path.basename(root)}")
    if names is not None or exclude:
        leaves = [name for item in items for name in item.leaves()]
        kept = set(chosen(f"import {root}", [*leaves, *plan.objects], names, exclude))
        items = [replace(item, kept=kept) for item in items]
        plan = Plan(Sources(), {})
    arrays = {item.path: _arrays_of(item) for item in items}
    total, done = sum(_bytes(meta) for of_item in arrays.values() for meta in of_item.values()), 0
    groups = [group for item in items for group in _groups_of(item, arrays[item.path])]

    def sources_of(number: int) -> Sources:
        nonlocal done
        group = groups[number]
        sources = _read(group, arrays[group.item.path], plan)
        done += sum(_bytes(arrays[group.item.path][name])
                    for name in group.names if name in arrays[group.item.path])
        if tell is not None and total:
            tell(done, total)
        return sources

    user = _objects.plain_json(_custom_metadata(root), "custom metadata")
    return write_groups(target, len(groups), sources_of, plan.document, user_json=user, existing=existing)


def described(root: str) -> list[tuple[str, str, list[int]]]:
    """Returns the name, dtype and shape of each array from the metadata alone; a dtype that we lack has
    numpy's name. Raises the errors of import_orbax()."""
    with _orbaxs_errors(root):
        items, _ = _items_of(root)
        return [(name, name_of(meta.dtype, name) if name in known else str(meta.dtype), list(meta.shape))
                for item in items for known in [_known_arrays_of(item)[0]]
                for name, meta in item.leaves().items() if _is_array(meta)]


@contextlib.contextmanager
def _orbaxs_errors(root: str) -> Iterator[None]:
    """Turns errors into ours, as Orbax and TensorStore may raise anything for damaged or malicious files."""
    try:
        yield
    except (Error, ImportError):
        raise
    except OSError as error:
        if error.errno in (None, errno.ENOENT):
            raise Corrupt(f"import {root}: {error}, needed is a whole checkpoint") from error
        raise IOFailed(f"import {root}: {error}") from error
    except Exception as error:
        said = next(iter(str(error).splitlines()), "").partition(" [tensorstore_spec=")[0]
        raise Corrupt(f"import {root}: Orbax does not read it: {type(error).__name__}: "
                      f"{said[:500]}") from error


def _refuse_keys_outside(path: str) -> None:
    """Raises Corrupt if a key leads out of the folder, as keys name the files of arrays outside the
    database."""
    metadata = _json_of(path, "_METADATA")
    if not isinstance(metadata, dict) or metadata.get("use_ocdbt") is True and os.path.exists(
            os.path.join(path, "manifest.ocdbt")):
        return
    for entry in metadata.get("tree_metadata", {}).values():
        name = ".".join(str(key["key"]) for key in entry["key_metadata"])
        if name.startswith("/") or ".." in name.split("/"):
            raise Corrupt(f"import {path}: found the key {name!r} in _METADATA, "
                          "needed one that is a path in the folder itself")


def _items_of(root: str) -> tuple[list[_Item], Plan]:
    """Returns the trees below a path, and a plan with the JSON items."""
    import orbax.checkpoint as ocp
    from etils import epath  # type: ignore[import-untyped]

    from .._trees import pytree as _tree
    from ..jax.args import Composite

    if not _is_tree(root) and _core.known_format(root)[0] != "orbax" and (
            content := content_of(root)):
        raise InvalidArgument(f"import {root}: it is no checkpoint of Orbax's: {content}")
    if not os.path.isdir(root):
        raise NotFound(f"import {root}: it is not there")
    refuse_odd_files(root)
    folders = [("", root)] if _is_tree(root) else sorted(
        (entry.name, entry.path) for entry in os.scandir(root) if entry.is_dir())
    if folders and not _is_tree(root) and (steps := _steps_of(root)):
        count = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
        raise InvalidArgument(f'import {root}: it is a folder of {count}: needed is one of them, '
                              f'the newest is {steps[-1][1]}, or steps="newest", steps="all"')
    is_one = all(name in ("", "default", "metrics") for name, _ in folders)
    items, nodes, objects = [], [], {}
    extra: dict[str, Any] = {}
    for name, path in folders:
        prefix = () if is_one else (name,)
        is_random = not is_one and _is_tree(os.path.join(path, _RANDOM_KEY))
        if is_random or _is_tree(path):
            path, only = (os.path.join(path, _RANDOM_KEY), "checkpoint") if is_random else (path, "")
            _refuse_keys_outside(path)
            metadata = ocp.PyTreeCheckpointer().metadata(path).item_metadata
            if metadata is None:  # the handler raises the reason
                metadata = ocp.PyTreeCheckpointHandler().metadata(epath.Path(path))
            item = _Item(path, prefix, metadata.tree[only] if only else metadata.tree, only)
            leaves, node = _tree.flatten(item.tree, prefix)
            items.append(item)
            node = _with_keys(node, _keys_of(path, leaves, is_random))
        elif name == "metrics" and (metrics := _json_of(path, "metrics")) is not None:
            extra["metrics"] = {key: float(value) for key, value in metrics.items()
                                if isinstance(value, (int, float)) and math.isfinite(value)}
            extra.setdefault("jax", {})["metrics"] = _objects.encode(metrics)
            continue
        elif (value := _json_of(path, "metadata")) is not None:
            objects[name], node = _objects.encode(value), name
        else:
            raise (Unsupported if any(_is_tree(p) for _, p in folders) else InvalidArgument)(
                f"import {root}: {path} is no tree and no JSON item of Orbax's")
        nodes.append((name, node))
    if not items:
        raise InvalidArgument(f"import {root}: it is no checkpoint of Orbax's: there is no tree in it")
    if is_one:
        return items, Plan(Sources(), objects, tree={"kind": "pytree", "root": nodes[0][1]}, extra=extra)
    extra.setdefault("jax", {})["items"] = {name: "json" if node == name and name in objects else "standard"
                                            for name, node in nodes}
    whole = {"node": class_name(Composite), "items": [[name, node] for name, node in nodes]}
    return items, Plan(Sources(), objects, tree={"kind": "pytree", "root": whole}, extra=extra)


def _keys_of(path: str, leaves: dict[str, Any], is_random: bool) -> dict[str, str]:
    """Returns the generators of the leaves that are typed PRNG keys, by name. Orbax stores the data of these
    keys."""
    import jax

    if is_random:
        metadata = _json_of(os.path.dirname(path), os.path.join(f"{_RANDOM_KEY}_metadata", "metadata"))
        # Orbax, too, assumes the default generator for such an item.
        impl = str(jax.random.key_impl(jax.random.key(0)))
        return dict.fromkeys(leaves, impl) if isinstance(metadata, dict) and metadata.get("typed") else {}
    impls: dict[str, str] = {}
    folder = os.path.join(path, "array_metadatas")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        for entry in (_json_of(folder, name) or {}).get("array_metadatas", ()):
            array = entry["array_metadata"]
            stored_impl = (array.get("ext_metadata") or {}).get("random_key_impl")
            if stored_impl is not None:
                impls.setdefault(array["param_name"], stored_impl)
    keys = {name: impls[meta.name] for name, meta in leaves.items() if getattr(meta, "name", None) in impls}
    for name, impl in keys.items():
        # This raises if `impl` names no generator.
        shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=impl))).shape
        if tuple(leaves[name].shape)[-len(shape):] != shape or leaves[name].dtype != np.uint32:
            raise Corrupt(f"import {path}: {name!r} is {leaves[name].dtype} {list(leaves[name].shape)}, "
                          f"needed is data of PRNG keys of {impl!r}, uint32 [.., {shape[0]}]")
    return keys


def _with_keys(node: Any, keys: dict[str, str]) -> Any:
    """Returns a node of a tree with these leaves marked as PRNG keys."""
    if isinstance(node, str):
        return {"key": keys[node], "name": node} if node in keys else node
    if isinstance(node, list):
        return [_with_keys(child, keys) for child in node]
    if isinstance(node, dict):
        return {kind: [[part, _with_keys(child, keys)] for part, child in inner] if kind == "dict"
                else [_with_keys(child, keys) for child in inner] if kind == "tuple" else inner
                for kind, inner in node.items()}
    return node


def _without(node: Any, names: set[str]) -> Any:
    """Returns a node of a tree without these leaves. None replaces a leaf in a list or tuple."""
    if isinstance(node, str):
        return None if node in names else node
    if isinstance(node, list):
        return [_without(child, names) for child in node]
    if not isinstance(node, dict) or "key" in node:
        return node
    if "tuple" in node or "namedtuple" in node:
        inner = "tuple" if "tuple" in node else "items"
        return {**node, inner: _without(node[inner], names)}
    inner = "dict" if "dict" in node else "items"
    return {**node, inner: [[part, _without(child, names)] for part, child in node[inner]
                            if not isinstance(child, str) or child not in names]}


def _is_tree(path: str) -> bool:
    return os.path.exists(os.path.join(path, "_METADATA"))


def _json_of(folder: str, name: str) -> Any:
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def _custom_metadata(root: str) -> Any:
    metadata = _json_of(root, "_CHECKPOINT_METADATA")
    if metadata is None and os.path.exists(path := os.path.join(root, "_CHECKPOINT_METADATA")):
        raise Corrupt(f"import {path}: found no JSON, needed Orbax's metadata of the checkpoint")
    return metadata.get("custom_metadata") or {} if isinstance(metadata, dict) else {}


def _arrays_of(item: _Item) -> dict[str, Any]:
    """Returns Orbax's metadata of all arrays by name. Raises one Unsupported that names all dtypes that we
    lack."""
    arrays, wrong = _known_arrays_of(item)
    if wrong:
        raise Unsupported(f"import {item.path}: {'; '.join(wrong.values())}: "
                          "names= or --exclude takes arrays without them")
    return arrays


def _known_arrays_of(item: _Item) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns, by name, Orbax's metadata of the arrays whose dtypes we have, and the problems of the
    others."""
    arrays, wrong = {}, {}
    for name, meta in item.leaves().items():
        if not _is_array(meta):
            continue
        try:
            name_of(meta.dtype, name)
            arrays[name] = meta
        except Unsupported as error:
            wrong[name] = str(error)
    _refuse_absurd(item.path, arrays)
    return arrays, wrong


def _refuse_absurd(path: str, arrays: dict[str, Any]) -> None:
    """Raises Corrupt for absurd chunks. TensorStore ends the process if it has no memory for a chunk, and
    would look for each chunk that metadata invents."""
    stored = sum(os.path.getsize(os.path.join(folder, name)) for folder, _, files in os.walk(path)
                 for name in files)
    for name, meta in arrays.items():
        shape = tuple(meta.shape)
        chunk = tuple(getattr(meta.storage, "chunk_shape", None) or shape)
        what = f"import {path}: array {name!r} is {name_of(meta.dtype, name)} {list(shape)}"
        if len(chunk) != len(shape) or any(not 1 <= c <= max(1, n) for c, n in zip(chunk, shape)):
            raise Corrupt(f"{what} in chunks of {list(chunk)}, needed chunks of 1 to its own extents")
        chunks = math.prod(-(-n // c) for c, n in zip(chunk, shape))
        if chunks > max(stored, 1 << 20):
            raise Corrupt(f"{what} in {chunks} chunks of {list(chunk)}, found {stored} bytes in all files, "
                          "needed one for each chunk")
        check_claim(what, _bytes(meta), stored)


def _bytes(meta: Any) -> int:
    itemsize: int = np.dtype(meta.dtype).itemsize
    return int(math.prod(meta.shape)) * itemsize


def _groups_of(item: _Item, arrays: dict[str, Any], most: int = _GROUP_BYTES) -> Iterator[_Group]:
    group, size = _Group(item, []), 0
    for name in item.leaves():
        more = _bytes(arrays[name]) if name in arrays else 0
        if group.names and size + more > most:
            yield group
            group, size = _Group(item, []), 0
        group.names.append(name)
        size += more
    yield group


def _read(group: _Group, arrays: dict[str, Any], plan: Plan) -> Sources:
    """Returns the arrays of a group, and adds its other leaves to the objects of the plan."""
    values = _values_of(group)
    sources = Sources()
    for name in group.names:
        if name in arrays:
            array = _array_of(group, arrays[name], name, values[name])
            sources.add(name, name_of(array.dtype, name), array.shape, [((0,) * array.ndim, array)],
                        listed=True)
        else:
            plan.objects[name] = _objects.encode(values[name])
    return sources


def _array_of(group: _Group, meta: Any, name: str, value: Any) -> np.ndarray:
    array = as_array(name, value)
    if array.shape != tuple(meta.shape) or array.dtype != meta.dtype:
        raise InvalidArgument(f"import {group.item.path}: {name!r} is {array.dtype} {list(array.shape)}, its "
                              f"metadata say {meta.dtype} {list(meta.shape)}")
    return array


def _values_of(group: _Group) -> dict[str, Any]:
    """Restores the leaves of a group by Orbax, with placeholders for all others, and returns them by name."""
    import jax
    import orbax.checkpoint as ocp

    from .._trees import pytree as _tree

    wanted = set(group.names)

    def meta_or_placeholder(path: tuple[Any, ...], meta: Any) -> Any:
        return meta if _tree.name_of((*group.item.prefix,
                                      *_tree.parts_of(path))) in wanted else ocp.PLACEHOLDER

    tree = jax.tree_util.tree_map_with_path(meta_or_placeholder, group.item.tree)
    how = jax.tree.map(lambda meta: ocp.RestoreArgs(restore_type=np.ndarray) if _is_array(meta)
                       else ocp.RestoreArgs(), tree)
    if group.item.only:  # another handler of Orbax reads a file of one array
        with ocp.Checkpointer(ocp.ArrayCheckpointHandler()) as checkpointer:
            values = checkpointer.restore(group.item.path, args=ocp.args.ArrayRestore(
                restore_args=ocp.RestoreArgs(restore_type=np.ndarray)))
    else:
        values = ocp.PyTreeCheckpointer().restore(group.item.path,
                                                  args=ocp.args.PyTreeRestore(item=tree, restore_args=how))
    leaves: dict[str, Any] = _tree.flatten(values, group.item.prefix)[0]
    return leaves


class OrbaxTensors:
    """Reads a checkpoint of Orbax in place for reader_of(): whole arrays, and small ones together. Keeps the
    arrays of the last read in memory."""

    def __init__(self, root: str) -> None:
        """Raises the errors of import_orbax(), but puts dtypes that it cannot import into `left_out`."""
        self._root = os.path.abspath(root)
        self._arrays: dict[str, Any] = {}
        self._groups: dict[str, _Group] = {}  # by the name of the array
        self.left_out: list[str] = []
        with _orbaxs_errors(self._root):
            items, plan = _items_of(self._root)
            left_out: set[str] = set()
            for item in items:
                arrays, wrong = _known_arrays_of(item)
                self.left_out += wrong.values()
                left_out |= wrong.keys()
                self._arrays |= arrays
                objects = [name for name in item.leaves() if name not in arrays and name not in wrong]
                if objects:
                    _read(_Group(item, objects), {}, plan)
                for group in _groups_of(replace(item, kept={*arrays}), arrays, _LAZY_BYTES):
                    self._groups |= dict.fromkeys(group.names, group)
            self.user = _objects.plain_json(_custom_metadata(self._root), "custom metadata")
        if plan.tree and left_out:
            plan.tree["root"] = _without(plan.tree["root"], left_out)
        self.objects = plan.document()
        self.tensors = [(name, name_of(meta.dtype, name), list(meta.shape))
                        for name, meta in sorted(self._arrays.items())]
        self._last: tuple[_Group | None, dict[str, Any]] = (None, {})

    def read(self, boxes: Iterable[tuple[int, list[int], list[int], int]]) -> None:
        """Fills memory with boxes, each the number of a tensor, the begin and shape of the box, and an
        address."""
        for number, begin, shape, address in sorted(boxes):
            array = self._array(self.tensors[number][0])
            memory: Any = (ctypes.c_char * (math.prod(shape) * array.itemsize)).from_address(address)
            index: Any = (*(slice(first, first + extent) for first, extent in zip(begin, shape)), ...)
            np.frombuffer(memory, array.dtype).reshape(shape)[...] = array[index]

    def _array(self, name: str) -> np.ndarray:
        group, (last, values) = self._groups[name], self._last
        if last is not group:
            self._last = (None, {})
            with _orbaxs_errors(self._root):
                values = _values_of(group)
            self._last = (group, values)
        return _array_of(group, self._arrays[name], name, values[name])
