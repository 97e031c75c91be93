"""Defines shardwise.torch.load, which fills modules, optimizers, DTensors and tensors of any mesh."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from .._arrays.arrays import Path as FilePath
from .._arrays.arrays import check_choice
from .._arrays.torch_tensors import TORCH, TensorReads, memory_device, shared_tensor
from .._checkpoint.edits import Cast, Join, Rename, Split, Transpose
from .._checkpoint.edits import Resize as Extents
from .._checkpoint.resize import Resize, check_extents
from .._checkpoint.tensor import Checkpoint
from .._dtypes import NUMPY
from .._foreign_names import options_of_others
from .._trees.nested import Path, build, decoded_kinds
from ..group import Group, auto
from ._target import Target

log = logging.getLogger("shardwise")


#: Options of torch.load, DCP, safetensors and others.
_OTHER_NAMES = {**dict.fromkeys(("checkpoint_id", "f", "filename", "directory", "ckpt_dir", "output_dir"),
                                "the path itself, first: load(path, state)"),
                **dict.fromkeys(("state_dict", "obj", "tensors", "model", "optimizer", "tree"),
                                'the state, after the path: load(path, {"model": model})'),
                **dict.fromkeys(("process_group", "no_dist"), "group=, or shardwise.group.single()"),
                **dict.fromkeys(("num_workers", "thread_count", "max_workers", "num_threads"), "threads="),
                **dict.fromkeys(("map_location", "device", "device_map"),
                                "load_state_dict(path, device=), or a state whose tensors say where"),
                **dict.fromkeys(("dtype", "torch_dtype"), 'cast="bf16"'),
                **dict.fromkeys(("weights_only", "pickle_module", "allow_pickle"),
                                "nothing in its place: no code of a checkpoint ever runs"),
                "mmap": "shardwise.torch.open(path), which reads only indexed elements",
                "framework": "nothing in its place: tensors are torch's",
                **dict.fromkeys(("storage_reader", "planner"),
                                "load(path, state), or StorageReader(path) for torch.distributed.checkpoint"),
                **dict.fromkeys(("ignore_mismatched_sizes", "allow_shape_mismatch"), "skip_mismatched=True"),
                **dict.fromkeys(("allow_partial_load", "partial"), "strict=False"), "keys": "names=",
                "prefix": 'names="prefix*"', "step": "CheckpointManager(root).restore(step, state)"}
_OTHERS_WITHOUT_STATE = {**_OTHER_NAMES, **dict.fromkeys(("map_location", "device_map"), "device=")}


class Loaded(dict[str, Any]):
    """The state of load() with the saved plain objects, and counts for this process: the numbers of `tensors`
    and `objects`, the `bytes` read, `missing` names (of the state, which the checkpoint lacks), `unused`
    names (stored, which the state lacks), and `skipped` names (whose shapes did not fit)."""

    tensors: int
    objects: int
    bytes: int
    missing: list[str]
    unused: list[str]
    skipped: list[str]


@options_of_others(_OTHER_NAMES)
def load(path: FilePath, state: Mapping[str, Any] | None = None, *, strict: bool = True,
         unused: str | None = None, names: str | Iterable[str] | None = None, rename: Rename | None = None,
         cast: Cast | None = None, skip_mismatched: bool = False, resize: Resize | Extents | None = None,
         transpose: Transpose | None = None, split: Split | None = None, join: Join | None = None,
         group: Group | None = None, threads: int = 0) -> Loaded:
    """Restores a checkpoint into a state, as save() takes it, on any number of processes. Without a state it
    returns the saved tree, as load_state_dict() does, and resize then gives extents.

    Tensors, DTensors and numpy arrays are filled in place; each process reads only its own parts. Modules,
    optimizers and other Stateful objects, at any depth, get their state. Parameters and buffers must match in
    shape; other values reach an object's own load_state_dict() in their stored shape. Returns a Loaded: the
    state with its plain objects replaced by the saved ones, and counts. None and an empty dict are replaced
    by everything that is stored under their names. Modules on the meta device get memory; other tensors there
    are refused.

    Raises one InvalidArgument, before it changes anything, that names every name, dtype and shape that does
    not fit, and every two tensors that share memory, unless they are tied and the stored values of all their
    names are equal. Errors of a load_state_dict(), and damage of stored bytes, may come later, while tensors
    are filled.

    names: patterns of the names to load, "model.*", as if nothing else was stored. rename: new names of
    stored tensors by patterns, {"model.module.*": "model.*"}. cast: dtypes for stored tensors, "bf16" for all
    floats, or by patterns of the stored names; there are no other casts. transpose, split and join are those
    of shardwise.open(), for the names that the state has. skip_mismatched=True leaves tensors of another
    shape as they are, and lists them in `skipped`. resize: rules for tensors that have grown or shrunk, by
    patterns of their names: "pad" fills the beginning of a larger tensor and leaves the rest as it is (zeros
    in the state of an optimizer); "slice" takes the beginning of the stored tensor. strict=False leaves
    tensors that the checkpoint lacks as they are, and warns of a value or Stateful object that has nothing in
    the checkpoint; a load that finds no name at all raises. unused: the treatment of stored names that the
    state lacks: "error" (the default if strict), "warn" or "ignore".
    """
    unused = unused or ("error" if strict else "ignore")
    check_choice("unused", unused, ("error", "warn", "ignore"))
    if state is None:
        check_extents(f"load {path}", skip_mismatched, resize)
        shapes: Any = resize
        with Checkpoint(path, threads=threads, names=names, rename=rename, cast=cast, transpose=transpose,
                        split=split, join=join, resize=shapes) as checkpoint:
            return _whole(checkpoint)
    group = auto() if group is None else group
    with Checkpoint(path, threads=threads, names=names, rename=rename, cast=cast, transpose=transpose,
                    split=split, join=join) as checkpoint:
        rules: Any = resize
        return filled(checkpoint, Target(checkpoint, state, group.rank, group.size, strict, skip_mismatched,
                                         rules), unused)


def _whole(checkpoint: Checkpoint) -> Loaded:
    """Returns the result of load() without a state."""
    loaded = Loaded(state_of(checkpoint, "cpu"))
    loaded.objects = len(checkpoint.objects)
    loaded.tensors, loaded.bytes = len(checkpoint), sum(checkpoint[name].nbytes for name in checkpoint)
    loaded.missing, loaded.unused, loaded.skipped = [], [], []
    return loaded


def filled(checkpoint: Checkpoint, target: Target, unused: str) -> Loaded:
    """Fills the target, and returns the result of load()."""
    target.check(unused)
    loaded = Loaded(target.fill())
    loaded.tensors, loaded.objects, loaded.bytes = target.tensors, target.objects, target.reads.bytes
    loaded.missing, loaded.unused, loaded.skipped = target.missing, target.unused, target.skipped
    log.info("loaded %s: %d tensors, %d objects, %.1f MiB; %d names missing, %d unused", checkpoint.path,
             loaded.tensors, loaded.objects, loaded.bytes / 2**20, len(loaded.missing), len(loaded.unused))
    return loaded


@options_of_others(_OTHERS_WITHOUT_STATE)
def load_state_dict(path: FilePath, names: str | Iterable[str] | None = None, *, device: Any = "cpu",
                    rename: Rename | None = None, cast: Cast | None = None,
                    transpose: Transpose | None = None, split: Split | None = None, join: Join | None = None,
                    resize: Extents | None = None, threads: int = 0) -> dict[str, Any]:
    """Returns the saved tree with whole tensors, and with numpy arrays where those were saved. names:
    patterns, as "model.*". rename, cast, transpose, split and join are those of load(); resize is that of
    shardwise.open(): {"*embed*": "pad:50304,-"}. Raises NotFound, NameNotFound, InvalidArgument, Corrupt."""
    device = memory_device(f"load {path}", device)
    check_extents(f"load {path}", False, resize)
    with Checkpoint(path, threads=threads, names=names, rename=rename, cast=cast, transpose=transpose,
                    split=split, join=join, resize=resize) as checkpoint:
        return state_of(checkpoint, device)


def state_of(checkpoint: Checkpoint, device: Any) -> dict[str, Any]:
    """Reads a whole checkpoint, with whole tensors."""
    of_numpy = checkpoint.document.get("numpy", {})
    leaves: dict[Path, Any] = {}
    reads = TensorReads(checkpoint._reader)
    numbers: list[int] = []  # tensors on the CPU are read by address, as there may be very many
    addresses: list[int] = []
    for name, place in checkpoint.paths.items():
        if name in checkpoint.objects:
            leaves[place] = checkpoint.objects[name]
            continue
        stored = checkpoint[name]
        if name in of_numpy:
            leaves[place] = np.empty(stored.shape, NUMPY[stored.dtype_name])
            tensor = shared_tensor(leaves[place])
        else:
            tensor = leaves[place] = torch.empty(stored.shape, dtype=TORCH[stored.dtype_name], device=device)
        if tensor.device.type == "cpu":
            numbers.append(stored.number)
            addresses.append(tensor.data_ptr())
        else:
            reads.add(stored.number, (0,) * stored.ndim, tensor, tensor.dtype)
    checkpoint._reader.read_whole(numbers, addresses)
    reads.run()
    tree: dict[str, Any] = build(leaves, decoded_kinds(checkpoint.document))
    return tree
