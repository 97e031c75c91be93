"""Lets the processes of a job agree on a save by a few short messages with deadlines, over any of several
stores.

An operation of all ranks together is a *call*. Rank 0 announces each call: its name, and all values that must
be equal on every rank. Other ranks read the announcements in order and compare. A rank that is at another
call, or that calls with another path or option, is therefore noticed at once and ends the call on all ranks.
A call that one rank left out does not shift later ones, because ranks skip the announcement of a call that
has ended.

Messages are values in a key-value store (torch's, JAX's, MPI's messages, a folder), not collectives, so any
thread can send them during training. A group never takes values that another job has left in the store. This
module is the Python interface of the C++ library's `runtime/process/call_group.h`.
"""

from __future__ import annotations

import json
import os
import weakref
from types import TracebackType
from typing import Any, Callable, Mapping

from . import _core
from ._argument_types import check_calls
from ._interpreter import imported
from ._stores import FileStore as FileStore
from ._stores import JaxStore as JaxStore
from ._stores import MpiStore as MpiStore
from ._stores import Store as Store
from ._stores import TorchStore as TorchStore
from ._stores import store_of_torch
from ._trees.containers import public_name

DEADLINE = 600.0
"""Seconds that a step of a save waits for the other processes, by default."""

_Work = Callable[[], bytes]
_Merge = Callable[[list[bytes]], bytes]


class Call:
    """An operation of all ranks of a group, in one step or several. Group.call() makes it; one thread at a
    time may use it. It is a context manager: an error that ends its body on one rank ends the call on all."""

    def __init__(self, store: Store | None = None, call: _core.Call | None = None, rank: int = 0,
                 size: int = 1) -> None:
        self._store, self._call = store, call  # keeps the store as long as the call
        self.rank, self.size = rank, size

    def agree(self, work: _Work, merge: _Merge) -> bytes:
        """Runs one step: work() on every rank, and then merge(all their bytes) on rank 0. Returns merge's
        bytes on every rank, or raises on every rank. If one rank failed, that rank raises the error of its
        work or merge unchanged; the others raise an error with the same text, of the same class if it is one
        of Shardwise's, else GroupError. If several failed or did not come, all raise the same error: a
        GroupError, unless all errors have the same class of Shardwise's. A rank that was interrupted (Ctrl-C)
        raises KeyboardInterrupt."""
        return merge([work()]) if self._call is None else self._call.agree(work, merge)

    def __enter__(self) -> Call:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        self.end(error)

    def end(self, error: BaseException | None) -> None:
        """Ends the call on this rank: no step follows. An error ends it on all."""
        if self._call is not None:
            self._call.end(error)


class Group:
    """The processes of a job; this base class stands for one process alone.

    Every rank makes the same calls in the same order on one thread. duplicate() returns a group for another
    thread.
    """

    rank: int = 0
    size: int = 1

    def __repr__(self) -> str:
        return f"<{public_name(type(self))}: rank {self.rank} of {self.size}>"

    def call(self, what: str, deadline: float = DEADLINE, same: Mapping[str, Any] | None = None) -> Call:
        """Begins a call of all ranks, without a wait: this fixes its place in the order of calls. Its steps
        may run on another thread.

        what: the name of the call in messages, as "save /run/step-5". same: JSON values that must be equal on
        all ranks; if they differ, the call fails on all ranks with an error that names rank and values.
        deadline: seconds that a step waits for other ranks. Raises GroupError if the store is gone.
        """
        return Call()

    def agree(self, work: _Work, merge: _Merge, deadline: float, what: str,
              same: Mapping[str, Any] | None = None) -> bytes:
        """Runs a call of one step."""
        with self.call(what, deadline, same) as call:
            return call.agree(work, merge)

    def barrier(self, deadline: float, what: str) -> None:
        """Returns when every rank has called it. Raises GroupError if one does not before the deadline."""
        self.agree(lambda: b"", lambda values: b"", deadline, what)

    def duplicate(self) -> Group:
        """Returns a group of the same processes with a separate order of calls. Every rank must make its
        duplicates in the same order."""
        return self


class StoreGroup(Group):
    """A group over a store. Its name keeps its keys apart from those of other groups. It does not read values
    of an earlier job."""

    def __init__(self, store: Store, rank: int, size: int, name: str = "main") -> None:
        self.rank, self.size = rank, size
        self._store, self._calls = store, _core.CallGroup(store, rank, size, name)

    def duplicate(self) -> StoreGroup:
        group = StoreGroup.__new__(StoreGroup)
        group.__dict__.update(self.__dict__, _calls=self._calls.duplicate())
        return group

    def call(self, what: str, deadline: float = DEADLINE, same: Mapping[str, Any] | None = None) -> Call:
        # Messages show the same texts that ranks compare.
        facts = [(name, repr(value) if isinstance(value, str)
                  else json.dumps(value, sort_keys=True, default=repr))
                 for name, value in (same or {}).items()]
        return Call(self._store, self._calls.call(what, facts, deadline), self.rank, self.size)


def single() -> Group:
    """Returns the group of this process alone."""
    return Group()


_groups: dict[str, tuple[Callable[[], Any], StoreGroup]] = {}


def _cached(name: str, origin: Callable[[], Any], make: Callable[[], StoreGroup]) -> StoreGroup:
    """Returns the last group of a framework, or a new one if `origin` returns another object now."""
    before, group = _groups.get(name, (lambda: None, None))
    if group is None or before() is not origin():
        group = make()
        _groups[name] = origin, group
    return group


def from_torch() -> Group:
    """Returns the group of all processes of torch.distributed, over the store of its default group. Returns
    the same object until torch.distributed is initialised again."""
    import torch.distributed as dist

    store = store_of_torch()
    if dist.get_world_size() == 1:
        return single()
    # A strong reference to the store would keep its port open.
    return _cached("torch", weakref.ref(store),
                   lambda: StoreGroup(TorchStore(store), dist.get_rank(), dist.get_world_size(), "torch"))


def from_jax() -> Group:
    """Returns the group of all processes of jax.distributed, over its coordination service. Returns the same
    object until jax.distributed is initialised again."""
    import jax
    from jax._src import distributed

    if jax.process_count() == 1:
        return single()
    client = distributed.global_state.client
    return _cached("jax", lambda: client,
                   lambda: StoreGroup(JaxStore(client), jax.process_index(), jax.process_count(), "jax"))


def from_mpi(comm: Any) -> Group:
    """Returns the group of the processes of an mpi4py communicator, which send point-to-point messages."""
    return StoreGroup(MpiStore(comm), comm.rank, comm.size) if comm.size > 1 else single()


def from_files(folder: str | os.PathLike[str], rank: int, size: int, name: str = "files") -> Group:
    """Returns a group of plain processes that see one folder, which may hold files of earlier jobs."""
    return StoreGroup(FileStore(folder), rank, size, name) if size > 1 else single()


def auto() -> Group:
    """Returns the group of torch's processes, or else JAX's, if one of them is initialised; else the group of
    this process alone."""

    torch = imported("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return from_torch()
    jax = imported("jax")
    if jax is not None:
        from jax._src import distributed

        if distributed.global_state.client is not None:
            return from_jax()
    return single()

check_calls(__name__)
