"""shardwise.torch.save: a job's state, without torch.distributed.checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .. import _core, _objects
from .._manager import PendingSave
from .._paths import local
from .._progress import Progress
from .._save import Plan, SaveStats, call_of, encode_objects, write_together
from .._sources import MEMORY, Sources, check_choice
from .._sources import Path as FilePath
from ..group import DEADLINE, Call, Group, auto, single
from ._staging import Staging
from ._state import Layout, Layouts, PerRank, named_leaves
from ._tensors import Memory, dtype_name, on_host

Key = tuple[Any, ...]


class _Collected:
    """What one process gives to a save, before the processes have compared it: values of this moment, if copied by a
    staging. Raises what cannot be stored."""

    def __init__(self, state: Mapping[str, Any], user: Any, group: Group, staging: Staging | None) -> None:
        self.group, self.staging = group, staging
        self.user = _objects.plain_copy(user, "user")
        self.sources = Sources()
        self.plain: dict[str, torch.Tensor] = {}  # that every rank should have alike
        self.aliases: dict[str, str] = {}
        self.paths: dict[str, Any] = {}
        self.per_rank: dict[str, int] = {}
        self._seen: dict[Key, str] = {}
        self._layouts = Layouts()
        objects: dict[str, Any] = {}
        leaves = named_leaves(state)
        with torch.no_grad():  # to_local() is then no step of autograd
            for name, (path, leaf) in leaves.items():
                self.paths[name] = _objects.encode(list(path))
                if isinstance(leaf, PerRank):
                    self._add_per_rank(name, leaf.value, objects)
                elif isinstance(leaf, torch.Tensor):
                    self._add(name, leaf)
                else:
                    objects[name] = leaf
        self.objects = encode_objects(objects)
        if staging is not None:
            staging.fill()

    def _add_per_rank(self, name: str, value: Any, objects: dict[str, Any]) -> None:
        self.per_rank[name] = self.group.size
        own = PerRank.name(name, self.group.rank)
        if isinstance(value, torch.Tensor):
            tensor = self._host(value, own)
            self.sources.add(own, dtype_name(tensor, own), list(tensor.shape),
                             [((0,) * tensor.ndim, Memory(tensor))] if tensor.numel() else [], listed=True)
        else:
            objects[own] = value

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        layout = self._layouts.of(tensor, name) if isinstance(tensor, DTensor) else None
        key = _memory_key(tensor if layout is None else layout.local, layout)
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
        self.sources.add(name, dtype_name(tensor, name), layout.shape, parts, **layout.how)

    def _host(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        dtype_name(tensor, name)
        host = on_host(tensor, name)
        # On the CPU a tensor changes in place while an asynchronous save goes on.
        return self.staging.copy(host) if self.staging and host.data_ptr() == tensor.data_ptr() else host

    def describe_plain(self, compare: bool) -> bytes:
        """Of plain tensors: dtype, shape and, where replicas are compared, a hash."""
        described = {}
        for name, tensor in self.plain.items():
            tensor = tensor.contiguous()
            size = tensor.numel() * tensor.element_size()
            described[name] = [dtype_name(tensor, name), list(tensor.shape),
                               _core.hash128(tensor.data_ptr(), size) if compare else ""]
        return json.dumps(described).encode()

    def add_plain(self, owners: Mapping[str, int]) -> None:
        """A tensor that all ranks have is divided among them; else its owner writes it."""
        for name, tensor in self.plain.items():
            owner = owners.get(name)
            how: dict[str, Any] = {} if owner is None else {"listed": True}
            mine = owner in (None, self.group.rank)
            parts = [((0,) * tensor.ndim, Memory(tensor))] if mine and (tensor.numel() or not tensor.ndim) else []
            self.sources.add(name, dtype_name(tensor, name), list(tensor.shape), parts, **how)


def _memory_key(local: torch.Tensor, layout: Layout | None) -> Key | None:
    """Equal for tensors that are the same elements of the same memory: tied ones, which are stored once."""
    if local.numel() == 0 or local.layout != torch.strided or local.is_meta:
        return None
    cut = None if layout is None else id(layout.how)  # one for all that are cut alike
    return local.device, local.data_ptr(), local.dtype, local.shape, local.stride(), local.is_conj(), local.is_neg(), cut


def _owners(values: list[bytes]) -> bytes:
    """Of plain tensors that not all ranks have: the first that has. Raises ValueError where replicas differ."""
    ranks: dict[str, list[int]] = {}
    first: dict[str, Any] = {}
    wrong = []
    for rank, value in enumerate(values):
        for name, described in json.loads(value).items():
            ranks.setdefault(name, []).append(rank)
            if first.setdefault(name, described) != described:
                wrong.append(f"tensor {name!r} of rank {rank} is not that of rank {ranks[name][0]}")
    if wrong:
        raise ValueError(f"{'; '.join(wrong[:10])}: give a value that each rank has of its own as PerRank(value)")
    return json.dumps({name: of[0] for name, of in ranks.items() if len(of) < len(values)}).encode()


def _finish(call: Call, path: str, collected: _Collected, options: dict[str, Any], replicas: str,
            progress: Progress) -> SaveStats:
    group: Group = collected.group
    owners = json.loads(call.agree(lambda: collected.describe_plain(replicas == "check" and group.size > 1), _owners))
    collected.add_plain(owners)
    extra: dict[str, Any] = {"paths": collected.paths}
    if collected.per_rank:
        extra["per_rank"] = collected.per_rank
    plan = Plan(collected.sources, collected.objects, collected.aliases, extra=extra)
    return write_together(call, path, plan, group, list(range(group.size + 1)), user=collected.user, progress=progress,
                          **options)


def _options(codec: str, existing: str, threads: int, memory: int, replicas: str) -> dict[str, Any]:
    check_choice("existing", existing, ("fail", "replace"))
    check_choice("replicas", replicas, ("check", "trust"))
    return {"codec": codec, "existing": existing, "threads": threads, "memory": memory}


def _call(group: Group, path: str, user: Any, options: dict[str, Any], deadline: float, replicas: str) -> Call:
    return call_of(group, path, user=user, codec=options["codec"], existing=options["existing"], deadline=deadline,
                   replicas=replicas)


def save(path: FilePath, state: Mapping[str, Any], *, user: Any = None, codec: str = "zstd", existing: str = "fail",
         replicas: str = "check", group: Group | None = None, threads: int = 0, memory: int = MEMORY,
         deadline: float = DEADLINE, progress: Progress = None) -> SaveStats:
    """Saves the state of a job as the checkpoint `path`. Every process calls it.

    state: by name, modules, optimizers, objects with state_dict() and load_state_dict(), DTensors of any placements but
    partial ones, tensors, PerRank values, and plain objects; dicts and lists of them. A tensor that all ranks have is
    stored once, and so are tied tensors. replicas="check": plain tensors and objects of one name must be equal on all
    ranks that have it, else the error names rank and tensor; "trust": tensors are not compared.

    The processes agree over torch.distributed's store, with no collective: whatever else is under way does not matter.
    Path, user, codec, existing and replicas must be the same on all ranks, and saves come in the same order. What fails
    on one rank is raised on all, and nothing is committed. deadline: seconds that one waits for the others. progress: of
    what this rank writes.
    """
    options = _options(codec, existing, threads, memory, replicas)
    path = local(path, "save")
    group = auto() if group is None else group
    collected, error = _collect(state, user, group, None)
    return _agreed(_call(group, path, user, options, deadline, replicas), path, collected, error, options, replicas, progress)


def save_async(path: FilePath, state: Mapping[str, Any], *, user: Any = None, codec: str = "zstd", existing: str = "fail",
               replicas: str = "check", group: Group | None = None, threads: int = 0, memory: int = MEMORY,
               deadline: float = DEADLINE, keep_copy: bool = True) -> PendingSave:
    """As save(), but returns when the values are copied to host memory: tensors and objects may change while the save
    goes on. Its result() waits for the commit and raises what went wrong; what cannot be stored is raised at once.

    keep_copy: the memory of the copies of CPU tensors, as large as they are, stays for the next call. With a state of the
    same sizes, that call takes as long as the copy alone: new memory takes several times as long. False: it is freed when
    the save has ended.
    """
    options = _options(codec, existing, threads, memory, replicas)
    path = local(path, "save")
    group = auto() if group is None else group
    staging = Staging()
    try:
        collected, error = _collect(state, user, group, staging)
        call = _call(group, path, user, options, deadline, replicas)
    except BaseException:
        staging.release(keep_copy)
        raise

    def run(progress: Progress) -> SaveStats:
        try:
            if collected is not None:
                staging.drop_unused()
            return _agreed(call, path, collected, error, options, replicas, progress)
        finally:
            staging.release(keep_copy)

    pending = PendingSave(None, run, f"save {path}")
    if error is not None:
        raise error  # the other ranks hear of it on the thread
    return pending


def prepare_async(state: Mapping[str, Any]) -> None:
    """Makes the first save_async() of this state as fast as the later ones, by having the memory for its copies now."""
    staging = Staging()
    fresh = [value for value in state.values() if isinstance(value, torch.optim.Optimizer) and not value.state]
    try:
        _Collected(state, None, single(), staging)
        staging.drop_unused()
    finally:
        staging.release(True)
        for optimizer in fresh:
            optimizer.state.clear()  # which torch has made, as a step of no gradients would: training begins without it


def _collect(state: Mapping[str, Any], user: Any, group: Group,
             staging: Staging | None) -> tuple[_Collected | None, BaseException | None]:
    try:
        return _Collected(state, user, group, staging), None
    except Exception as error:
        if group.size == 1:
            raise
        return None, error  # the others wait: they are told by _agreed()


def _agreed(call: Call, path: str, collected: _Collected | None, error: BaseException | None, options: dict[str, Any],
            replicas: str, progress: Progress) -> SaveStats:
    with call:
        if collected is None:
            assert error is not None
            raise error
        return _finish(call, path, collected, options, replicas, progress)
