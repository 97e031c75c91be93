"""save() and save_async()."""

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
    int, float, complex, str, bytes; loaders and other objects with state_dict() and load_state_dict(), by
    their state. What each process has for itself (numpy, objects, arrays on local devices) must be the same
    for all. So must path, user, codec, existing, and the order of saves. Nothing is at `path` until every
    byte is on the disk. Options as those of shardwise.save(); `deadline`: seconds that a process waits for
    the others; progress: of what this process writes.

    Raises InvalidArgument (two leaves of one name, values that differ between processes), TypeError and
    Unsupported naming all leaves that cannot be stored, AlreadyExists, IOFailed, GroupError. What fails on
    one process is raised on all.
    """
    return prepare(path, tree, from_jax(), copy=False, user=user, codec=codec, existing=existing,
                   threads=threads, memory=memory, deadline=deadline).write(progress)


def save_async(path: Path, tree: Any, *, user: Any = None, codec: Codec = "zstd", existing: Existing = "fail",
               threads: int = 0, memory: int = MEMORY, deadline: float = DEADLINE) -> PendingSave:
    """As save(), but returns when the values are held: JAX's arrays may be donated, numpy's changed. Its
    result() waits for the commit and raises what went wrong."""
    prepared = prepare(path, tree, from_jax(), copy=True, user=user, codec=codec, existing=existing,
                       threads=threads, memory=memory, deadline=deadline)
    pending = prepared.start(None, prepared.write, f"save {path}")
    if prepared.failed is not None:
        raise prepared.failed  # the other processes hear of it on the thread
    return pending


@dataclass
class Prepared:
    """A save whose values are held. `write` is to be called once."""

    call: Call
    write: Write
    failed: BaseException | None  #: why this process cannot take part: `write` raises it on all

    def start(self, step: int | None, run: Callable[[Progress], SaveStats | None],
              what: str = "") -> PendingSave:
        """run(), which calls write(), on a thread. If that cannot be started, the other processes are
        told."""
        try:
            return PendingSave(step, run, what)
        except BaseException as error:
            self.call.end(error)
            raise


def prepare(path: Path, tree: Any, group: Group, *, copy: bool, user: Any = None, deadline: float = DEADLINE,
            existing: Existing = "fail", turn: _core.Turn | None = None, managed: Managed | None = None,
            is_even: bool = False, **options: Any) -> Prepared:
    """Returns the save of a tree. Nothing else holds the values, so they are freed when it is done. turn:
    decides when it begins, if at all. copy: its caller waits for this alone, and else for `write`, too.
    is_even: each process stands for as many devices."""
    managed = Managed() if managed is None else managed
    held: list[Snapshot] = []
    failed: BaseException | None = None
    path = local_or_bucket(path, "save")
    call = call_of(group, path, user=user, codec=options["codec"], existing=existing, deadline=deadline,
                   **managed.same)
    try:
        check_choice("existing", existing, ("fail", "replace", "skip"))
        check_codec(options["codec"])
        user = _objects.plain_copy(user, "user")
        held.append(snapshot(tree, copy=copy))
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
        return held[0].describe()

    def write(progress: Progress) -> SaveStats:
        same: list[str] = []
        starts: tuple[int, ...] = ()
        mesh_of: Callable[[str], str] = str
        with call:
            if turn is not None and not turn.begins(call):
                held.clear()
                return skipped()
            if group.size > 1:
                same = json.loads(call.agree(described, common))
                numbering = _devices.Numbering.of_job()
                if is_even:
                    mesh_of = functools.cache(functools.partial(numbering.renumbered, numbering.even()))
                    numbering = numbering.even()
                starts = numbering.starts
            plan = held.pop().plan(same, mesh_of)
            if managed.metrics:
                plan.extra["metrics"] = managed.metrics
            caller = Caller(managed.begun, waited if copy else None, copied_bytes)
            return managed.write(call, path, plan, group, starts, user=user, existing=existing,
                                 progress=progress, caller=caller, **options)

    copied_bytes = held[0].copied_bytes if held else 0
    waited = time.monotonic() - managed.begun
    return Prepared(call, write, failed)
