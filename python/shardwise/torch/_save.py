"""shardwise.torch.save: a job's state, without torch.distributed.checkpoint."""

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


#: What torch.save, DCP and others call it.
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
    """A DTensor to be saved: the parts that this process writes, and its cut."""

    dtype: str
    shape: tuple[int, ...]
    parts: list[tuple[tuple[int, ...], Memory]]
    how: dict[str, Any]
    is_empty: bool  #: this process has no element, so that nothing says whether it is tied here


class _Collected:
    """One process's part of a save, before the processes have compared theirs: values of this moment, if
    copied by a staging. Raises for values that cannot be stored."""

    def __init__(self, state: Mapping[str, Any], user: Any, group: Group, staging: Staging | None) -> None:
        self.group, self.staging = group, staging
        self.user = _objects.plain_copy(user, "user")
        self.sources = Sources()
        self.plain: dict[str, torch.Tensor] = {}  # that every rank should have alike
        self.distributed: dict[str, _Distributed] = {}
        self.aliases: dict[str, str] = {}
        self.numpy: dict[str, str] = {}
        self.per_rank: dict[str, int] = {}
        self.copied_bytes = 0  #: of copies of them
        self._seen: dict[MemoryKey, str] = {}
        self._layouts = Layouts()
        objects: dict[str, Any] = {}
        faults = Faults()
        whole = State(state)
        self.versions = whole.versions()
        flat = whole.given()
        names = names_of(flat.leaves, ".")
        self._names = set(names.values())
        self.kinds = encoded_kinds(flat.kinds)
        self.paths = {name: encoded_path(path) for path, name in names.items()}
        with torch.no_grad():  # to_local() is then no step of autograd
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
        if key in self._seen:
            self.aliases[name] = self._seen[key]
            return
        if key is not None:
            self._seen[key] = name
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
        # On the CPU a tensor changes in place while an asynchronous save goes on.
        return self.staging.copy(host) if self.staging and not is_copy else host

    def describe(self, compare: bool) -> bytes:
        """Describes the part for other ranks: dtype, shape and, if replicas are compared, a hash of plain
        tensors."""
        described = {}
        for name, tensor in self.plain.items():
            tensor = tensor.contiguous()
            size = tensor.numel() * tensor.element_size()
            described[name] = [dtype_name(tensor, name), list(tensor.shape),
                               _core.hash128(tensor.data_ptr(), size) if compare else ""]
        # A tied tensor is described as the one that it is tied to, as another rank may have it apart.
        described.update({name: described[first]
                          for name, first in self.aliases.items() if first in described})
        return json.dumps({"plain": described, "aliases": self.aliases, "kinds": self.kinds, "untied":
                           [name for name, found in self.distributed.items() if not found.is_empty]}).encode()

    def add_agreed(self, owners: Mapping[str, int], aliases: Mapping[str, str]) -> None:
        """Adds the parts that this rank writes. A tensor that all ranks have is divided among them; else its
        owner writes it. A tensor that is not tied on all ranks alike is stored by each of its names."""
        for name, first in self.aliases.items():
            if name not in aliases and first in self.plain:
                self.plain[name] = self.plain[first]
            elif name not in aliases:
                self.distributed[name] = self.distributed[first]
        for name, found in self.distributed.items():
            if name not in aliases:
                self.sources.add(name, found.dtype, found.shape, found.parts, **found.how)
        for name, tensor in self.plain.items():
            owner = owners.get(name)
            how: dict[str, Any] = {} if owner is None else {"listed": True}
            mine = owner in (None, self.group.rank)
            parts = [((0,) * tensor.ndim,
                      Memory(tensor))] if mine and (tensor.numel() or not tensor.ndim) else []
            self.sources.add(name, dtype_name(tensor, name), list(tensor.shape), parts, **how)


def _agree_on(values: list[bytes]) -> bytes:
    """Returns, on rank 0, the owners of plain tensors that not all ranks have (the first that has it), and
    the tied names. Raises InvalidArgument if replicas or kinds of containers differ."""
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
                 if any("is not that of rank" in one for one in wrong) else "")
        raise InvalidArgument(f"{'; '.join(wrong[:10])}: "
                              f"give a value that each rank has of its own as PerRank(value){trust}")
    owners = {name: of[0] for name, of in ranks.items() if len(of) < len(values)}
    return json.dumps({"owners": owners, "aliases": _agreed_aliases(said)}).encode()


def _agreed_aliases(said: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the aliases that are the same on all ranks that have the name."""
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
    """waited: how long the caller was kept; None: he waits for this, too."""
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
    tuples of them, at any depth. Modules are stored by the names that they have without
    DistributedDataParallel and torch.compile, optimizers by the names of their parameters in the state's
    modules, else by numbers. A tensor that all ranks have is stored once, and so are tensors that are tied on
    all ranks. replicas="check": plain tensors and objects of one name must be equal on all ranks that have
    it, else the error names rank and tensor; "trust": tensors are not compared.

    The processes agree over torch.distributed's store, with no collective: whatever else is under way does
    not matter. Path, user, codec, existing and replicas must be the same on all ranks, and saves come in the
    same order. What fails on one rank is raised on all, and nothing is committed. deadline: seconds that one
    waits for the others. progress: of what this rank writes. unchanged_since: a checkpoint whose chunks that
    have not changed are linked (rank 0's counts), as in shardwise.save().
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
    """As save(), but returns when the values are copied to host memory: tensors and objects may change while
    the save goes on. Its result() waits for the commit and raises what went wrong; what cannot be stored is
    raised at once.

    keep_copy: the memory of the copies of CPU tensors, as large as they are, stays for the next call. With a
    state of the same sizes, that call takes as long as the copy alone: new memory takes several times as
    long. False: it is freed when the save has ended.
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
        raise failed  # the other ranks hear of it on the thread
    return pending


def prepare_async(state: Mapping[str, Any]) -> None:
    """Makes the first save_async() of this state as fast as the later ones, by having the memory for its
    copies now."""
    from torch.distributed.checkpoint.state_dict import _init_optim_state

    staging = Staging()
    fresh = [value for value in State(state).stateful.values() if isinstance(value, torch.optim.Optimizer)
             and not value.state]
    try:
        for optimizer in fresh:
            _init_optim_state(optimizer)  # as a step of no gradients would
        _Collected(state, None, single(), staging)
        staging.drop_unused()
    finally:
        staging.release(True)
        for optimizer in fresh:
            optimizer.state.clear()  # training begins without it
