"""A checkpoint of Orbax's, of a PyTree or StandardCheckpointer or a step of its CheckpointManager, as one of ours."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _objects
from ._dtypes import name_of
from ._errors import Corrupt, Error, InvalidArgument, IOFailed, NotFound, Unsupported
from ._paths import Path, local
from ._progress import Progress, function_of
from ._save import Plan, write_groups
from ._sources import Existing, Sources, as_array, check_choice, check_claim

_GROUP_BYTES = 256 << 20
"""How many bytes of arrays are read at a time, and then written as one shard file; more if one array is larger."""


@dataclass
class _Item:
    """A tree of Orbax's on the disk."""

    path: str
    prefix: tuple[str, ...]
    tree: Any  # of Orbax's metadata


@dataclass
class _Group:
    """Leaves that are in memory together."""

    item: _Item
    names: list[str]


def import_orbax(source: Path, target: Path, *, existing: Existing = "fail", progress: Progress = None) -> str:
    """Reads a checkpoint of Orbax's, hashes and writes it as the checkpoint `target`. Returns its path.

    Arrays go through this process's memory by and by, 256 MiB or one array at a time, into a shard file each time.
    Numbers and strings of Python's become objects. The tree is what Orbax kept of it: dicts, lists and None. Of a step of
    several items, the items' names are the tree's first keys; JSON items are objects; custom metadata become `user`.
    Needs the package orbax-checkpoint. progress: bytes read, of all.

    Raises NotFound, InvalidArgument if it is none of Orbax's, Corrupt for what Orbax does not read, Unsupported for items and
    dtypes that cannot be taken, AlreadyExists, IOFailed.
    """
    check_choice("existing", existing, ("fail", "replace", "skip"))
    if existing == "skip" and os.path.lexists(local(target, "import")):
        return local(target, "import")
    root = os.path.abspath(local(source, "import"))
    with _orbaxs_errors(root):
        return _imported(root, local(target, "import"), existing, progress)


def _imported(root: str, target: str, existing: Existing, progress: Progress) -> str:
    items, plan = _items_of(root)
    tell = function_of(progress, f"import {os.path.basename(root)}")
    arrays = {item.path: _arrays_of(item) for item in items}
    total, done = sum(_bytes(meta) for found in arrays.values() for meta in found.values()), 0
    groups = [group for item in items for group in _groups_of(item, arrays[item.path])]

    def sources_of(number: int) -> Sources:
        nonlocal done
        group = groups[number]
        sources = _read(group, arrays[group.item.path], plan)
        done += sum(_bytes(arrays[group.item.path][name]) for name in group.names if name in arrays[group.item.path])
        if tell is not None and total:
            tell(done, total)
        return sources

    user = _objects.plain_json(_custom_metadata(root), "custom metadata")
    return write_groups(target, len(groups), sources_of, plan.document, user_json=user, existing=existing)


def described(root: str) -> list[tuple[str, str, list[int]]]:
    """Name, dtype and shape of each array, by the metadata alone. Raises as import_orbax()."""
    with _orbaxs_errors(root):
        items, _ = _items_of(root)
        return [(name, name_of(meta.dtype, name), list(meta.shape))
                for item in items for name, meta in _arrays_of(item).items()]


@contextlib.contextmanager
def _orbaxs_errors(root: str) -> Iterator[None]:
    """Orbax and TensorStore may raise anything for files that are damaged, or were made to do harm."""
    try:
        yield
    except (Error, ImportError):
        raise
    except OSError as error:
        if error.errno in (None, errno.ENOENT):
            raise Corrupt(f"import {root}: {error}, needed is a whole checkpoint") from error
        raise IOFailed(f"import {root}: {error}") from error
    except Exception as error:  # noqa: BLE001
        said = next(iter(str(error).splitlines()), "").partition(" [tensorstore_spec=")[0]
        raise Corrupt(f"import {root}: Orbax does not read it: {type(error).__name__}: {said[:500]}") from error


def _refuse_odd_files(root: str) -> None:
    """A FIFO would be waited for."""
    for folder, _, files in os.walk(root):
        for name in files:
            path = os.path.join(folder, name)
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise Corrupt(f"import {path}: found a FIFO, device or folder, needed a file")


def _items_of(root: str) -> tuple[list[_Item], Plan]:
    """The trees below a path, and a plan with what is JSON."""
    import orbax.checkpoint as ocp
    from etils import epath  # type: ignore[import-untyped]

    from .jax import _tree

    if not os.path.isdir(root):
        raise NotFound(f"import {root}: it is not there")
    _refuse_odd_files(root)
    folders = [("", root)] if _is_tree(root) else sorted(
        (entry.name, entry.path) for entry in os.scandir(root) if entry.is_dir())
    items, nodes, objects = [], [], {}
    extra: dict[str, Any] = {}
    for name, path in folders:
        prefix = () if name in ("", "default") else (name,)
        if _is_tree(path):
            metadata = ocp.PyTreeCheckpointer().metadata(path).item_metadata
            if metadata is None:  # The handler says why.
                metadata = ocp.PyTreeCheckpointHandler().metadata(epath.Path(path))
            item = _Item(path, prefix, metadata.tree)
            _, node = _tree.flatten(item.tree, prefix)
            items.append(item)
        elif name == "metrics" and (found := _json_of(path, "metrics")) is not None:
            extra["metrics"] = {key: float(value) for key, value in found.items() if isinstance(value, (int, float))
                                and math.isfinite(value)}
            extra.setdefault("jax", {})["metrics"] = _objects.encode(found)
            continue
        elif (found := _json_of(path, "metadata")) is not None:
            objects[name], node = _objects.encode(found), name
        else:
            raise (Unsupported if any(_is_tree(p) for _, p in folders) else InvalidArgument)(
                f"import {root}: {path} is no tree and no JSON item of Orbax's" +
                (": give the directory of one step" if name.isdecimal() else ""))
        nodes.append((prefix, name, node))
    if not items:
        raise InvalidArgument(f"import {root}: it is no checkpoint of Orbax's: there is no tree in it")
    whole = nodes[0][2] if len(nodes) == 1 and not nodes[0][0] else {"dict": [[name, node] for _, name, node in nodes]}
    if len(nodes) > 1 or nodes[0][0]:
        extra.setdefault("jax", {})["items"] = {name: "json" if node == name else "standard" for _, name, node in nodes}
    return items, Plan(Sources(), objects, tree={"kind": "pytree", "root": whole}, extra=extra)


def _is_tree(path: str) -> bool:
    return os.path.exists(os.path.join(path, "_METADATA"))


def _json_of(folder: str, name: str) -> Any:
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def _custom_metadata(root: str) -> Any:
    found = _json_of(root, "_CHECKPOINT_METADATA")
    if found is None and os.path.exists(path := os.path.join(root, "_CHECKPOINT_METADATA")):
        raise Corrupt(f"import {path}: found no JSON, needed Orbax's metadata of the checkpoint")
    return found.get("custom_metadata") or {} if isinstance(found, dict) else {}


def _arrays_of(item: _Item) -> dict[str, Any]:
    """Orbax's metadata of all arrays by name. Raises one Unsupported naming the dtypes that we do not have."""
    from .jax import _tree

    leaves, _ = _tree.flatten(item.tree, item.prefix)
    arrays = {name: meta for name, meta in leaves.items() if type(meta).__name__ == "ArrayMetadata"}
    wrong = []
    for name, meta in arrays.items():
        try:
            name_of(meta.dtype, name)
        except Unsupported as error:
            wrong.append(str(error))
    if wrong:
        raise Unsupported(f"import {item.path}: {'; '.join(wrong[:20])}")
    _refuse_absurd(item.path, arrays)
    return arrays


def _refuse_absurd(path: str, arrays: dict[str, Any]) -> None:
    """TensorStore ends the process if it has no memory for a chunk, and would look for each chunk that metadata make up."""
    stored = sum(os.path.getsize(os.path.join(folder, name)) for folder, _, files in os.walk(path) for name in files)
    for name, meta in arrays.items():
        shape = tuple(meta.shape)
        chunk = tuple(getattr(meta.storage, "chunk_shape", None) or shape)
        what = f"import {path}: array {name!r} is {name_of(meta.dtype, name)} {list(shape)}"
        if len(chunk) != len(shape) or any(not 1 <= c <= max(1, n) for c, n in zip(chunk, shape)):
            raise Corrupt(f"{what} in chunks of {list(chunk)}, needed chunks of 1 to its own extents")
        chunks = math.prod(-(-n // c) for c, n in zip(chunk, shape))
        if chunks > max(stored, 1 << 20):
            raise Corrupt(f"{what} in {chunks} chunks of {list(chunk)}, found {stored} bytes in all files, needed one for each chunk")
        check_claim(what, _bytes(meta), stored)


def _bytes(meta: Any) -> int:
    itemsize: int = np.dtype(meta.dtype).itemsize
    return int(math.prod(meta.shape)) * itemsize


def _groups_of(item: _Item, arrays: dict[str, Any]) -> Iterator[_Group]:
    from .jax import _tree

    group, size = _Group(item, []), 0
    for name in _tree.flatten(item.tree, item.prefix)[0]:
        more = _bytes(arrays[name]) if name in arrays else 0
        if group.names and size + more > _GROUP_BYTES:
            yield group
            group, size = _Group(item, []), 0
        group.names.append(name)
        size += more
    yield group


def _read(group: _Group, arrays: dict[str, Any], plan: Plan) -> Sources:
    """The arrays of a group; what is none is added to the plan's objects."""
    import jax
    import orbax.checkpoint as ocp

    from .jax import _tree

    wanted = set(group.names)

    def asked(path: tuple[Any, ...], meta: Any) -> Any:
        return meta if _tree.name_of((*group.item.prefix, *_tree.parts_of(path))) in wanted else ocp.PLACEHOLDER

    tree = jax.tree_util.tree_map_with_path(asked, group.item.tree)
    how = jax.tree.map(lambda meta: ocp.RestoreArgs(restore_type=np.ndarray) if type(meta).__name__ == "ArrayMetadata"
                       else ocp.RestoreArgs(), tree)
    values = ocp.PyTreeCheckpointer().restore(group.item.path, args=ocp.args.PyTreeRestore(item=tree, restore_args=how))
    found, _ = _tree.flatten(values, group.item.prefix)
    sources = Sources()
    for name in group.names:
        if name in arrays:
            array = as_array(name, found[name])
            if array.shape != tuple(arrays[name].shape) or array.dtype != arrays[name].dtype:
                raise InvalidArgument(f"import {group.item.path}: {name!r} is {array.dtype} {list(array.shape)}, its "
                                      f"metadata say {arrays[name].dtype} {list(arrays[name].shape)}")
            sources.add(name, name_of(array.dtype, name), array.shape, [((0,) * array.ndim, array)], listed=True)
        else:
            plan.objects[name] = _objects.encode(found[name])
    return sources
