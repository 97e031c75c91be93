"""Defines save() and save_async() of pytrees."""

from __future__ import annotations

import functools
import json
import time
from dataclasses import dataclass
from typing import Any, Callable

from .. import _core
from .._arrays.arrays import MEMORY, Codec, Existing, check_choice, check_codec
from .._checkpoint.save import Caller, SaveStats, call_of
from .._jobs.job_manager import Managed
from .._jobs.pending import PendingSave, skipped
from .._paths import Path, local_or_bucket
from .._progress import Progress
from .._trees import objects as _objects
from ..group import DEADLINE, Call, Group, from_jax
from . import _devices
from ._snapshot import Snapshot, common, snapshot

Write = Callable[[Progress], SaveStats]


def save(path: Path, tree: Any, *, user: Any = None, codec: Codec = "zstd",
         existing: Existing = "fail", threads: int = 0,
         memory: int = MEMORY, progress: Progress = None, deadline: float = DEADLINE) -> SaveStats:
    """Saves a pytree as the checkpoint `path`, a directory of any name. All processes of the job call it
    together.

    Leaves may be JAX's arrays of any sharding, typed PRNG keys, numpy's arrays and scalars, and None, bool,
    int, float, complex, str, bytes; loaders and other objects with state_dict() and load_state_dict() are
    saved by their state. Values that each process has for itself (numpy arrays, objects, arrays on local
    devices) must be equal on all processes, and so must path, user, codec, existing, and the order of saves.
    Nothing is at `path` until every byte is on the disk. Options are those of shardwise.save(). deadline:
    seconds that a process waits for the others. progress: reports the bytes that this process writes.

    Raises InvalidArgument for two leaves of one name and for values that differ between processes, WrongType
    and Unsupported with the names of all leaves that cannot be stored, AlreadyExists, IOFailed, GroupError. A
    failure on one process raises on all.
    """
    return prepare(path, tree, from_jax(), copy=False, user=user, codec=codec, existing=existing,
                   threads=threads, memory=memory, deadline=deadline).write(progress)


def save_async(path: Path, tree: Any, *, user: Any = None, codec: Codec = "zstd", existing: Existing = "fail",
               threads: int = 0, memory: int = MEMORY, deadline: float = DEADLINE) -> PendingSave:
    """Saves as save() does, but returns when the save holds the values: JAX's arrays may then be donated, and
    numpy's changed. result() of the returned object waits for the commit, and raises the error of the
    save."""
    prepared = prepare(path, tree, from_jax(), copy=True, user=user, codec=codec, existing=existing,
                       threads=threads, memory=memory, deadline=deadline)
    pending = prepared.start(None, prepared.write, f"save {path}")
    if prepared.failed is not None:
        raise prepared.failed  # the thread tells the other processes
    return pending


@dataclass
class Prepared:
    """A save that holds its values. Call `write` once."""

    call: Call
    write: Write
    failed: BaseException | None  #: the error of this process, which `write` raises on all

    def start(self, step: int | None, run: Callable[[Progress], SaveStats | None],
              what: str = "") -> PendingSave:
        """Calls run(), which calls write(), on a thread. If the thread cannot start, the other processes get
        the error."""
        try:
            return PendingSave(step, run, what)
        except BaseException as error:
            self.call.end(error)
            raise


def prepare(path: Path, tree: Any, group: Group, *, copy: bool, user: Any = None, deadline: float = DEADLINE,
            existing: Existing = "fail", turn: _core.Turn | None = None, managed: Managed | None = None,
            is_even: bool = False, **options: Any) -> Prepared:
    """Returns the save of a tree. Only the save holds the values, so they are freed at its end. turn: decides
    when the save begins, if at all. copy: the values are copied, and the caller does not wait for `write`.
    is_even: all processes stand for equally many devices."""
    managed = Managed() if managed is None else managed
    snapshots: list[Snapshot] = []
    failed: BaseException | None = None
    path = local_or_bucket(path, "save")
    call = call_of(group, path, user=user, codec=options["codec"], existing=existing, deadline=deadline,
                   **managed.same)
    try:
        check_choice("existing", existing, ("fail", "replace", "skip"))
        check_codec(options["codec"])
        user = _objects.plain_copy(user, "user")
        snapshots.append(snapshot(tree, copy=copy))
    except Exception as error:
        if group.size == 1:
            raise
        failed = error
    except BaseException as error:
        call.end(error)
        raise

    def described() -> bytes:
        if failed is not None:
            raise failed
        return snapshots[0].describe()

    def write(progress: Progress) -> SaveStats:
        same: list[str] = []
        starts: tuple[int, ...] = ()
        mesh_of: Callable[[str], str] = str
        with call:
            if turn is not None and not turn.begins(call):
                snapshots.clear()
                return skipped()
            if group.size > 1:
                same = json.loads(call.agree(described, common))
                numbering = _devices.Numbering.of_job()
                if is_even:
                    mesh_of = functools.cache(functools.partial(numbering.renumbered, numbering.even()))
                    numbering = numbering.even()
                starts = numbering.starts
            plan = snapshots.pop().plan(same, mesh_of)
            if managed.metrics:
                plan.extra["metrics"] = managed.metrics
            caller = Caller(managed.begun, waited if copy else None, copied_bytes)
            return managed.write(call, path, plan, group, starts, user=user, existing=existing,
                                 progress=progress, caller=caller, **options)

    copied_bytes = snapshots[0].copied_bytes if snapshots else 0
    waited = time.monotonic() - managed.begun
    return Prepared(call, write, failed)
