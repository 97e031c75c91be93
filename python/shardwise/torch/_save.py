"""Defines shardwise.torch.save, which saves a job's state without torch.distributed.checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .. import _core
from .._arrays.arrays import MEMORY, Codec, Existing, Faults, Sources, as_array, check_choice, check_codec
from .._arrays.arrays import Path as FilePath
from .._arrays.torch_tensors import Memory, address_of, dtype_name, on_host, settled, shared_tensor
from .._checkpoint.save import Caller, Plan, SaveStats, call_of, encode_objects, since
from .._errors import InvalidArgument
from .._foreign_names import options_of_others
from .._jobs.job_manager import Managed
from .._jobs.pending import PendingSave, skipped
from .._paths import local_or_bucket
from .._progress import Progress
from .._trees import objects as _objects
from .._trees.nested import encoded_kinds, encoded_path, names_of
from ..group import DEADLINE, Call, Group, auto, single
from ._layouts import Layouts, MemoryKey, memory_key
from ._staging import Staging
from ._state import PerRank, State, flat_values, is_array


#: Options of torch.save, DCP and others.
_OTHER_NAMES = {
    **dict.fromkeys(("checkpoint_id", "f", "filename", "directory", "ckpt_dir", "output_dir"),
                    "the path itself, first: save(path, state)"),
    **dict.fromkeys(("state_dict", "obj", "tensors", "model", "optimizer", "tree"),
                    'the state, after the path: save(path, {"model": model})'),
    **dict.fromkeys(("process_group", "no_dist"), "group=, or shardwise.group.single()"),
    **dict.fromkeys(("num_workers", "thread_count", "max_workers", "num_threads"), "threads="),
    **dict.fromkeys(("overwrite", "force", "exist_ok"), 'existing="replace"'),
    **dict.fromkeys(("compression", "compress"), "codec="), "metadata": "user=", "extra": "user=",
    "dtype": "cast= of a load", **dict.fromkeys(("storage_writer", "planner"), "save(path, state), "
                                                "or StorageWriter(path) for torch.distributed.checkpoint"),
    **dict.fromkeys(("pickle_module", "pickle_protocol", "safe_serialization", "use_safetensors",
                     "_use_new_zipfile_serialization"), "nothing in its place: nothing is pickled"),
    **dict.fromkeys(("async_checkpointer_type", "async_stager", "async_save", "blocking"),
                    "save() or save_async()"), "step": "CheckpointManager(root).save(step, state)",
    "max_shard_size": "shardwise.export_model(path, target, max_shard=)"}


@dataclass
class _Distributed:
    """A DTensor to save: the parts that this process writes, and its cut."""

    dtype: str
    shape: tuple[int, ...]
    parts: list[tuple[tuple[int, ...], Memory]]
    how: dict[str, Any]
    is_empty: bool  #: True if this process has no element, so it does not know whether the tensor is tied


class _Collected:
    """The part of one process in a save, before the processes compare their parts. With a staging it holds
    copies of the present values. Raises for values that cannot be stored."""

    def __init__(self, state: Mapping[str, Any], user: Any, group: Group, staging: Staging | None) -> None:
        self.group, self.staging = group, staging
        self.user = _objects.plain_copy(user, "user")
        self.sources = Sources()
        self.plain: dict[str, torch.Tensor] = {}  # tensors that should be equal on every rank
        self.distributed: dict[str, _Distributed] = {}
        self.aliases: dict[str, str] = {}
        self.numpy: dict[str, str] = {}
        self.per_rank: dict[str, int] = {}
        self.copied_bytes = 0  #: the bytes of copies of tensors
        self._first_names: dict[MemoryKey, str] = {}
        self._layouts = Layouts()
        objects: dict[str, Any] = {}
        faults = Faults()
        whole = State(state)
        self.versions = whole.versions()
        flat = whole.expanded()
        names = names_of(flat.leaves, ".")
        self._names = set(names.values())
        self.kinds = encoded_kinds(flat.kinds)
        self.paths = {name: encoded_path(path) for path, name in names.items()}
        with torch.no_grad():  # else autograd would record to_local()
            for path, leaf in flat.leaves.items():
                name = names[path]
                if isinstance(leaf, PerRank):
                    faults.trying(self._add_per_rank, name, leaf.value, objects)
                elif is_array(leaf):
                    faults.trying(self._add_array, name, leaf)
                else:
                    objects[name] = leaf
        self.objects = faults.trying(encode_objects, objects) or {}
        faults.check()
        if staging is not None:
            staging.fill()

    def _add_per_rank(self, name: str, value: Any, objects: dict[str, Any]) -> None:
        self.per_rank[name] = self.group.size
        own = PerRank.name(name, self.group.rank)
        flat = flat_values(value, (own,))
        self.kinds.update(encoded_kinds(flat.kinds))
        for path, inner in names_of(flat.leaves, ".").items():
            leaf = flat.leaves[path]
            if inner in self._names:
                raise InvalidArgument(f"found the name {inner!r} twice in the state, "
                                      f"of its own and of the PerRank value {name!r}: needed is another name")
            self._names.add(inner)
            if len(path) > 1:
                self.paths[inner] = encoded_path(path)
            if is_array(leaf):
                tensor = self._host(self._tensor(leaf, inner), inner)
                self.sources.add(inner, dtype_name(tensor, inner), list(tensor.shape),
                                 [((0,) * tensor.ndim, Memory(tensor))] if tensor.numel() else [],
                                 listed=True)
            else:
                objects[inner] = leaf

    def _add_array(self, name: str, leaf: Any) -> None:
        self._add(name, self._tensor(leaf, name))

    def _tensor(self, leaf: Any, name: str) -> torch.Tensor:
        if isinstance(leaf, torch.Tensor):
            return leaf
        self.numpy[name] = "array"
        return shared_tensor(as_array(name, leaf))

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        dtype_name(tensor, name)
        layout = self._layouts.of(tensor, name) if isinstance(tensor, DTensor) else None
        key = memory_key(tensor if layout is None else layout.local, layout)
        if key in self._first_names:
            self.aliases[name] = self._first_names[key]
            return
        if key is not None:
            self._first_names[key] = name
        if layout is None:
            self.plain[name] = self._host(tensor, name)
            return
        parts = []
        if layout.is_owner or "listed" not in layout.how:
            parts = [(s.begin, Memory(self._host(s.local, name))) for s in layout.shards
                     if s.local.numel() or not layout.shape]
        self.distributed[name] = _Distributed(dtype_name(tensor, name), layout.shape, parts, layout.how,
                                              layout.local.numel() == 0)

    def _host(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        dtype_name(tensor, name)
        host = on_host(tensor, name)
        size = host.numel() * host.element_size()
        is_copy = address_of(host) != address_of(settled(tensor))
        self.copied_bytes += size if self.staging or is_copy else 0
        # A tensor on the CPU may change in place during an asynchronous save.
        return self.staging.copy(host) if self.staging and not is_copy else host

    def describe(self, compare: bool) -> bytes:
        """Returns a description of the part for other ranks: dtype and shape of plain tensors and, if
        `compare` is true, a hash of each."""
        described = {}
        for name, tensor in self.plain.items():
            tensor = tensor.contiguous()
            size = tensor.numel() * tensor.element_size()
            described[name] = [dtype_name(tensor, name), list(tensor.shape),
                               _core.hash128(tensor.data_ptr(), size) if compare else ""]
        # Each name of a tied tensor has a description, as the tensor may not be tied on another rank.
        described.update({name: described[first]
                          for name, first in self.aliases.items() if first in described})
        return json.dumps({"plain": described, "aliases": self.aliases, "kinds": self.kinds, "untied":
                           [name for name, part in self.distributed.items() if not part.is_empty]}).encode()

    def add_agreed(self, owners: Mapping[str, int], aliases: Mapping[str, str]) -> None:
        """Adds the parts that this rank writes. Ranks divide a tensor that all of them have; the owner writes
        any other tensor. A tensor that is not tied on all ranks is stored under each of its names."""
        for name, first in self.aliases.items():
            if name not in aliases and first in self.plain:
                self.plain[name] = self.plain[first]
            elif name not in aliases:
                self.distributed[name] = self.distributed[first]
        for name, part in self.distributed.items():
            if name not in aliases:
                self.sources.add(name, part.dtype, part.shape, part.parts, **part.how)
        for name, tensor in self.plain.items():
            owner = owners.get(name)
            how: dict[str, Any] = {} if owner is None else {"listed": True}
            mine = owner in (None, self.group.rank)
            parts = [((0,) * tensor.ndim,
                      Memory(tensor))] if mine and (tensor.numel() or not tensor.ndim) else []
            self.sources.add(name, dtype_name(tensor, name), list(tensor.shape), parts, **how)


def _agree_on(values: list[bytes]) -> bytes:
    """Returns, on rank 0, the tied names, and the owner of each plain tensor that not all ranks have: the
    first rank that has it. Raises InvalidArgument if replicas or kinds of containers differ."""
    said = [json.loads(value) for value in values]
    ranks: dict[str, list[int]] = {}
    first: dict[str, Any] = {}
    kinds: dict[str, tuple[int, Any]] = {}
    wrong = []
    for rank, of_rank in enumerate(said):
        for name, described in of_rank["plain"].items():
            ranks.setdefault(name, []).append(rank)
            known = first.setdefault(name, described)
            if known[:2] != described[:2]:
                wrong.append(f"tensor {name!r} is {described[0]} {described[1]} on rank {rank} and "
                             f"{known[0]} {known[1]} on rank {ranks[name][0]}")
            elif known != described:
                wrong.append(f"tensor {name!r} of rank {rank} is not that of rank {ranks[name][0]}")
        for path, kind in of_rank["kinds"].items():
            known, expected = kinds.setdefault(path, (rank, kind))
            if kind != expected:
                wrong.append(f"the container at {path} is {kind} on rank {rank} and {expected} on rank "
                             f"{known}")
    if wrong:
        trust = (', and replicas="trust" does not compare tensors'
                 if any("is not that of rank" in fault for fault in wrong) else "")
        raise InvalidArgument(f"{'; '.join(wrong[:10])}: "
                              f"give a value that each rank has of its own as PerRank(value){trust}")
    owners = {name: of[0] for name, of in ranks.items() if len(of) < len(values)}
    return json.dumps({"owners": owners, "aliases": _agreed_aliases(said)}).encode()


def _agreed_aliases(said: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the aliases that are equal on all ranks that have the name."""
    agreed: dict[str, str | None] = {}
    for of_rank in said:
        for name, first in of_rank["aliases"].items():
            if agreed.setdefault(name, first) != first:
                agreed[name] = None
    for of_rank in said:
        for name in (*of_rank["plain"], *of_rank["untied"]):
            if name not in of_rank["aliases"] and name in agreed:
                agreed[name] = None
    return {name: first for name, first in agreed.items() if first is not None}


def _finish(call: Call, path: str, collected: _Collected, options: dict[str, Any], replicas: str,
            progress: Progress, managed: Managed, waited: float | None = None) -> SaveStats:
    """Agrees with the other ranks, and writes. waited: seconds that the caller waited; None if it waits for
    this, too."""
    group: Group = collected.group
    agreed = json.loads(call.agree(lambda: collected.describe(replicas == "check" and group.size > 1),
                                   _agree_on))
    collected.add_agreed(agreed["owners"], agreed["aliases"])
    extra: dict[str, Any] = {"paths": collected.paths, "containers": collected.kinds}
    for key, value in (("per_rank", collected.per_rank), ("numpy", collected.numpy),
                       ("versions", collected.versions), ("metrics", managed.metrics)):
        if value:
            extra[key] = value
    plan = Plan(collected.sources, collected.objects, agreed["aliases"], extra=extra)
    caller = Caller(managed.begun, waited, collected.copied_bytes)
    return managed.write(call, path, plan, group, list(range(group.size + 1)), user=collected.user,
                         progress=progress, caller=caller, **options)


def _check(options: dict[str, Any], replicas: str) -> None:
    check_choice("existing", options["existing"], ("fail", "replace", "skip"))
    check_codec(options["codec"])
    check_choice("replicas", replicas, ("check", "trust"))


def _call(group: Group, path: str, user: Any, options: dict[str, Any], deadline: float, replicas: str,
          managed: Managed) -> Call:
    return call_of(group, path, user=user, codec=options["codec"], existing=options["existing"],
                   deadline=deadline, replicas=replicas, **managed.same)


@options_of_others(_OTHER_NAMES)
def save(path: FilePath, state: Mapping[str, Any], *, user: Any = None, codec: Codec = "zstd",
         existing: Existing = "fail", replicas: str = "check", group: Group | None = None, threads: int = 0,
         memory: int = MEMORY, deadline: float = DEADLINE, progress: Progress = None,
         unchanged_since: FilePath | None = None) -> SaveStats:
    """Saves the state of a job as the checkpoint `path`. Every process calls it.

    state: by name, modules, optimizers, objects with state_dict() and load_state_dict(), DTensors of any
    placements but partial ones, tensors, numpy arrays, PerRank values, and plain objects; dicts, lists and
    tuples of these, at any depth. Values of modules have the names that they have without
    DistributedDataParallel and torch.compile. State of optimizers has the names of the parameters in the
    modules of `state`, else numbers. A tensor that all ranks have is stored once, and so are tensors that are
    tied on all ranks. replicas="check": plain tensors and objects of one name must be equal on all ranks that
    have it; the error names rank and tensor. "trust": tensors are not compared.

    The processes agree over torch.distributed's store, without collectives, so other work may go on at the
    same time. Path, user, codec, existing and replicas must be equal on all ranks, and so must the order of
    saves. A failure on one rank raises on all, and nothing is committed. deadline: seconds that a rank waits
    for the others. progress: reports the bytes that this rank writes. unchanged_since: a checkpoint whose
    unchanged chunks are linked, as in shardwise.save(); that of rank 0 counts.
    """
    options = {"codec": codec, "existing": existing, "threads": threads, "memory": memory,
               "find_earlier": since(unchanged_since)}
    return save_managed(local_or_bucket(path, "save"), state, user, options, replicas,
                        auto() if group is None else group, deadline, progress, Managed())


def save_managed(path: str, state: Mapping[str, Any], user: Any, options: dict[str, Any], replicas: str,
                 group: Group, deadline: float, progress: Progress, managed: Managed) -> SaveStats:
    with _call(group, path, user, options, deadline, replicas, managed) as call:
        _check(options, replicas)
        return _finish(call, path, _Collected(state, user, group, None), options, replicas, progress, managed)


@options_of_others(_OTHER_NAMES)
def save_async(path: FilePath, state: Mapping[str, Any], *, user: Any = None, codec: Codec = "zstd",
               existing: Existing = "fail",
               replicas: str = "check", group: Group | None = None, threads: int = 0, memory: int = MEMORY,
               deadline: float = DEADLINE, keep_copy: bool = True) -> PendingSave:
    """Saves as save() does, but returns when the values are copied to host memory: tensors and objects may
    change while the save goes on. result() of the returned object waits for the commit, and raises the error
    of the save; a value that cannot be stored raises at once.

    keep_copy: True keeps the memory of the copies of CPU tensors for the next call. With a state of the same
    sizes that call takes only the time of the copy; new memory takes several times as long. False frees the
    memory at the end of the save.
    """
    options = {"codec": codec, "existing": existing, "threads": threads, "memory": memory}
    return save_async_managed(local_or_bucket(path, "save"), state, user, options, replicas,
                              auto() if group is None else group, deadline, keep_copy, Managed())


def save_async_managed(path: str, state: Mapping[str, Any], user: Any, options: dict[str, Any], replicas: str,
                       group: Group, deadline: float, keep_copy: bool, managed: Managed,
                       turn: _core.Turn | None = None) -> PendingSave:
    call = _call(group, path, user, options, deadline, replicas, managed)
    staging = Staging()
    collected: _Collected | None = None
    failed: BaseException | None = None

    def run(progress: Progress) -> SaveStats:
        try:
            with call:
                if turn is not None and not turn.begins(call):
                    return skipped()
                if collected is None:
                    assert failed is not None
                    raise failed
                staging.drop_unused()
                return _finish(call, path, collected, options, replicas, progress, managed, waited)
        finally:
            staging.release(keep_copy)

    try:
        try:
            _check(options, replicas)
            collected = _Collected(state, user, group, staging)
        except Exception as error:
            if group.size == 1:
                raise
            failed = error
        waited = time.monotonic() - managed.begun
        pending = PendingSave(None, run, f"save {path}")
        managed.started(pending)
    except BaseException as error:
        call.end(error)
        staging.release(keep_copy)
        raise
    if failed is not None:
        raise failed  # the thread tells the other ranks
    return pending


def prepare_async(state: Mapping[str, Any]) -> None:
    """Allocates the memory for the copies of this state, so that the first save_async() is as fast as later
    ones."""
    from torch.distributed.checkpoint.state_dict import _init_optim_state

    staging = Staging()
    fresh = [value for value in State(state).stateful.values() if isinstance(value, torch.optim.Optimizer)
             and not value.state]
    try:
        for optimizer in fresh:
            _init_optim_state(optimizer)  # as a step without gradients would
        _Collected(state, None, single(), staging)
        staging.drop_unused()
    finally:
        staging.release(True)
        for optimizer in fresh:
            optimizer.state.clear()  # training begins without state
