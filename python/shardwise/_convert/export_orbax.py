"""Writes a checkpoint in Orbax's format. Orbax writes the description of the tree; this module reads and
writes arrays part by part."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import orbax.checkpoint as ocp
import tensorstore as ts

from .._checkpoint.tensor import Tensor
from .._errors import InvalidArgument, IOFailed, Unsupported
from .._trees import objects as _objects
from .._trees.pytree import leaves_of
from .export import Export, Leaf, named_leaves, part_shape, parts_of, tree_of

_DRIVER = {"driver": "ocdbt",
           "config": {"max_inline_value_bytes": 1024, "max_decoded_node_bytes": 100_000_000}}


class _Lazy:
    """A tensor of the checkpoint that stands for a numpy array as a leaf of Orbax's tree."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.shape, self.dtype, self.size, self.nbytes = (
            tensor, tensor.shape, tensor.dtype, tensor.size, tensor.nbytes)


@dataclass(frozen=True)
class _Value(Leaf):
    """A number or a text inside an object. It is a leaf in Orbax."""

    value: Any


class _Handler(ocp.type_handlers.NumpyHandler):  # type: ignore[misc]
    """Orbax's TypeHandler for _Lazy, whose tensors are restored as numpy arrays."""

    def __init__(self, work: Export) -> None:
        super().__init__()
        self._work = work
        self.failed: BaseException | None = None
        self._is_stopped = False
        self._ended = threading.Event()
        self._ended.set()

    async def serialize(self, values: Sequence[_Lazy], infos: Sequence[Any], args: Any = None) -> list[Any]:
        return [ocp.future.CommitFutureAwaitingContractedSignals(self._write(values, infos),
                                                                 name="shardwise")]

    def stop(self) -> None:
        """Returns when no write is under way; no further array begins."""
        self._is_stopped = True
        self._ended.wait()

    async def _write(self, values: Sequence[_Lazy], infos: Sequence[Any]) -> None:
        self._ended.clear()
        try:
            transaction, size = ts.Transaction(), 0
            most = self._work.part_bytes()
            for value, info in zip(values, infos):
                if self._is_stopped:
                    return
                if hasattr(info, "await_path_creation"):  # newer versions have it
                    await info.await_path_creation()
                spec = _spec_of(value, info, most)
                store = await ts.open(spec, create=True, transaction=transaction, context=info.ts_context)
                for begin, shape in parts_of(value.shape, value.dtype.itemsize, most):
                    if self._is_stopped:
                        return
                    part = self._work.read(value.tensor.name, begin, shape)
                    if size and size + part.nbytes > most:
                        await transaction.commit_async()
                        transaction, size = ts.Transaction(), 0
                        store = await ts.open(spec, create=True, open=True, transaction=transaction,
                                              context=info.ts_context)
                    box = tuple(slice(first, first + extent) for first, extent in zip(begin, shape))
                    await store[box].write(part, can_reference_source_data_indefinitely=True)
                    size += part.nbytes
                    self._work.count(part.nbytes)
            await transaction.commit_async()
        except BaseException as error:
            self.failed = error
            raise
        finally:
            self._ended.set()


def _spec_of(value: _Lazy, info: Any, most: int) -> dict[str, Any]:
    """Returns TensorStore's spec of a zarr array in the file of the first process, where Orbax puts it."""
    folder = os.path.join(info.parent_dir.as_posix(), "ocdbt.process_0", "")
    chunks = part_shape(value.shape, value.dtype.itemsize, most)
    return {"driver": "zarr", "dtype": value.dtype.name, "store_data_equal_to_fill_value": True,
            "recheck_cached_data": False, "recheck_cached_metadata": False,
            "kvstore": {**_DRIVER, "base": {"driver": "file", "path": folder}, "path": info.name},
            "metadata": {"shape": list(value.shape), "chunks": list(chunks),
                         "compressor": {"id": "zstd", "level": 1}}}


def write_orbax(work: Export, folder: str) -> None:
    """Fills the folder with a tree, or with the items of a step if the checkpoint has items or metrics. A few
    parts of tensors are in memory at a time."""
    checkpoint = work.checkpoint
    tree = tree_of(work, "/")
    stored = checkpoint.document.get("jax", {})
    metrics = _objects.decode(stored["metrics"]) if "metrics" in stored else checkpoint.metrics
    items = stored.get("items", {})
    has_items = bool(items) and isinstance(tree, dict) and items.keys() >= tree.keys()
    trees = dict(tree) if has_items else {"default": tree}
    wrong: list[str] = []
    texts = _json_items(work, trees, items, wrong) if has_items else {}
    trees = {key: _expanded(work, child, wrong) for key, child in trees.items()}
    for child in trees.values():
        _check(work, child, wrong)
    keys = _random_keys(work, wrong)
    if wrong:
        raise work.refuse(Unsupported, "; ".join(wrong[:20]) + "; --exclude, or names=, leaves them out")
    handler = _Handler(work)
    registry = ocp.type_handlers.create_type_handler_registry(
        (_Lazy, handler), (int, ocp.type_handlers.ScalarHandler()),
        (float, ocp.type_handlers.ScalarHandler()), (str, ocp.type_handlers.StringHandler()),
        (jax.Array, ocp.type_handlers.get_type_handler(jax.Array)))
    saved = {key: ocp.args.PyTreeSave(_filled(work, child, keys)) for key, child in trees.items()}
    custom = checkpoint.user if isinstance(checkpoint.user, dict) else {"user": checkpoint.user}
    # Orbax makes a hidden folder of a longer name next to its target, so its target is inside the folder.
    inside = os.path.join(folder, "made")
    try:
        if has_items or metrics:
            _save_step(inside, saved, texts, metrics, custom, registry)
        else:
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(
                type_handler_registry=registry)) as checkpointer:
                checkpointer.save(inside, args=saved["default"], custom_metadata=custom)
    except BaseException as error:
        handler.stop()
        failed = handler.failed or error
        if type(failed) in (ValueError, RuntimeError):  # TensorStore raises these for everything
            raise work.refuse(IOFailed, f"Orbax has failed: {str(failed).splitlines()[0]}") from failed
        raise failed from None
    for name in os.listdir(inside):
        os.rename(os.path.join(inside, name), os.path.join(folder, name))
    os.rmdir(inside)


def _json_items(work: Export, trees: dict[str, Any], items: dict[str, str],
                wrong: list[str]) -> dict[str, Any]:
    """Takes the JSON items out of the trees, and returns them."""
    values = {}
    for key in [key for key, kind in items.items() if kind == "json" and isinstance(trees.get(key), Leaf)]:
        name = trees.pop(key).name
        values[key] = work.checkpoint.objects[name]
        try:
            _objects.plain_json(values[key], repr(name))
        except (TypeError, InvalidArgument) as error:
            wrong.append(str(error))
    return values


def _save_step(path: str, trees: dict[str, Any], texts: dict[str, Any], metrics: Any, custom: Any,
               registry: Any) -> None:
    handlers: dict[str, Any] = {key: ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
                                for key in trees}
    args = {**trees, **{key: ocp.args.JsonSave(value) for key, value in texts.items()}}
    handlers.update({key: ocp.JsonCheckpointHandler() for key in texts})
    if metrics:
        handlers["metrics"] = ocp.JsonCheckpointHandler(filename="metrics")
        args["metrics"] = ocp.args.JsonSave(metrics)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler(**handlers)) as checkpointer:
        checkpointer.save(path, args=ocp.args.Composite(**args), custom_metadata=custom)


def _expanded(work: Export, tree: Any, wrong: list[str]) -> Any:
    """Returns the tree with each value inside an object as a separate leaf."""
    if isinstance(tree, Leaf):
        objects = work.checkpoint.objects
        return _value(tree.name, objects[tree.name], wrong) if tree.name in objects else tree
    if isinstance(tree, dict):
        return {key: _expanded(work, child, wrong) for key, child in tree.items()}
    return None if tree is None else [_expanded(work, child, wrong) for child in tree]


def _value(name: str, value: Any, wrong: list[str]) -> Any:
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _value(name, child, wrong) for key, child in value.items()}
    if type(value) in (list, tuple):
        return [_value(name, child, wrong) for child in value]
    is_known = value is None or type(value) in (bool, float) or (type(
        value) is int and -1 << 63 <= value < 1 << 64) or (type(value) is str and _objects.is_text(value))
    if not is_known:
        wrong.append(f"{name!r} is or holds {type(value).__module__}.{type(value).__qualname__}, "
                     "Orbax has numbers of 64 bits, bool and str")
    return None if value is None else _Value(name, value)


def _check(work: Export, tree: Any, wrong: list[str]) -> None:
    leaves = named_leaves(work, tree, "Orbax")
    if not leaves:
        raise work.refuse(InvalidArgument,
                          "Orbax writes no tree without leaves: needed is a tensor, a number or a text")
    texts = set(_texts_of(leaves, tree))
    for name, (_, own) in leaves.items():
        if name in texts:
            above = ("/".join(name.split("/")[:n]) for n in range(1, name.count("/") + 1))
            if "~" in name or any(text in texts for text in above):
                wrong.append(f"the text {own!r} has a name that Orbax takes for a JSON pointer: "
                             "it holds '~' or '/'")
            continue
        if own in work.checkpoint and 0 in work.checkpoint[own].shape:
            wrong.append(f"{own!r} has no elements, which Orbax refuses")


def _texts_of(leaves: dict[str, Any], tree: Any) -> Iterator[str]:
    for name, (path, _) in leaves.items():
        node = tree
        for key in path:
            node = node[key]
        if isinstance(node, _Value) and isinstance(node.value, str):
            yield name


def _random_keys(work: Export, wrong: list[str]) -> dict[str, jax.Array]:
    """Returns the typed PRNG keys by name. Orbax keeps their type; a checkpoint stores their data."""
    keys: dict[str, jax.Array] = {}
    tree = work.checkpoint.tree
    is_tree = isinstance(tree, dict) and tree.get("kind") == "pytree"
    for name, impl in leaves_of(tree["root"]) if is_tree else ():
        if not impl or name not in work.checkpoint:
            continue
        tensor = work.checkpoint[name]
        data = work.read(name, (0,) * tensor.ndim, tensor.shape)
        try:
            keys[name] = jax.random.wrap_key_data(jax.numpy.asarray(data), impl=impl)
        except (TypeError, ValueError) as error:
            wrong.append(f"{name!r} holds no PRNG keys of {impl!r}: {str(error).splitlines()[0]}")
        work.count(data.nbytes)
    return keys


def _filled(work: Export, tree: Any, keys: dict[str, jax.Array]) -> Any:
    """Returns the tree in the form that Orbax takes."""
    if isinstance(tree, _Value):
        return tree.value
    if isinstance(tree, Leaf):
        return keys[tree.name] if tree.name in keys else _Lazy(work.checkpoint[tree.name])
    if isinstance(tree, dict):
        return {key: _filled(work, child, keys) for key, child in tree.items()}
    return None if tree is None else [_filled(work, child, keys) for child in tree]
